package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Bridge is a bridge on the host. An existing bridge is used as it is, whatever its MTU.
type Bridge struct {
	Name    string
	MTU     resource.MTU
	Promisc bool
	VLANs   bool // keeps VLANs apart; one that exists without is an error
	Switch  bool // with VLANs: in one that exists without, it is switched on
	KeepMAC bool // one that exists keeps its address, whatever ports come and go
}

func (b Bridge) String() string {
	return resource.Line("link host/"+b.Name, "type bridge", resource.Opt("mtu", b.MTU),
		resource.Flag("promisc on", b.Promisc), resource.Flag("vlan_filtering on", b.VLANs),
		resource.Flag("switched on", b.VLANs && b.Switch))
}

// Traits implements resource.Describer.
func (b Bridge) Traits() resource.Traits {
	return resource.Traits{
		Ifaces:   []resource.Iface{{Where: resource.Host, Name: b.Name, Kind: "bridge"}},
		Possible: b.possible, Fix: b.Ensure,
	}
}

func (b Bridge) possible(w *kernel.World) error {
	if !b.VLANs {
		return nil
	}
	return rtnl.NoBridgeVLANs(w.Host)
}

// MAC returns the bridge's own address on this machine. Without one, a bridge takes the lowest address of its ports.
// That address changes with the ports, and the neighbours' tables become wrong.
func (b Bridge) MAC() net.HardwareAddr { return identity.MAC("bridge", spec.Owner{IfName: b.Name}) }

// Ensure implements plan.Resource. It takes the lock that keeps others from removing the bridge while it has no port.
func (b Bridge) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	unlock, err := record.Share(ctx, BridgeLock(b.Name))
	if err != nil {
		return false, err
	}
	defer unlock()
	return b.EnsureUnlocked(w)
}

func (b Bridge) EnsureUnlocked(w *kernel.World) (changed bool, err error) {
	l, err := resource.Bridge(w, b.Name)
	if errors.Is(err, rtnl.ErrNoLink) {
		mtu, err := b.MTU.Resolve(w)
		if err != nil {
			return false, err
		}
		_ = w.Store.History(b.Name).Begin() // without one, all is announced
		// Another program may make it now, and may not be done with it.
		switch err := rtnl.AddBridge(w.Host, b.Name, b.MAC(), mtu, b.VLANs); {
		case err == nil:
			changed = true
		case !errors.Is(err, fs.ErrExist):
			return false, errors.Join(fmt.Errorf("add bridge: %w", err), w.Store.History(b.Name).Blur())
		}
		l, err = resource.Bridge(w, b.Name)
		if err != nil {
			return false, err
		}
	} else if err != nil {
		return false, err
	}
	if b.MTU > resource.MTU(l.MTU) {
		slog.Warn("the bridge carries smaller packets than asked for", "bridge", b.Name, "mtu", l.MTU, "want", b.MTU)
	}
	c, err := b.finish(w, l)
	if err != nil && changed {
		return false, errors.Join(err, rtnl.DelLink(w.Host, l.Index))
	}
	if err == nil && b.KeepMAC {
		err = b.pin(w, l)
	}
	return changed || c, err
}

// pinnedRecord is the name of the record of a bridge whose address was fixed. The kernel does not tell whether an
// address is fixed. Setting it again would make the host forget its neighbours on the bridge.
const pinnedRecord = "pinned"

// A pinned is a bridge and the address that was fixed. The index alone may be that of a bridge that was made anew.
type pinned struct {
	Index int    `json:"index"`
	MAC   string `json:"mac"`
}

// pin fixes the address of a bridge that another program made. Otherwise the bridge takes the lowest address of its
// ports, and its first port changes it. Then the containers lose their gateway, and neighbours lose the host.
func (b Bridge) pin(w *kernel.World, l *rtnl.Link) error {
	if bytes.Equal(l.MAC, b.MAC()) {
		return nil
	}
	is := pinned{Index: l.Index, MAC: l.MAC.String()}
	var was pinned
	o := spec.Owner{IfName: b.Name}
	if known, err := w.Store.Get(pinnedRecord, o, &was); err != nil || known && was == is {
		return err
	}
	if err := rtnl.SetLink(w.Host, b.Name, rtnl.LinkChange{MAC: l.MAC}); err != nil {
		return err
	}
	return w.Store.Put(pinnedRecord, o, is)
}

// settings are those of the bridge whichever program made it.
func (b Bridge) settings() rtnl.LinkChange {
	c := rtnl.LinkChange{Up: true}
	if b.Promisc {
		c.Promisc = &b.Promisc
	}
	return c
}

// finish finishes what AddBridge began, in this call or in one that was killed.
func (b Bridge) finish(w *kernel.World, l *rtnl.Link) (changed bool, err error) {
	// Before it is up: from then on it hears its ports. The address tells that the bridge is one of ours;
	// another may be the host's own uplink and live by router advertisements.
	if bytes.Equal(l.MAC, b.MAC()) && !l.Up {
		if changed, err = resource.IgnoreRA(w.Host, b.Name); err != nil {
			return false, err
		}
	}
	if b.VLANs && !l.Data.Filtering {
		if !b.Switch {
			return false, unfiltered(w, b.Name)
		}
		if err := rtnl.SetBridgeVLANFiltering(w.Host, l.Index); err != nil {
			return false, err
		}
		changed = true
	}
	c, lacks := resource.Lacks(l, b.settings())
	if len(lacks) == 0 {
		return changed, nil
	}
	if err := rtnl.SetLink(w.Host, b.Name, c); err != nil {
		return true, err
	}
	if c.Up && bytes.Equal(l.MAC, b.MAC()) {
		resource.LinkLocal(w.Host, l.Index, l.MAC)
	}
	return true, nil
}

// Verify implements plan.Resource. It does not compare the MTU, because the kernel changes it with the ports'.
func (b Bridge) Verify(ctx context.Context, w *kernel.World) error {
	l, err := resource.Bridge(w, b.Name)
	if err != nil {
		return err
	}
	_, d := resource.Lacks(l, b.settings())
	d.WantIfSet("vlan_filtering", b.VLANs, l.Data.Filtering)
	if bytes.Equal(l.MAC, b.MAC()) {
		d.Add(resource.IgnoresRA(w.Host, b.Name))
	}
	return d.Err()
}
