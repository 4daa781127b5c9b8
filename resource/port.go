package resource

import (
	"context"
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Port makes somebody else's link on the host a port of a bridge (P23). Removing it takes the link off the
// bridge and leaves it where it is.
type Port struct {
	Owner    spec.Owner
	Link     string
	Master   string
	Hairpin  bool
	Isolated bool
}

func (p Port) String() string {
	return line("link host/"+p.Link, opt("master", p.Master), flag("hairpin on", p.Hairpin), flag("isolated on", p.Isolated))
}

// Ifaces implements Linker.
func (p Port) Ifaces() []Iface { return []Iface{{Host, p.Link}} }

// Ensure implements plan.Resource. A link that is a port of another bridge is not taken away from it.
func (p Port) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	br, err := bridge(w, p.Master)
	if err != nil {
		return false, err
	}
	l, err := w.Host.Link(p.Link)
	if err != nil {
		return false, err
	}
	if l.Master != 0 && l.Master != br.Index {
		return false, fmt.Errorf("link %s is a port of %s already", p.Link, masterName(w, l))
	}
	if l.Master == 0 {
		if err := w.Host.SetLink(p.Link, kernel.LinkChange{Master: br.Index}); err != nil {
			return false, err
		}
		changed = true
	}
	flags := kernel.BridgePort{Hairpin: p.Hairpin || l.Port.Hairpin, Isolated: p.Isolated || l.Port.Isolated}
	if flags.Hairpin != l.Port.Hairpin || flags.Isolated != l.Port.Isolated {
		err := w.Host.SetLink(p.Link, kernel.LinkChange{Port: &flags})
		if err != nil && changed {
			err = errors.Join(err, w.Host.SetLink(p.Link, kernel.LinkChange{Master: -1}))
		}
		if err != nil {
			return false, err
		}
		changed = true
	}
	return changed, nil
}

// Verify implements plan.Resource.
func (p Port) Verify(ctx context.Context, w *kernel.World) error {
	l, err := w.Host.Link(p.Link)
	if err != nil {
		return err
	}
	var d drift
	d.port(w, l, p.Master, p.Hairpin, p.Isolated)
	return d.err()
}

// Remove implements plan.Remover.
func (p Port) Remove(ctx context.Context, w *kernel.World) error {
	l, err := w.Host.Link(p.Link)
	if err != nil || masterName(w, l) != p.Master {
		return gone(err)
	}
	return gone(w.Host.SetLink(p.Link, kernel.LinkChange{Master: -1}))
}

// port compares what a bridge keeps of a port. What is not asked for may be on all the same.
func (d *drift) port(w *kernel.World, l *kernel.Link, master string, hairpin, isolated bool) {
	if master == "" {
		return
	}
	d.want("master", master, masterName(w, l))
	if hairpin {
		d.want("hairpin", true, l.Port.Hairpin)
	}
	if isolated {
		d.want("isolated", true, l.Port.Isolated)
	}
}

// masterName is the name of the bridge that a link on the host is a port of, or "none".
func masterName(w *kernel.World, l *kernel.Link) string {
	if l.Master == 0 {
		return "none"
	}
	m, err := w.Host.LinkAt(l.Master)
	if err != nil {
		return "none"
	}
	return m.Name
}
