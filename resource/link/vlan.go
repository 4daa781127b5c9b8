package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A VLAN is a link of the container for the packets of its master that carry a VLAN tag. It removes the tag. A master
// has one link for each VLAN in all namespaces.
type VLAN struct {
	Stacked
	ID       int    // 1 to 4094
	Protocol string // of VLANProtocols; empty: 802.1q
}

// VLANProtocols maps names of VLAN tags to their numbers on the wire (EtherTypes).
func VLANProtocols() map[string]uint16 {
	return map[string]uint16{"802.1q": rtnl.VLANTag, "802.1ad": rtnl.VLANServiceTag}
}

func (v VLAN) protocol() string { return cmp.Or(v.Protocol, "802.1q") }

func (v VLAN) String() string {
	return v.words("vlan", "protocol "+v.protocol(), resource.Opt("id", v.ID))
}

// Traits implements resource.Describer.
func (v VLAN) Traits() resource.Traits {
	is, id := v.traits("vlan", "", v.final), strconv.Itoa(v.ID)
	is.Network.Segment.VLAN, is.Network.Marks = id, []string{"VLAN " + id}
	return is
}

func (v VLAN) final(f spec.Interface) plan.Resource {
	v.show(f)
	return v
}

// Ensure implements plan.Resource.
func (v VLAN) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	err := v.add(w)
	if errors.Is(err, rtnl.ErrLinkExists) && !v.there(w) {
		err = v.await(ctx, w)
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP) && rtnl.NoKind(w.Host, "vlan") == nil:
		return false, fmt.Errorf("master: %s: takes no VLAN: %w", v.Master.Link, err)
	case err != nil:
		return false, err
	}
	return true, nil
}

func (v VLAN) add(w *kernel.World) error {
	return v.make(w, "vlan", rtnl.VLANData(uint16(v.ID), VLANProtocols()[v.protocol()]))
}

// there reports whether it is the name that is taken, and not the VLAN: the kernel's word for both is one.
func (v VLAN) there(w *kernel.World) bool {
	_, err := rtnl.IndexOf(w.Container, v.Name)
	return err == nil
}

// await tries until the master is free of the VLAN. The kernel tells of a link's end on the master too.
func (v VLAN) await(ctx context.Context, w *kernel.World) error {
	ns, master, err := v.Master.Find(w)
	if err != nil {
		return err
	}
	who, err := v.holder(w, ns, master)
	if err != nil {
		return err
	}
	if who == "" {
		err = rtnl.Await(ns, ctx, dyingLimit, []uint{rtnl.LinkEvents}, func() (bool, error) {
			err := v.add(w)
			if errors.Is(err, rtnl.ErrLinkExists) && !v.there(w) {
				return false, nil
			}
			return err == nil, err
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		who = "a link in another network namespace"
	}
	return spec.Errorf(spec.CodeConfig,
		"vlanId: %d: %s of %s has it (%s), and a link carries a VLAN once; to share it, put a bridge or macvlans on "+
			"a VLAN of the host", v.ID, who, master.Name, v.protocol())
}

// holder is the link that has the VLAN, where it can be seen: in the namespace of the master or of the container.
func (v VLAN) holder(w *kernel.World, ns *kernel.NS, master *rtnl.Link) (string, error) {
	for _, in := range []*kernel.NS{ns, w.Container} {
		links, err := rtnl.Links(in)
		if err != nil {
			return "", err
		}
		for _, l := range links {
			if l.Kind == "vlan" && l.Peer == master.Index && l.PeerAway == (in.Path != ns.Path) &&
				int(l.Data.VLAN) == v.ID &&
				l.Data.Protocol == VLANProtocols()[v.protocol()] {
				who := "link " + l.Name
				if _, _, text, ok := identity.ParseTag(l.Alias); ok {
					who += " of " + text
				}
				return who, nil
			}
		}
	}
	return "", nil
}

// Verify implements plan.Resource.
func (v VLAN) Verify(ctx context.Context, w *kernel.World) error {
	l, d := v.verify(w, "vlan")
	if l == nil {
		return d.Err()
	}
	d.Want("protocol", v.protocol(), wordOf(l.Data.Protocol, VLANProtocols()))
	d.Want("id", v.ID, l.Data.VLAN)
	return d.Err()
}

// Remove implements plan.Remover.
func (v VLAN) Remove(ctx context.Context, w *kernel.World) error {
	return removeOwn(w, v.Owner, v.Name, "vlan")
}
