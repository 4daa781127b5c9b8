// Package macvlan gives a container an interface with a MAC address of its own on a link of the host, so that it is a
// neighbour of the machines there. The host itself cannot reach it by that link, nor it the host,
// so that ports that plugin portmap publishes lead nowhere.
package macvlan

import (
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/sdk"
)

// Plugin is the macvlan plugin.
var Plugin = sdk.Interface("macvlan", "gives a container an interface with a MAC of its own on a link of the host",
	want, func(conf) []plan.Kind {
		return []plan.Kind{link.ContainerLink("macvlan")}
	}).KnowsArgs("MAC")

type conf struct{ sdk.Macvlan }

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	p, err := c.Plan(r, false)
	return sdk.Answer{Plan: p}, err
}
