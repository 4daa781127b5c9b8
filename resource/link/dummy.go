package link

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Dummy is a link of the container that leads nowhere. It can have addresses, and the kernel drops what it sends.
type Dummy struct {
	Owner spec.Owner
	Name  string
	MTU   int    // zero: the kernel's, 1500
	MAC   string // empty: the owner's own
	Down  bool   // leave it down, for something that has to come before its first packet
}

func (d Dummy) String() string {
	return resource.Line("link cont/"+d.Name, "type dummy", resource.Opt("mtu", d.MTU),
		resource.Opt("address", resource.MACText(d.MAC)), resource.Flag("down", d.Down))
}

// Traits implements resource.Describer.
func (d Dummy) Traits() resource.Traits {
	return resource.Traits{
		Ifaces:   []resource.Iface{{Where: resource.Container, Name: d.Name}},
		Possible: resource.KindPossible("dummy"), Final: d.final,
	}
}

// Ensure implements plan.Resource. If a link of its name exists, Ensure always fails and leaves that link as it is
// (P10).
func (d Dummy) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	if w.Container == nil {
		return false, kernel.ErrNoNamespace
	}
	addr, err := resource.MAC(d.MAC, "cont", d.Owner)
	if err != nil {
		return false, err
	}
	err = rtnl.AddLink(w.Container, rtnl.NewLink{
		Name: d.Name, Kind: "dummy", MTU: d.MTU, MAC: addr, Up: !d.Down,
		Group: identity.LinkGroup(d.Owner.Network), Alias: identity.Tag(d.Owner),
	})
	if errors.Is(err, rtnl.ErrLinkExists) {
		err = rtnl.NameTaken(d.Name)
	}
	if err == nil {
		err = rememberLink(w, d.Owner, d.Name, "dummy", nil)
	}
	return err == nil, err
}

// Verify implements plan.Resource.
func (d Dummy) Verify(ctx context.Context, w *kernel.World) error {
	l, err := own(w, d.Owner, d.Name, "dummy")
	if err != nil {
		return err
	}
	var is resource.Drift
	if l.Kind != "dummy" {
		is.Want("type", "dummy", l.Kind)
		return is.Err()
	}
	if d.MAC != "" {
		is.Want("address", resource.MACText(d.MAC), l.MAC)
	}
	is.MTU(w, d.Owner, d.MTU, l)
	if !d.Down {
		is.Want("state", "up", resource.UpOrDown(l))
	}
	return is.Err()
}

// Remove implements plan.Remover.
func (d Dummy) Remove(ctx context.Context, w *kernel.World) error {
	return removeOwn(w, d.Owner, d.Name, "dummy")
}
