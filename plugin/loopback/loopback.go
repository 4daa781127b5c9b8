// Package loopback sets the container's lo up. The kernel gives lo its addresses, so ipam has no effect here, and the
// plugin warns of it.
package loopback

import (
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/sdk"
)

// Plugin is the loopback plugin. It has no keys of its own, and its interface is lo whatever CNI_IFNAME
// says.
var Plugin = sdk.Interface("loopback", "sets the container's lo up", want, func(conf) []plan.Kind {
	return []plan.Kind{link.LoopbackKind()}
}).Observes()

type conf struct{}

func want(conf, *sdk.Request) (sdk.Answer, error) {
	return sdk.Answer{Plan: plan.Plan{link.Up{Link: "lo"}}}, nil
}
