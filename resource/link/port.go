package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// PortKind returns the Kind of Port: links of others that are ports of a bridge. Remove detaches them and does not
// delete them.
func PortKind() plan.Kind {
	detached := func(_ context.Context, w *kernel.World, _ plan.Tag, ours ports) error {
		var errs []error
		for link, master := range ours {
			errs = append(errs, detach(w, link, master))
		}
		return errors.Join(errs...)
	}
	return resource.RecordKind("bridge port", portRecord, func(ctx context.Context, w *kernel.World, t plan.Tag) error {
		ours, _, err := resource.RecordOf[ports](w, portRecord, t)
		if err = errors.Join(err, detached(ctx, w, t, ours)); err != nil {
			return err
		}
		return w.Store.Delete(portRecord, t.Owner) // half a record, of a call that was killed, too
	}, detached)
}

// A Port makes an existing link on the host a port of a bridge (P23). Remove detaches the link and does not delete
// it.
type Port struct {
	Owner    spec.Owner
	Link     string
	Master   string
	Hairpin  bool
	Isolated bool
	VLANs    VLANs
	Recreate plan.Resource // as in Veth
}

func (p Port) String() string {
	return resource.Line("link host/"+p.Link, resource.Opt("master", p.Master), resource.Flag("hairpin on", p.Hairpin),
		resource.Flag("isolated on", p.Isolated), p.VLANs.String())
}

// Traits implements resource.Describer.
func (p Port) Traits() resource.Traits {
	return resource.Traits{
		Ifaces: []resource.Iface{{Where: resource.Host, Name: p.Link, Master: p.Master}},
		Fix:    p.Ensure,
	}
}

// A ports is the record of an attachment's ports, from link to bridge. DEL has no other source for either.
type ports map[string]string

const portRecord = "port"

// Ensure implements plan.Resource. It fails for a port of another bridge. A link that is a port of this bridge before
// stays one after the attachment.
func (p Port) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	err = plug(ctx, w, p.Master, p.Recreate, func(br *rtnl.Link) error {
		changed, err = p.ensure(ctx, w, br)
		return err
	})
	return changed, err
}

func (p Port) ensure(ctx context.Context, w *kernel.World, br *rtnl.Link) (changed bool, err error) {
	l, err := rtnl.LinkByName(w.Host, p.Link)
	if err != nil {
		return false, err
	}
	switch l.Master {
	case br.Index:
	case 0:
		if err := p.spare(w, l); err != nil {
			return false, err
		}
		if err := p.attach(ctx, w, br); err != nil {
			return false, err
		}
		changed = true
	default:
		return false, fmt.Errorf("link %s is a port of %s already", p.Link, masterName(w, l))
	}
	var have rtnl.BridgePort
	if l.Port != nil {
		have = *l.Port
	}
	flags := withFlags(have, p.Hairpin, p.Isolated)
	vlans, err := p.VLANs.ensure(w, p.Link)
	if err == nil && flags != have {
		err = rtnl.SetLink(w.Host, p.Link, rtnl.LinkChange{Port: &flags})
	}
	if err != nil {
		if changed {
			err = errors.Join(err, p.Remove(ctx, w))
		}
		return false, err
	}
	return changed || vlans || flags != have, nil
}

// spare refuses a link that the host itself uses. As a bridge port, the link would no longer receive the host's
// packets, and a previous result may list any link.
func (p Port) spare(w *kernel.World, l *rtnl.Link) error {
	addrs, err := rtnl.Addrs(w.Host, l.Index)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			return spec.Errorf(spec.CodeConfig,
				"link %s has the host's address %v, which would no longer be reached if it were a port of %s: remove "+
					"the address, or have another link in prevResult",
				p.Link, a.Prefix, p.Master)
		}
	}
	return nil
}

func (p Port) attach(ctx context.Context, w *kernel.World, br *rtnl.Link) error {
	var ours ports
	if _, err := w.Store.Get(portRecord, p.Owner, &ours); err != nil {
		return err
	}
	if ours == nil {
		ours = ports{}
	}
	ours[p.Link] = p.Master
	// Before the change: a call that is killed after it is undone by DEL.
	if err := w.Store.Put(portRecord, p.Owner, ours); err != nil {
		return err
	}
	if err := rtnl.SetLink(w.Host, p.Link, rtnl.LinkChange{Master: br.Index}); err != nil {
		return errors.Join(err, p.Remove(ctx, w))
	}
	return nil
}

// Verify implements plan.Resource.
func (p Port) Verify(ctx context.Context, w *kernel.World) error {
	l, err := rtnl.LinkByName(w.Host, p.Link)
	if err != nil {
		return err
	}
	var d resource.Drift
	wantPort(&d, w, l, p.Master, p.Hairpin, p.Isolated)
	wantVLANs(&d, w, l, p.VLANs)
	return d.Err()
}

// Remove implements plan.Remover. The link's name comes from a record, so Remove needs only the owner and the bridge.
func (p Port) Remove(ctx context.Context, w *kernel.World) error {
	var ours ports
	if ok, err := w.Store.Get(portRecord, p.Owner, &ours); err != nil {
		return err
	} else if !ok {
		return w.Store.Delete(portRecord, p.Owner) // half a record, of a call that was killed
	}
	var errs []error
	for link, master := range ours {
		if master != p.Master || p.Link != "" && link != p.Link {
			continue
		}
		if err := detach(w, link, master); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(ours, link)
	}
	if len(ours) == 0 {
		errs = append(errs, w.Store.Delete(portRecord, p.Owner))
	} else {
		errs = append(errs, w.Store.Put(portRecord, p.Owner, ours))
	}
	return errors.Join(errs...)
}

// detach takes a link off a bridge, if it is still a port of that one.
func detach(w *kernel.World, link, master string) error {
	l, err := rtnl.LinkByName(w.Host, link)
	if err != nil || masterName(w, l) != master {
		return resource.ExceptNoLink(err)
	}
	return resource.ExceptNoLink(rtnl.SetLink(w.Host, link, rtnl.LinkChange{Master: -1}))
}

// wantPort compares what a bridge keeps of a port. What is not asked for may be on all the same.
func wantPort(d *resource.Drift, w *kernel.World, l *rtnl.Link, master string, hairpin, isolated bool) {
	if master == "" {
		return
	}
	d.Want("master", master, masterName(w, l))
	if l.Port == nil {
		return
	}
	d.WantIfSet("hairpin", hairpin, l.Port.Hairpin)
	d.WantIfSet("isolated", isolated, l.Port.Isolated)
}

// withFlags returns a port with the flags that are asked for. Those that it has stay.
func withFlags(port rtnl.BridgePort, hairpin, isolated bool) rtnl.BridgePort {
	port.Hairpin = port.Hairpin || hairpin
	port.Isolated = port.Isolated || isolated
	return port
}

// masterName is the name of the bridge that a link on the host is a port of, or "none".
func masterName(w *kernel.World, l *rtnl.Link) string { return rtnl.NameOf(w.Host, l.Master) }

// A BridgeMaker is a resource that makes a bridge. Its method can be called while the caller holds the BridgeLock
// shared.
type BridgeMaker interface {
	EnsureUnlocked(*kernel.World) (changed bool, err error)
}

// BridgeLock returns the name of a bridge's lock. Take it shared to make a port, and exclusively to remove the
// bridge.
func BridgeLock(name string) string { return "bridge-" + name }

// plug runs do, which makes a port, while the bridge cannot be removed. If the bridge is gone since it was ensured,
// plug makes it again if the caller says how.
func plug(ctx context.Context, w *kernel.World, name string, anew plan.Resource, do func(br *rtnl.Link) error) error {
	unlock, err := record.Share(ctx, BridgeLock(name))
	if err != nil {
		return err
	}
	defer unlock()
	br, err := resource.Bridge(w, name)
	// Not by its Ensure, which has the lock alone while it takes back what failed.
	maker, ok := plan.Unwrap(anew).(BridgeMaker)
	if ok && (errors.Is(err, rtnl.ErrNoLink) || err == nil && !br.Up) { // or another program is just making it
		if _, err := maker.EnsureUnlocked(w); err != nil {
			return err
		}
		br, err = resource.Bridge(w, name)
	}
	if err != nil {
		return err
	}
	return do(br)
}
