package sdk

import (
	"slices"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Network is what plans say about a network, so that nobody else reads the keys of plugins.
type Network = resource.Network

// A Segment is a network of layer 2 on the host.
type Segment = resource.Segment

// Foreseen returns what the plan of an interface plugin says about a network before anything is attached to it, and the
// pools of its addresses. Ok is false if the plugin is not of this project, or its addresses are not known.
func Foreseen(all []Plugin, conf *spec.Conf, network, netns string) (n Network, pools []ipam.Set, ok bool) {
	example, pools := Forecast(all, conf)
	i := slices.IndexFunc(all, func(p Plugin) bool { return p.Name == conf.Type })
	if i < 0 || len(pools) == 0 {
		return n, nil, false
	}
	owner := spec.Owner{Network: network, ContainerID: "example", IfName: "eth0"}
	r, err := all[i].NewRequest("ADD", owner, netns, conf, nil)
	if err != nil {
		return n, nil, false // the plugin reports the error
	}
	r.IPs, r.Routes = example.IPs, example.Routes
	answer, _, err := all[i].Plan(conf, r)
	if err != nil {
		return n, nil, false
	}
	return resource.NetworkOf(answer.Plan), pools, true
}
