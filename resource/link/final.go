package link

import (
	"cmp"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// What the final result says of a link is what a later plugin of the list has made of it: see Final of resource.Traits.

func (v Veth) final(f spec.Interface) plan.Resource {
	v.MAC, v.ContMTU = f.MAC, f.MTU
	return v
}

func (s Stacked) asShown(f spec.Interface) Stacked {
	s.MAC, s.MTU = f.MAC, cmp.Or(f.MTU, s.MTU)
	return s
}

func (m Macvlan) final(f spec.Interface) plan.Resource {
	m.Stacked = m.asShown(f)
	return m
}

func (i IPvlan) final(f spec.Interface) plan.Resource {
	i.Stacked = i.asShown(f)
	return i
}

func (v VLAN) final(f spec.Interface) plan.Resource {
	v.Stacked = v.asShown(f)
	return v
}

func (d Dummy) final(f spec.Interface) plan.Resource {
	d.MAC, d.MTU = f.MAC, cmp.Or(f.MTU, d.MTU)
	return d
}

func (t Tap) final(f spec.Interface) plan.Resource {
	t.MAC, t.MTU = f.MAC, cmp.Or(f.MTU, t.MTU)
	return t
}
