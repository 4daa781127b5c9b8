// Package ipvlan gives a container an interface on an interface of the host, with the same MAC address. Use it for
// networks that allow one MAC address a port, such as a cloud's or wireless ones. All ipvlans on one master share a
// mode and a flag: the kernel applies those of the last one that is made to all.
package ipvlan

import (
	"github.com/fairlead-cni/fairlead/internal/keys"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the ipvlan plugin.
var Plugin = sdk.Interface("ipvlan", "gives a container an interface on a host interface, with the same MAC", want,
	func(conf) []plan.Kind {
		return []plan.Kind{link.ContainerLink("ipvlan")}
	})

type conf struct {
	// Interface that the ipvlan is on. Default: the interface of the previous result if it has exactly one, else the
	// interface of the default route.
	Master string `json:"master" want:"ifname"`
	// Mode of the ipvlan. l2: the container routes its packets itself. l3: the host or namespace of the master routes
	// them, without broadcast and multicast. l3s: like l3, and its packet filter sees them. Default: l2.
	Mode string `json:"mode" want:"l2|l3|l3s"`
	// Whether ipvlans on one master can reach each other. bridge: yes; private: no; vepa: only through an external
	// switch that sends frames back. Default: bridge.
	Flag string `json:"flag" want:"bridge|private|vepa"`
	keys.MasterKeys
	// Refuse a master that is down. Default: false, ADD warns, and the interface works as soon as the master is up.
	RequireMasterUp bool `json:"requireMasterUp"`
}

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	if c.Probe() && c.Mode != "" && c.Mode != "l2" {
		return sdk.Answer{}, spec.Errorf(spec.CodeConfig,
			"conflictDetection: %q: in mode %s there is no broadcast, so a probe reaches no machine; want mode l2, "+
				"or remove the key", c.ConflictDetection, c.Mode)
	}
	if !r.L3 && r.Prev != nil && len(r.Prev.IPs) > 0 { // of a plugin before this one
		r.IPs, r.Routes = r.Prev.IPs, r.Prev.Routes
	}
	on := keys.OnMaster{MasterKeys: c.MasterKeys, Kind: "ipvlan", Master: c.Master, Taken: true, Announces: true,
		ByMaster: true, Up: c.RequireMasterUp}
	if name, inContainer := keys.OnlyLink(r); c.Master == "" && name != "" {
		on.Master, on.LinkInContainer, on.Found = name, on.LinkInContainer || inContainer, true
	}
	before, stacked, after, err := on.Plan(r)
	if err != nil {
		return sdk.Answer{}, err
	}
	if c.Master == "" {
		before = nil // STATUS is not told what a plugin before this one would make
	}
	p := append(before, link.IPvlan{Stacked: stacked, Mode: c.Mode, Flag: c.Flag})
	return sdk.Answer{Plan: append(p, after...), IPs: r.IPs, Routes: r.Routes}, nil
}
