package link

import (
	"cmp"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// Final implements resource.Finaler.
func (v Veth) Final(f spec.Interface) plan.Resource {
	v.MAC, v.ContMTU = f.MAC, f.MTU
	return v
}

func (s Stacked) final(f spec.Interface) Stacked {
	s.MAC, s.MTU = f.MAC, cmp.Or(f.MTU, s.MTU)
	return s
}

// Final implements resource.Finaler.
func (m Macvlan) Final(f spec.Interface) plan.Resource {
	m.Stacked = m.final(f)
	return m
}

// Final implements resource.Finaler.
func (i IPvlan) Final(f spec.Interface) plan.Resource {
	i.Stacked = i.final(f)
	return i
}

// Final implements resource.Finaler.
func (v VLAN) Final(f spec.Interface) plan.Resource {
	v.Stacked = v.final(f)
	return v
}

// Final implements resource.Finaler.
func (d Dummy) Final(f spec.Interface) plan.Resource {
	d.MAC, d.MTU = f.MAC, cmp.Or(f.MTU, d.MTU)
	return d
}

// Final implements resource.Finaler.
func (t Tap) Final(f spec.Interface) plan.Resource {
	t.MAC, t.MTU = f.MAC, cmp.Or(f.MTU, t.MTU)
	return t
}
