package shape

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// An IFB is a link through which incoming packets are redirected, because the kernel can limit only what a link
// sends. It has the MTU of the link on which the packets arrive.
type IFB struct {
	Owner spec.Owner
	Where resource.Where
	For   string // the link; empty: in DEL, where it is not known
}

func (i IFB) String() string {
	return resource.Line("link "+i.Where.String()+ifbName(i.Owner), "type ifb", resource.Opt("for", i.For))
}

// Traits implements resource.Describer.
func (i IFB) Traits() resource.Traits {
	return resource.Traits{
		Ifaces: []resource.Iface{{Where: i.Where, Name: ifbName(i.Owner), Kind: "ifb"}},
		Fix:    fixShaped(i.Where, i),
	}
}

// ifbName returns the name of an owner's ifb. Two interfaces of one container have different ones.
func ifbName(o spec.Owner) string { return identity.LinkName("ifb", o) }

// referenceIFB returns the name that the reference's plugin gives an ifb. All interfaces of a container in a network
// share it.
func referenceIFB(o spec.Owner) string { return "bwp" + resource.ReferenceHash(o, 12) }

// ifb returns the owner's ifb, or the one that the reference's plugin made.
func ifb(w *kernel.World, where resource.Where, o spec.Owner) (*kernel.NS, *rtnl.Link, error) {
	ns, l, err := where.Link(w, ifbName(o))
	if where == resource.Host && errors.Is(err, rtnl.ErrNoLink) {
		if _, old, oldErr := where.Link(w, referenceIFB(o)); oldErr == nil {
			return ns, old, nil
		}
	}
	return ns, l, err
}

// Ensure implements plan.Resource.
func (i IFB) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, l, err := i.Where.Link(w, i.For)
	if err != nil {
		return false, err
	}
	name := ifbName(i.Owner)
	have, err := rtnl.LinkByName(ns, name)
	switch {
	case resource.ExceptNoLink(err) != nil:
		return false, err
	case err == nil && (have.Kind != "ifb" || !resource.Owned(have, i.Owner)):
		return false, fmt.Errorf("link %s already exists and was not made for this attachment: %w", name, fs.ErrExist)
	case err == nil && have.Up && have.MTU == l.MTU && have.Alias != "":
		return false, nil
	case err == nil: // as another program left it, or a call that was killed
		return true, rtnl.SetLink(ns, name, rtnl.LinkChange{Up: true, MTU: l.MTU, Alias: identity.Tag(i.Owner)})
	}
	if err := rtnl.AddIFB(ns, rtnl.NewLink{
		Name: name, MAC: identity.MAC("ifb", i.Owner), MTU: l.MTU,
		Group: identity.LinkGroup(i.Owner.Network), Alias: identity.Tag(i.Owner),
	}); err != nil {
		return false, errors.Join(err, i.Remove(ctx, w))
	}
	if i.Where == resource.Host { // for people, as a veth has it; and two links cannot have one
		_ = rtnl.AddAltName(ns, name, resource.AltName(i.Owner)+":ifb")
	}
	return true, nil
}

// Verify implements plan.Resource. It does not compare the MAC address, which the kernel does not let change. It does
// not compare the MTU, because the link's MTU may change later and an ifb also sends longer packets.
func (i IFB) Verify(_ context.Context, w *kernel.World) error {
	_, l, err := ifb(w, i.Where, i.Owner)
	if err != nil {
		return err
	}
	var d resource.Drift
	d.Want("type", "ifb", l.Kind)
	d.WantUp("state", l)
	return d.Err()
}

// Remove implements plan.Remover. It also removes the ifb of the reference's plugin.
func (i IFB) Remove(_ context.Context, w *kernel.World) error {
	ns, err := i.Where.Namespace(w)
	if err != nil {
		return err
	}
	errs := []error{dropIFB(ns, ifbName(i.Owner), func(l *rtnl.Link) bool { return resource.Owned(l, i.Owner) })}
	if i.Where == resource.Host {
		errs = append(errs, dropIFB(ns, referenceIFB(i.Owner), func(*rtnl.Link) bool { return true }))
	}
	return errors.Join(errs...)
}

// dropIFB deletes the ifb of that name. Usually there is none, so it first asks in the cheapest way.
func dropIFB(ns *kernel.NS, name string, mine func(*rtnl.Link) bool) error {
	if _, err := rtnl.IndexOf(ns, name); err != nil {
		return resource.ExceptNoLink(err)
	}
	l, err := rtnl.LinkByName(ns, name)
	if err != nil || l.Kind != "ifb" || !mine(l) {
		return resource.ExceptNoLink(err)
	}
	return rtnl.DelLink(ns, l.Index)
}
