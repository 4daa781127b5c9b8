// Package macvtap gives a program in a container, usually a virtual machine monitor, the packets of an interface with
// its own MAC address on an interface of the host, as a file. The result's socketPath is the path of the file; the
// runtime must give the container access to it. While no program has the file open, the container itself gets the
// packets, as with macvlan.
package macvtap

import (
	"github.com/fairlead-cni/fairlead/internal/keys"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/sdk"
)

// Plugin is the macvtap plugin.
var Plugin = sdk.Interface("macvtap",
	"gives a program the packets of an interface with a MAC of its own on a link of the host", want,
	func(conf) []plan.Kind {
		return []plan.Kind{link.ContainerLink("macvtap")}
	}).KnowsArgs("MAC")

type conf struct{ keys.Macvlan }

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	p, err := c.Plan(r, true)
	return sdk.Answer{Plan: p}, err
}
