// Package macvlan gives a container an interface with its own MAC address on an interface of the host, so that it is a
// neighbour of the machines on that network. The host and the container cannot reach each other by that interface, so
// ports that the plugin portmap publishes are not reachable.
package macvlan

import (
	"github.com/fairlead-cni/fairlead/internal/keys"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/sdk"
)

// Plugin is the macvlan plugin.
var Plugin = sdk.Interface("macvlan", "gives a container an interface with its own MAC on a host interface",
	want, func(conf) []plan.Kind {
		return []plan.Kind{link.ContainerLink("macvlan")}
	}).KnowsArgs("MAC")

type conf struct{ keys.Macvlan }

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	p, err := c.Plan(r, false)
	return sdk.Answer{Plan: p}, err
}
