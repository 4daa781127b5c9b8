package keys

import (
	"strings"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Cable has the keys that are common to plugins that connect a container to the host by a veth pair.
type Cable struct {
	// Name of the host-side interface, up to 15 bytes. Only one container at a time can have it; a network of several
	// containers sets it by runtimeConfig or args. STATUS fails with code 50 while an interface has the name that
	// belongs to no container of the network. NetworkManager ignores interfaces whose names begin with veth. Default:
	// veth and 11 characters that derive from the attachment.
	HostInterfaceName string `json:"hostInterfaceName" want:"ifname"`

	// MTU of the interface in bytes, 68 to 65535. "auto": the smallest MTU of the interfaces that default routes of the
	// host use; with ipam cluster, that of the way to other nodes. Default: the kernel's, 1500; with vxlanID of the ovs
	// plugin, what fits into the tunnel.
	MTU resource.MTU `json:"mtu" want:"0|68..65535 bytes|auto"`
	// "off" turns off IPv6 on the container interface. Default: IPv6 is on.
	IPv6 string `json:"ipv6" want:"off"`

	RuntimeConfig struct {
		// MAC of the container interface, set by the runtime (clause K6). Takes precedence over args and CNI_ARGS.
		MAC string `json:"mac" want:"mac"`
		// Name of the host-side interface. Takes precedence over args, and that over hostInterfaceName of the network.
		HostInterfaceName string `json:"hostInterfaceName" want:"ifname"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			// MAC of the container interface. Takes precedence over MAC of CNI_ARGS.
			MAC string `json:"mac" want:"mac"`
			// Name of the host-side interface.
			HostInterfaceName string `json:"hostInterfaceName" want:"ifname"`
		} `json:"cni"`
	} `json:"args"`
}

// LinkMTU returns the MTU for the links of the attachment.
func (c Cable) LinkMTU(r *sdk.Request) resource.MTU {
	if c.MTU == resource.AutoMTU && r.PathMTU != 0 {
		return resource.MTU(r.PathMTU)
	}
	return c.MTU
}

// Validate returns an error with code 7 for keys that the kernel would refuse or that contradict the addresses of r.
func (c Cable) Validate(r *sdk.Request) error {
	if err := ValidIPv6(r, c.IPv6, max(0, int(c.MTU))); err != nil {
		return err
	}
	return c.askedMAC(r).ValidMAC()
}

// askedMAC returns the MAC that the runtime or the configuration sets for the container interface.
func (c Cable) askedMAC(r *sdk.Request) Ask {
	return Asked(Ask{"runtimeConfig.mac", c.RuntimeConfig.MAC}, Ask{"args.cni.mac", c.Args.CNI.MAC}, ArgMAC(r))
}

// MAC returns the MAC of the container interface: a configured one, else one that derives from the attachment.
func (c Cable) MAC(r *sdk.Request) string { return r.MAC(strings.ToLower(c.askedMAC(r).Value)) }

// HostName returns the name of the host-side interface. If the name is configured, p requires that it is free or
// belongs to this attachment already.
func (c Cable) HostName(r *sdk.Request) (name string, p plan.Plan, err error) {
	chosen := Asked(Ask{"runtimeConfig.hostInterfaceName", c.RuntimeConfig.HostInterfaceName},
		Ask{"args.cni.hostInterfaceName", c.Args.CNI.HostInterfaceName}, Ask{"hostInterfaceName", c.HostInterfaceName})
	err = spec.ValidIfName(chosen.Value)
	switch {
	case chosen.Value == "":
		return r.LinkName("veth"), nil, nil
	case err != nil:
		return "", nil, spec.Errorf(spec.CodeConfig, "%s: %q: %w", chosen.Key, chosen.Value, err)
	}
	return chosen.Value, plan.Plan{plan.Required(link.HostName{Owner: r.Owner, Name: chosen.Value,
		Key: chosen.Key})}, nil
}
