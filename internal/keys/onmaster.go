package keys

import (
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/sdk"
)

// MasterKeys has the keys of all plugins whose link is on another link, the master.
type MasterKeys struct {
	// MTU of the interface in bytes, from 68 to that of the master. Default: that of the master.
	MTU int `json:"mtu" want:"0|68..65535" says:"68 bytes to what the master has, or none for that"`
	// Take the master from the container's network namespace, not from the host's. Default: false.
	LinkInContainer bool `json:"linkInContainer"`
	// "off" turns off IPv6 on the interface: it gets no IPv6 address, whatever routers advertise. Default: IPv6 is on.
	IPv6 string `json:"ipv6" want:"off"`
	Conflicts
}

// OnMaster describes such a link.
type OnMaster struct {
	MasterKeys
	Kind      string // ip(8)'s type of the link
	Master    string // empty: the egress link
	Taken     bool   // see link.Master
	Ether     bool   // likewise
	MAC       Ask
	OwnMAC    bool // where none was, it has one of the owner's own, and else the kernel's
	Found     bool // Master is what a plugin before made, and the configuration does not name it
	ByMaster  bool // it hears no answers to what it asks, and its master does
	Up        bool // the master has to be up
	Announces bool // it can announce its addresses only as it comes up, so it has to get them before
}

// Plan returns the parts of a plan around a link on a master: the prerequisites that STATUS checks, the common
// fields of the link itself, and what follows the link, including its addresses.
func (c OnMaster) Plan(r *sdk.Request) (before plan.Plan, stacked link.Stacked, after plan.Plan, err error) {
	stacked = link.Stacked{Inside: link.Inside{Owner: r.Owner, Name: r.IfName}}
	if err := c.validate(r); err != nil {
		return nil, stacked, nil, err
	}
	stacked.Chosen, stacked.MTU, stacked.MAC, stacked.MACKey = c.Master == "" || c.Found, c.MTU, c.MAC.Value, c.MAC.Key
	if c.OwnMAC {
		stacked.MAC = r.MAC(c.MAC.Value)
	}
	stacked.Master = link.Master{Link: c.Master, Where: resource.Host, MTU: c.MTU, Kind: c.Kind, Taken: c.Taken,
		Ether: c.Ether, Up: c.Up}
	if c.LinkInContainer {
		stacked.Master.Where = resource.Container
	} else {
		before = plan.Plan{plan.Prerequisite(stacked.Master)}
	}
	if c.IPv6 == "off" { // before the link is up, so that it never gets an address of its own
		stacked.Down = true
		after = append(after, sysctl.IPv6Off{Link: r.IfName})
	}
	late := c.Announces && (r.L3 || len(r.IPs) > 0)
	stacked.Down = stacked.Down || late
	if stacked.Down && !late {
		after = append(after, link.Up{Link: r.IfName, Owner: r.Owner})
	}
	a := sdk.Addressing{Link: r.IfName, Up: late, Probe: c.Probe(), NoDAD: c.Off(), ByOn: c.ByMaster}
	if c.Taken { // a vlan's master is of another segment
		a.On = stacked.Master
	}
	return before, stacked, append(after, r.Addressing(a)...), nil
}

func (c OnMaster) validate(r *sdk.Request) error {
	if err := c.MAC.ValidMAC(); err != nil {
		return err
	}
	if err := ValidIPv6(r, c.IPv6, c.MTU); err != nil {
		return err
	}
	return c.Conflicts.Validate(r)
}

// OnlyLink returns the interface that the previous plugins made, if they made exactly one. A plugin whose master is not
// configured may use it as its master.
func OnlyLink(r *sdk.Request) (name string, inContainer bool) {
	if r.Prev == nil || len(r.Prev.Interfaces) != 1 || r.InContainer() {
		return "", false
	}
	f := r.Prev.Interfaces[0]
	return f.Name, f.Sandbox != ""
}
