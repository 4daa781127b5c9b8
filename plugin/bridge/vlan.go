package bridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/spec"
)

// vlanConf says which VLANs of the bridge a container is in.
type vlanConf struct {
	// VLAN of the container, 1 to 4094. The container sends and receives packets without a tag, and gets no packets of
	// other VLANs. Excludes trunk, vlan and vlanTrunk. Default: none.
	Access *int `json:"access" want:"1..4094"`
	// VLANs of a container that tags its packets itself. Excludes access, vlan and vlanTrunk. Default: none.
	Trunk *plainTrunk `json:"trunk"`
	// VLAN of the container, 1 to 4094, as with the reference plugin; access is the same. With vlanTrunk: the VLAN of
	// packets without a tag. Default: 0, no VLAN.
	Vlan int `json:"vlan" want:"0|1..4094" says:"a number from 1 to 4094, or 0 for none"`
	// VLANs of a container that tags its packets itself, as with the reference plugin. If vlan is not set, packets
	// without a tag belong to VLAN 1. Default: none.
	VlanTrunk *[]trunkItem `json:"vlanTrunk"`
	// Keep the container in the default VLAN of the bridge (1) too, so that it also receives the broadcasts of that
	// VLAN. Default: false.
	PreserveDefaultVlan bool `json:"preserveDefaultVlan"`
	// If the bridge exists and does not filter VLANs, turn VLAN filtering on. Default: false, ADD refuses such a bridge
	// if the configuration has VLANs.
	VlanFiltering bool `json:"vlanFiltering"`
}

type plainTrunk struct {
	// VLAN of packets without a tag, 1 to 4094. Default: none, packets without a tag are dropped.
	Native *int `json:"native" want:"1..4094"`
	// VLANs of packets with a tag: numbers from 1 to 4094, and ranges such as "10-20".
	Tagged []vlanRange `json:"tagged"`
}

type trunkItem struct {
	// First VLAN of a range.
	MinID *int `json:"minID" want:"1..4094"`
	// Last VLAN of a range.
	MaxID *int `json:"maxID" want:"1..4094"`
	// A single VLAN.
	ID *int `json:"id" want:"1..4094"`
}

// A vlanRange is a number, or two in a string.
type vlanRange struct{ first, last uint16 }

const vlanNumbers = "want a number from 1 to 4094"

// UnmarshalJSON takes 10, "10" and "10-20".
func (v *vlanRange) UnmarshalJSON(b []byte) error {
	s := string(b)
	if strings.HasPrefix(s, `"`) {
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
	}
	from, to, ranged := strings.Cut(s, "-")
	if !ranged {
		to = from
	}
	first, err1 := strconv.Atoi(strings.TrimSpace(from))
	last, err2 := strconv.Atoi(strings.TrimSpace(to))
	switch {
	case err1 != nil || err2 != nil || !valid(first) || !valid(last):
		return errors.New(vlanNumbers + `, or two of them such as "10-20"`)
	case last < first:
		return fmt.Errorf("the first VLAN is larger than the last: want \"%d-%d\"", last, first)
	}
	*v = vlanRange{uint16(first), uint16(last)}
	return nil
}

func valid(id int) bool { return id >= 1 && id <= 4094 }

// filtering reports whether the bridge has to keep VLANs apart. With the reference an empty list says so too.
func (c vlanConf) filtering() bool {
	return c.Vlan != 0 || c.VlanTrunk != nil || c.Access != nil || c.Trunk != nil || c.VlanFiltering
}

func (c vlanConf) validateVLANs(l3 bool, bridge string, gateway bool) error {
	switch {
	case c.Access != nil && c.Trunk != nil:
		return spec.Errorf(spec.CodeConfig,
			"access and trunk: set one of them; a trunk's VLAN without tags is trunk.native")
	case (c.Access != nil || c.Trunk != nil) && (c.Vlan != 0 || c.VlanTrunk != nil):
		return spec.Errorf(spec.CodeConfig,
			"access or trunk, and vlan or vlanTrunk: two ways to set the same; use one of them: vlan means access, "+
				"or beside vlanTrunk trunk.native, and vlanTrunk means trunk.tagged")
	}
	if c.VlanTrunk != nil {
		for i, t := range *c.VlanTrunk {
			if err := t.validate(fmt.Sprintf("vlanTrunk[%d]", i)); err != nil {
				return err
			}
		}
	}
	if c.Trunk != nil {
		if err := c.Trunk.validate(); err != nil {
			return err
		}
	}
	if !gateway || !l3 {
		return nil
	}
	if c.Trunk != nil && c.Trunk.Native == nil {
		return spec.Errorf(spec.CodeConfig,
			"trunk.native: is missing: the gateway's addresses are in the VLAN of packets without a tag; %s, or "+
				"remove "+
				"isGateway", vlanNumbers)
	}
	if g := (link.VLANGateway{Bridge: bridge, VLAN: c.gatewayVLAN()}); g.VLAN != 0 &&
		spec.ValidIfName(g.Name()) != nil {
		room := 15 - len(g.Name()) + len(bridge)
		return spec.Errorf(spec.CodeConfig,
			"bridge: %q: the gateway of VLAN %d is link %s, and the name of an interface has at most 15 bytes: want "+
				"a name of "+
				"at most %d bytes", bridge, g.VLAN, g.Name(), room)
	}
	return nil
}

func (t trunkItem) validate(path string) error {
	switch {
	case t.MinID == nil && t.MaxID != nil:
		return spec.Errorf(spec.CodeConfig, "%s.minID: is missing: maxID is %d; want a number from 1 to %d", path,
			*t.MaxID, *t.MaxID)
	case t.MinID != nil && t.MaxID == nil:
		return spec.Errorf(spec.CodeConfig, "%s.maxID: is missing: minID is %d; want a number from %d to 4094", path,
			*t.MinID, *t.MinID)
	case t.MinID != nil && *t.MinID > *t.MaxID:
		return spec.Errorf(spec.CodeConfig, "%s.minID: %d: is above maxID, %d; want a number from 1 to %d", path,
			*t.MinID, *t.MaxID, *t.MaxID)
	case t.MinID == nil && t.ID == nil:
		return spec.Errorf(spec.CodeConfig, "%s: is empty: want id, or minID and maxID, or all three", path)
	}
	return nil
}

func (t plainTrunk) validate() error {
	if len(t.Tagged) == 0 {
		return spec.Errorf(spec.CodeConfig,
			`trunk.tagged: is missing or empty: want VLANs, such as [10, "20-29"]; for a single VLAN without tags use access`)
	}
	for i, v := range t.Tagged {
		switch {
		case v.first == 0: // null
			return spec.Errorf(spec.CodeConfig, "trunk.tagged[%d]: null: %s, or two of them such as \"10-20\"", i,
				vlanNumbers)
		case t.Native != nil && int(v.first) <= *t.Native && *t.Native <= int(v.last):
			return spec.Errorf(spec.CodeConfig,
				"trunk.tagged[%d]: has %d, which is trunk.native: remove it from one of the two", i, *t.Native)
		}
	}
	return nil
}

// vlans are those of the container's port. Where vlanTrunk has vlan too, or the 1 that stands for it, that goes without
// a tag.
func (c vlanConf) vlans() link.VLANs {
	v := link.VLANs{Default: c.PreserveDefaultVlan}
	var tagged []link.PortVLAN
	add := func(first, last *int) {
		if first != nil && last != nil && valid(*first) && valid(*last) {
			tagged = append(tagged, link.PortVLAN{First: uint16(*first), Last: uint16(*last)})
		}
	}
	native := &c.Vlan
	switch one := 1; {
	case c.Access != nil:
		native = c.Access
	case c.Trunk != nil:
		native = c.Trunk.Native
		for _, t := range c.Trunk.Tagged {
			tagged = append(tagged, link.PortVLAN{First: t.first, Last: t.last})
		}
	case c.VlanTrunk != nil:
		for _, t := range *c.VlanTrunk {
			add(t.MinID, t.MaxID)
			add(t.ID, t.ID)
		}
		if c.Vlan == 0 && len(tagged) > 0 {
			native = &one
		}
	}
	if native != nil && valid(*native) {
		v.Native = uint16(*native)
	}
	v.Tagged = link.Ranges(tagged, v.Native)
	return v
}

// segment is the VLAN that the container's addresses are in, zero being the default one, where it is in one only.
func (c vlanConf) segment() (vlan uint16, one bool) {
	v := c.vlans()
	if v.Native == 1 {
		v.Native = 0
	}
	return v.Native, len(v.Tagged) == 0
}

// gatewayVLAN is the VLAN that the gateway's addresses are in, or zero where that is the bridge's own. With the
// reference, VLAN 1 that was not asked for by its number is.
func (c vlanConf) gatewayVLAN() uint16 {
	if c.VlanTrunk != nil && c.Vlan == 0 {
		return 0
	}
	return c.vlans().Native
}
