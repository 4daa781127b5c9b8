// Package dummy gives a container an interface with addresses and without a connection. The addresses are reached by
// routes to the container's other interfaces.
package dummy

import (
	"github.com/fairlead-cni/fairlead/internal/keys"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/sdk"
)

// Plugin is the dummy plugin.
var Plugin = sdk.Interface("dummy", "gives a container an interface with addresses and without a connection", want,
	func(conf) []plan.Kind {
		return []plan.Kind{link.ContainerLink("dummy")}
	})

type conf struct {
	// MTU of the interface in bytes, at least 68. Default: the kernel's, 1500.
	MTU int `json:"mtu" want:"0|68..2147483647" says:"68 bytes at least, or none for 1500"`
	// MAC of the interface. Default: derived from the attachment.
	MAC string `json:"mac" want:"mac"`
	// "off" turns off IPv6 on the interface. Default: IPv6 is on.
	IPv6 string `json:"ipv6" want:"off"`

	RuntimeConfig struct {
		// MAC of the interface, set by the runtime (clause K6). Takes precedence over mac.
		MAC string `json:"mac" want:"mac"`
	} `json:"runtimeConfig"`
}

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	d := link.Dummy{Inside: link.Inside{Owner: r.Owner, Name: r.IfName}}
	mac := keys.Asked(keys.Ask{Key: "runtimeConfig.mac", Value: c.RuntimeConfig.MAC},
		keys.Ask{Key: "mac", Value: c.MAC})
	if err := keys.ValidIPv6(r, c.IPv6, c.MTU); err != nil {
		return sdk.Answer{}, err
	}
	if err := mac.ValidMAC(); err != nil {
		return sdk.Answer{}, err
	}
	d.MTU, d.MAC = c.MTU, r.MAC(mac.Value)
	p := plan.Plan{d}
	if c.IPv6 == "off" { // before the link is up, so that it never gets an address of its own
		d.Down = true
		p = plan.Plan{d, sysctl.IPv6Off{Link: r.IfName}, link.Up{Link: r.IfName}}
	}
	return sdk.Answer{Plan: append(p, r.Addressing(sdk.Addressing{Link: r.IfName, NoDAD: true})...)}, nil
}
