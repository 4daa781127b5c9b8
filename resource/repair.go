package resource

import (
	"bytes"
	"context"
	"errors"
	"log/slog"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
)

// A PacketRule is a resource that is gone when somebody flushes or reloads the host's packet filter: it stands
// there, or in what works together with it. A kind says of itself that it is one. Repair ensures the rules of a
// plan, and in the end they are as CHECK wants them; a rule's Ensure therefore never touches the container and
// may be called at any time in the attachment's life.
type PacketRule interface {
	plan.Resource
	Effect() Effect
}

// An Effect is what a rule does to packets. Those that keep them out are restored before any that let them in.
type Effect int

// What keeps packets out, and by itself lets none in, Closes; all else Opens.
const (
	Closes Effect = iota + 1
	Opens
)

// Effect implements PacketRule.
func (SpoofCheck) Effect() Effect { return Closes }

// Effect implements PacketRule.
func (Masquerade) Effect() Effect { return Opens }

// Effect implements PacketRule. What is published to some only lets these in with the transaction that publishes it.
func (Publish) Effect() Effect { return Opens }

// Beyond is a difference that neither Mend nor a rule's Ensure makes good: it lies in the container.
type Beyond struct{ Err error }

func (b Beyond) Error() string { return b.Err.Error() }

// Unwrap has errors.Is find the cause.
func (b Beyond) Unwrap() error { return b.Err }

// A Follower is a resource whose differences on the host follow from those of the links before it, and go with them.
type Follower interface {
	plan.Resource
	Follows()
}

// Follows implements Follower: what is not operational is so again once the links are up.
func (Announce) Follows() {}

// A Mender is a resource whose part on the host can be made whole while the container lives: Mend changes
// nothing in the container, and nothing that is as it should be.
type Mender interface {
	plan.Resource
	Mend(context.Context, *kernel.World) (changed bool, err error)
}

// Mend implements Mender.
func (b Bridge) Mend(ctx context.Context, w *kernel.World) (bool, error) { return b.Ensure(ctx, w) }

// Mend implements Mender.
func (g VLANGateway) Mend(ctx context.Context, w *kernel.World) (bool, error) {
	return g.Ensure(ctx, w)
}

// Mend implements Mender.
func (g Gateway) Mend(ctx context.Context, w *kernel.World) (bool, error) { return g.Ensure(ctx, w) }

// Mend implements Mender.
func (f Forwarding) Mend(ctx context.Context, w *kernel.World) (bool, error) { return f.Ensure(ctx, w) }

// Mend implements Mender.
func (p Port) Mend(ctx context.Context, w *kernel.World) (bool, error) { return p.Ensure(ctx, w) }

// Mend implements Mender, for a setting of the host's.
func (s Sysctl) Mend(ctx context.Context, w *kernel.World) (bool, error) {
	if s.Where != Host {
		return false, nil
	}
	return s.Ensure(ctx, w)
}

// Mend implements Mender: the host's end of a pair that lives is up, has its address, and is a port of its
// bridge as it was made, unless it is another's by now.
func (v Veth) Mend(ctx context.Context, w *kernel.World) (changed bool, err error) {
	h, err := w.Host.Link(v.Host)
	if err != nil || h.Kind != "veth" || !owned(h, v.Owner) {
		return false, gone(err) // Verify says what became of it
	}
	// It hears nothing of the container's before it does not listen to router advertisements.
	if h.Master == 0 && ignoresRA(w.Host, v.Host) != nil {
		if changed, err = v.deafen(w.Host); err != nil {
			return false, err
		}
	}
	hw, err := mac(v.HostMAC, "host", v.Owner)
	if err != nil {
		return false, err
	}
	var todo []kernel.LinkChange // the kernel takes a port's flags before its master
	if v.HostMAC != "" && !bytes.Equal(hw, h.MAC) {
		todo = append(todo, kernel.LinkChange{MAC: hw})
	}
	port := kernel.BridgePort{Hairpin: v.Hairpin, Isolated: v.Isolated}
	switch {
	case v.Master == "":
	case h.Master == 0:
		// Down, for in its first moment as a port it is not isolated, and in the bridge's default VLAN.
		err := plug(ctx, w, v.Master, v.Anew, func(br *kernel.Link) error {
			if err := w.Host.SetLink(v.Host, kernel.LinkChange{Down: true}); err != nil {
				return err
			}
			return w.Host.SetLink(v.Host, kernel.LinkChange{Master: br.Index})
		})
		if err != nil {
			return false, err
		}
		todo = append(todo, kernel.LinkChange{Port: &port})
		h.Up = false
	case h.Port != nil:
		port.Hairpin, port.Isolated, port.Forwarding = port.Hairpin || h.Port.Hairpin, port.Isolated || h.Port.Isolated, h.Port.Forwarding
		if port != *h.Port {
			todo = append(todo, kernel.LinkChange{Port: &port})
		}
	}
	for _, c := range todo {
		if err := w.Host.SetLink(v.Host, c); err != nil {
			return false, err
		}
	}
	changed = changed || len(todo) > 0
	if !v.VLANs.none() {
		if h, err := w.Host.Link(v.Host); err == nil && masterName(w, h) == v.Master {
			did, err := v.VLANs.ensure(w, v.Host)
			if changed = changed || did; err != nil {
				return changed, err
			}
		}
	}
	if h.Up {
		return changed, nil
	}
	if err := w.Host.SetLink(v.Host, kernel.LinkChange{Up: true}); err != nil {
		return true, err
	}
	if c, err := w.Container.Link(v.Name); err == nil && c.Up { // a worker of the kernel's tells both that they carry packets
		err := errors.Join(carrier(ctx, Host, w.Host, v.Host, carrierLimit), carrier(ctx, Container, w.Container, v.Name, carrierLimit))
		if err != nil {
			slog.Debug("mended, and not operational", "cause", err) // Verify says so
		}
	}
	return true, nil
}
