package sdk

import (
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// HostEnd is the key by which a network, or a container's arguments, name the link that a container has on the host.
type HostEnd struct {
	HostInterfaceName string `json:"hostInterfaceName"` // of the link on the host that leads to the container: up to 15 bytes, and for one container at a time, so a network of several is told it by runtimeConfig or args; default: veth and 11 characters that derive from the attachment. NetworkManager leaves names alone that begin with veth
}

// HostName is the name of the host's end, and what has to hold before anything is made: a name that was chosen is
// free, or this attachment's already. The choices are those of runtimeConfig, of args.cni and of the configuration.
func (r *Request) HostName(runtime, args, conf HostEnd) (name string, p plan.Plan, err error) {
	name = r.LinkName("veth")
	chosen := First(runtime.HostInterfaceName, args.HostInterfaceName, conf.HostInterfaceName)
	key := "hostInterfaceName"
	switch {
	case chosen == "":
		return name, nil, nil
	case runtime.HostInterfaceName != "":
		key = "runtimeConfig.hostInterfaceName"
	case args.HostInterfaceName != "":
		key = "args.cni.hostInterfaceName"
	}
	if err := spec.ValidIfName(chosen); err != nil {
		if r.Verb == "DEL" { // it is remembered
			return name, nil, nil
		}
		return "", nil, spec.Errorf(spec.CodeConfig, "%s: %q: %w", key, chosen, err)
	}
	if r.Verb == "DEL" {
		return chosen, nil, nil
	}
	return chosen, plan.Plan{plan.Required(resource.HostName{Owner: r.Owner, Name: chosen, Key: key})}, nil
}
