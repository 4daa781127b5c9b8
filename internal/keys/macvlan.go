package keys

import (
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/sdk"
)

// Macvlan has the keys of plugins whose interface has its own MAC address on another link.
type Macvlan struct {
	// Interface that the container's interface is on. Default: the interface of the default route, of IPv4 if there is
	// one.
	Master string `json:"master" want:"ifname"`
	// Whether macvlans and macvtaps on one master can reach each other. bridge: yes; private: no; vepa: only through an
	// external switch that sends frames back; passthru: the master has only this one, with the MAC of the master.
	// Default: bridge.
	Mode string `json:"mode" want:"bridge|private|vepa|passthru"`
	MasterKeys
	// MAC of the interface. With passthru, the master gets the same MAC while the interface exists. Default: derived
	// from the attachment, and with passthru the MAC of the master.
	MAC string `json:"mac" want:"mac"`
	// Length of the queue of broadcast and multicast packets on the master. The master uses the largest value that any
	// of its macvlans asks for. Needs Linux 5.11. Default: the kernel's.
	BCQueueLen uint32 `json:"bcqueuelen"`

	// Refuse a master that is down. Default: false, ADD warns, and the interface works as soon as the master is up.
	RequireMasterUp bool `json:"requireMasterUp"`

	RuntimeConfig struct {
		// MAC of the interface, set by the runtime (clause K6). Takes precedence over MAC of CNI_ARGS, and that over
		// mac.
		MAC string `json:"mac" want:"mac"`
	} `json:"runtimeConfig"`
}

// Plan returns the plan of a macvlan, or of a macvtap if tap is set, with its addresses.
func (c Macvlan) Plan(r *sdk.Request, tap bool) (plan.Plan, error) {
	on := OnMaster{
		MasterKeys: c.MasterKeys, Kind: "macvlan", Master: c.Master, Taken: true, Up: c.RequireMasterUp,
		MAC: Asked(Ask{"runtimeConfig.mac", c.RuntimeConfig.MAC}, ArgMAC(r),
			Ask{"mac", c.MAC}), OwnMAC: c.Mode != "passthru",
	}
	if tap {
		on.Kind = "macvtap"
	}
	before, stacked, after, err := on.Plan(r)
	if err != nil {
		return nil, err
	}
	if !c.LinkInContainer {
		before = append(before, plan.Prerequisite(link.MasterRoom{Master: stacked.Master, Network: r.Network,
			Passthru: c.Mode == "passthru"}))
	}
	p := append(before, link.Macvlan{Stacked: stacked, Mode: c.Mode, BCQueueLen: c.BCQueueLen, Tap: tap})
	return append(p, after...), nil
}
