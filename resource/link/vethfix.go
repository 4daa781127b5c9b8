package link

import (
	"bytes"
	"context"
	"errors"
	"log/slog"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
)

// fix has the host's end of a pair that lives up, with its address, and as a port of its bridge as it was made, unless
// it is another's by now.
func (v Veth) fix(ctx context.Context, w *kernel.World) (changed bool, err error) {
	h, err := rtnl.LinkByName(w.Host, v.Host)
	if err != nil || h.Kind != "veth" || !resource.Owned(h, v.Owner) {
		return false, resource.ExceptNoLink(err) // Verify says what became of it
	}
	// It hears nothing of the container's before it does not listen to router advertisements.
	if h.Master == 0 && resource.IgnoresRA(w.Host, v.Host) != nil {
		if changed, err = v.ignoreRA(w.Host); err != nil {
			return false, err
		}
	}
	hw, err := resource.MAC(v.HostMAC, "host", v.Owner)
	if err != nil {
		return false, err
	}
	var todo []rtnl.LinkChange // the kernel takes a port's flags before its master
	if v.HostMAC != "" && !bytes.Equal(hw, h.MAC) {
		todo = append(todo, rtnl.LinkChange{MAC: hw})
	}
	switch {
	case v.Master == "":
	case h.Master == 0:
		// Down, for in its first moment as a port it is not isolated, and in the bridge's default VLAN.
		err := plug(ctx, w, v.Master, v.Recreate, func(br *rtnl.Link) error {
			if err := rtnl.SetLink(w.Host, v.Host, rtnl.LinkChange{Down: true}); err != nil {
				return err
			}
			return rtnl.SetLink(w.Host, v.Host, rtnl.LinkChange{Master: br.Index})
		})
		if err != nil {
			return false, err
		}
		todo = append(todo, rtnl.LinkChange{Port: &rtnl.BridgePort{Hairpin: v.Hairpin, Isolated: v.Isolated}})
		h.Up = false
	case h.Port != nil:
		if port := withFlags(*h.Port, v.Hairpin, v.Isolated); port != *h.Port {
			todo = append(todo, rtnl.LinkChange{Port: &port})
		}
	}
	for _, c := range todo {
		if err := rtnl.SetLink(w.Host, v.Host, c); err != nil {
			return false, err
		}
	}
	changed = changed || len(todo) > 0
	if !v.VLANs.none() {
		if h, err := rtnl.LinkByName(w.Host, v.Host); err == nil && masterName(w, h) == v.Master {
			did, err := v.VLANs.ensure(w, v.Host)
			if changed = changed || did; err != nil {
				return changed, err
			}
		}
	}
	if h.Up {
		return changed, nil
	}
	return true, v.bringUp(ctx, w)
}

// bringUp sets the host-side interface up, and waits until both carry packets.
func (v Veth) bringUp(ctx context.Context, w *kernel.World) error {
	if err := rtnl.SetLink(w.Host, v.Host, rtnl.LinkChange{Up: true}); err != nil {
		return err
	}
	// a worker of the kernel's tells both that they carry packets
	if c, err := rtnl.LinkByName(w.Container, v.Name); err == nil && c.Up {
		err := errors.Join(resource.WaitCarrier(ctx, resource.Host, w.Host, v.Host, resource.CarrierLimit),
			resource.WaitCarrier(ctx, resource.Container, w.Container, v.Name, resource.CarrierLimit))
		if err != nil {
			slog.Debug("fixed, and not operational", "cause", err) // Verify says so
		}
	}
	return nil
}
