// Package macvtap gives a program in a container, a virtual machine's monitor as a rule, the packets of an interface with a MAC
// address of its own on a link of the host, as a file. The result's socketPath is where the kernel makes it; a runtime
// has to let the container have it. While nobody has it open the packets are the container's own, as with macvlan.
package macvtap

import (
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
)

// Plugin is the macvtap plugin.
var Plugin = sdk.Interface("macvtap", "gives a program the packets of an interface with a MAC of its own on a link of the host", want).KnowsArgs("MAC")

type conf struct {
	Master          string `json:"master"`          // the link below; default: that of the default route, IPv4's if there is one
	Mode            string `json:"mode"`            // bridge, which is the default: the macvtaps and macvlans on one master reach each other; private: they do not; vepa: through a switch that sends frames back; passthru: one alone, with the master's MAC
	MTU             int    `json:"mtu"`             // 68 bytes to what the master has, which is the default
	MAC             string `json:"mac"`             // of the interface; default: derived from the attachment. With passthru the default is the master's own, and another is the master's too, as long as the interface is there
	LinkInContainer bool   `json:"linkInContainer"` // the master is in the container's namespace, not on the host
	BCQueueLen      uint32 `json:"bcqueuelen"`      // broadcast and multicast packets that may wait for those of the master, which gets the largest that any asks for; default: the kernel's (Linux 5.11)
	IPv6            string `json:"ipv6"`            // "off" closes IPv6 in the interface: no address, whatever routers on the link advertise

	RuntimeConfig struct {
		MAC string `json:"mac"` // of the interface (clause K6); wins over the MAC of CNI_ARGS, which wins over mac
	} `json:"runtimeConfig"`
}

func want(c conf, r *sdk.Request) (plan.Plan, error) {
	arg, _ := r.Arg("MAC")
	if err := sdk.OneOf("mode", c.Mode, "bridge", "private", "vepa", "passthru"); err != nil && r.Verb != "DEL" {
		return nil, err
	}
	before, link, after, err := r.OnMaster(sdk.OnMaster{
		Kind: "macvtap", Master: c.Master, Container: c.LinkInContainer, Taken: true, MTU: c.MTU, IPv6: c.IPv6,
		MAC: sdk.First(c.RuntimeConfig.MAC, arg, c.MAC), OwnMAC: c.Mode != "passthru",
	})
	if err != nil {
		return nil, err
	}
	p := append(before, resource.Macvlan{Stacked: link, Mode: c.Mode, BCQueueLen: c.BCQueueLen, Tap: true})
	return append(p, after...), nil
}
