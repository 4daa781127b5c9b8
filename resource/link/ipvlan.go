package link

import (
	"cmp"
	"context"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// An IPvlan is a link of the container with the MAC address of its master. The kernel selects the receiver of a
// packet by its IP address. All ipvlans on a master share one mode and one flag: a new ipvlan changes those of the
// others.
type IPvlan struct {
	Stacked
	Mode string // of IPvlanModes; empty: l2
	Flag string // of IPvlanFlags; empty: bridge
}

// IPvlanModes maps names of modes to the kernel's numbers. The mode decides whether the container or the master's
// host routes packets.
func IPvlanModes() map[string]uint16 { return map[string]uint16{"l2": 0, "l3": 1, "l3s": 2} }

// IPvlanFlags maps names of flags to the kernel's numbers. They decide whether ipvlans on one master reach each other
// directly, not at all, or through the switch outside.
func IPvlanFlags() map[string]uint16 {
	return map[string]uint16{"bridge": 0, "private": 1, "vepa": 2}
}

func (i IPvlan) mode() string { return cmp.Or(i.Mode, "l2") }

func (i IPvlan) flag() string { return cmp.Or(i.Flag, "bridge") }

func (i IPvlan) String() string { return i.words("ipvlan", "mode "+i.mode(), i.flag()) }

// Traits implements resource.Describer.
func (i IPvlan) Traits() resource.Traits {
	return i.traits("ipvlan", i.Mode, i.final)
}

func (i IPvlan) final(f spec.Interface) plan.Resource {
	i.show(f)
	return i
}

// Ensure implements plan.Resource.
func (i IPvlan) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	if err := i.make(w, "ipvlan", rtnl.IPvlanData(IPvlanModes()[i.mode()], IPvlanFlags()[i.flag()])); err != nil {
		return false, err
	}
	return true, nil
}

// Verify implements plan.Resource.
func (i IPvlan) Verify(ctx context.Context, w *kernel.World) error {
	l, d := i.verify(w, "ipvlan")
	if l == nil {
		return d.Err()
	}
	d.Want("mode", i.mode(), wordOf(uint16(l.Data.Mode), IPvlanModes()))
	d.Want("flag", i.flag(), wordOf(l.Data.Flags&3, IPvlanFlags()))
	return d.Err()
}

// Remove implements plan.Remover.
func (i IPvlan) Remove(ctx context.Context, w *kernel.World) error {
	return removeOwn(w, i.Owner, i.Name, "ipvlan")
}
