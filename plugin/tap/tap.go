// Package tap gives a container an interface whose other end is a program in the container: a hypervisor, or a
// userspace network stack.
package tap

import (
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/resource/tune"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the tap plugin.
var Plugin = sdk.Interface("tap", "gives a container an interface for a program in it, such as a hypervisor", want,
	func(conf) []plan.Kind {
		return []plan.Kind{link.ContainerLink("tun")}
	}).KnowsArgs("MAC")

type conf struct {
	MultiQueue     bool    `json:"multiQueue"`                                                               // several queues, each opened on its own
	MTU            int     `json:"mtu" want:"0|68..65521 bytes"`                                             // 68 to 65521 bytes; default: the kernel's 1500
	MAC            string  `json:"mac" want:"mac"`                                                           // of the interface; default: derived from the attachment
	Owner          *uint32 `json:"owner" want:"0..4294967294" says:"the number of a user, 0 to 4294967294"`  // number of the user who may open it; default: anybody
	Group          *uint32 `json:"group" want:"0..4294967294" says:"the number of a group, 0 to 4294967294"` // number of the group whose members may open it; default: anybody
	SELinuxContext string  `json:"selinuxContext"`                                                           // the context that it is made in, so that a program confined by SELinux may open it
	Bridge         string  `json:"bridge" want:"ifname"`                                                     // a bridge in the container's own namespace that it becomes a port of
	IPv6           string  `json:"ipv6" want:"off"`                                                          // "off" closes IPv6 in the interface

	RuntimeConfig struct {
		MAC string `json:"mac" want:"mac"` // of the interface (clause K6); wins over the MAC of CNI_ARGS, which wins over mac
	} `json:"runtimeConfig"`
}

func (c conf) validate(r *sdk.Request) error {
	switch {
	case c.Bridge == r.IfName && c.Bridge != "":
		return spec.Errorf(spec.CodeConfig, "bridge: %q: is the name of the interface itself", c.Bridge)
	}
	if err := r.ValidIPv6(c.IPv6, c.MTU); err != nil {
		return err
	}
	return c.mac(r).ValidMAC()
}

func (c conf) mac(r *sdk.Request) sdk.Ask {
	return sdk.Asked(sdk.Ask{Key: "runtimeConfig.mac", Value: c.RuntimeConfig.MAC}, r.ArgMAC(),
		sdk.Ask{Key: "mac", Value: c.MAC})
}

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	t := link.Tap{Owner: r.Owner, Name: r.IfName}
	if err := c.validate(r); err != nil {
		return sdk.Answer{}, err
	}
	t.MTU, t.MAC, t.Bridge, t.MultiQueue, t.User, t.Group, t.Label = c.MTU, r.MAC(c.mac(r).Value), c.Bridge, c.MultiQueue, c.Owner, c.Group, c.SELinuxContext
	var p plan.Plan
	if c.SELinuxContext != "" {
		p = append(p, plan.Required(tune.SELinux{Key: "selinuxContext", Value: c.SELinuxContext}))
	}
	// Its addresses come first, so that it tells of them when a program opens it and it begins to carry packets.
	t.Down = r.L3 || c.IPv6 == "off"
	p = append(p, t)
	if c.IPv6 == "off" {
		p = append(p, sysctl.IPv6Off{Link: r.IfName})
	}
	if t.Down && len(r.IPs) == 0 && !r.L3 {
		p = append(p, link.Up{Link: r.IfName})
	}
	return sdk.Answer{Plan: append(p, r.Addressing(sdk.Addressing{Link: r.IfName, Up: true, Idle: true})...)}, nil
}
