package sdk

import (
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/link"
)

// Macvlan are the keys of a plugin whose interface has a MAC address of its own on another link.
type Macvlan struct {
	Master string `json:"master" want:"ifname"`                     // the link below; default: that of the default route, IPv4's if there is one
	Mode   string `json:"mode" want:"bridge|private|vepa|passthru"` // bridge, which is the default: the macvlans and macvtaps on one master reach each other; private: they do not; vepa: through a switch that sends frames back; passthru: one alone, with the master's MAC
	MasterKeys
	MAC        string `json:"mac" want:"mac"` // of the interface; default: derived from the attachment. With passthru the default is the master's own, and another is the master's too, as long as the interface is there
	BCQueueLen uint32 `json:"bcqueuelen"`     // broadcast and multicast packets that may wait for those on the master, which gets the largest that any asks for; default: the kernel's (Linux 5.11)

	RequireMasterUp bool `json:"requireMasterUp"` // refuse a master that is down; else that is warned of, and the interface carries packets when somebody sets the master up

	RuntimeConfig struct {
		MAC string `json:"mac" want:"mac"` // of the interface (clause K6); wins over the MAC of CNI_ARGS, which wins over mac
	} `json:"runtimeConfig"`
}

// Plan is a macvlan, or a macvtap, and what is around it.
func (c Macvlan) Plan(r *Request, tap bool) (plan.Plan, error) {
	on := OnMaster{
		MasterKeys: c.MasterKeys, Kind: "macvlan", Master: c.Master, Taken: true, Up: c.RequireMasterUp,
		MAC: Asked(Ask{"runtimeConfig.mac", c.RuntimeConfig.MAC}, r.ArgMAC(),
			Ask{"mac", c.MAC}), OwnMAC: c.Mode != "passthru",
	}
	if tap {
		on.Kind = "macvtap"
	}
	before, stacked, after, err := r.OnMaster(on)
	if err != nil {
		return nil, err
	}
	if !c.LinkInContainer {
		before = append(before, plan.Prerequisite(link.Alone{Master: stacked.Master, Network: r.Network,
			Passthru: c.Mode == "passthru"}))
	}
	p := append(before, link.Macvlan{Stacked: stacked, Mode: c.Mode, BCQueueLen: c.BCQueueLen, Tap: tap})
	return append(p, after...), nil
}
