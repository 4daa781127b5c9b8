// Package tap gives a container an interface whose other end is a program in the container: a hypervisor, or a
// userspace network stack.
package tap

import (
	"github.com/fairlead-cni/fairlead/internal/keys"
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
	// Let a program open the tap several times, once for each queue. Default: false.
	MultiQueue bool `json:"multiQueue"`
	// MTU of the interface in bytes, 68 to 65521. Default: the kernel's, 1500.
	MTU int `json:"mtu" want:"0|68..65521 bytes"`
	// MAC of the interface. Default: derived from the attachment.
	MAC string `json:"mac" want:"mac"`
	// Number of the user who may open the tap. Default: any user.
	Owner *uint32 `json:"owner" want:"0..4294967294" says:"the number of a user, 0 to 4294967294"`
	// Number of the group whose members may open the tap. Default: any group.
	Group *uint32 `json:"group" want:"0..4294967294" says:"the number of a group, 0 to 4294967294"`
	// SELinux context in which the tap is made, so that a confined program may open it. Default: the kernel's
	// choice.
	SELinuxContext string `json:"selinuxContext"`
	// Name of a bridge in the container's network namespace that the tap becomes a port of. Default: none.
	Bridge string `json:"bridge" want:"ifname"`
	// "off" turns off IPv6 on the interface. Default: IPv6 is on.
	IPv6 string `json:"ipv6" want:"off"`

	RuntimeConfig struct {
		// MAC of the interface, set by the runtime (clause K6). Takes precedence over MAC of CNI_ARGS, and that over
		// mac.
		MAC string `json:"mac" want:"mac"`
	} `json:"runtimeConfig"`
}

func (c conf) validate(r *sdk.Request) error {
	switch {
	case c.Bridge == r.IfName && c.Bridge != "":
		return spec.Errorf(spec.CodeConfig, "bridge: %q: is the name of the interface itself", c.Bridge)
	}
	if err := keys.ValidIPv6(r, c.IPv6, c.MTU); err != nil {
		return err
	}
	return c.mac(r).ValidMAC()
}

func (c conf) mac(r *sdk.Request) keys.Ask {
	return keys.Asked(keys.Ask{Key: "runtimeConfig.mac", Value: c.RuntimeConfig.MAC}, keys.ArgMAC(r),
		keys.Ask{Key: "mac", Value: c.MAC})
}

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	t := link.Tap{Inside: link.Inside{Owner: r.Owner, Name: r.IfName}}
	if err := c.validate(r); err != nil {
		return sdk.Answer{}, err
	}
	t.MTU, t.MAC, t.Bridge, t.MultiQueue, t.User, t.Group, t.Label = c.MTU, r.MAC(c.mac(r).Value), c.Bridge,
		c.MultiQueue, c.Owner, c.Group, c.SELinuxContext
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
