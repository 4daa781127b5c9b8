package sdk

import (
	"strings"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/spec"
)

// Cable are the keys of plugins that give a container a cable to the host, beside what kind of cable it is.
type Cable struct {
	// Name of the host-side interface, up to 15 bytes. Only one container at a time can have it; a network of several
	// containers sets it by runtimeConfig or args. STATUS fails with code 50 while an interface has the name that
	// belongs to no container of the network. NetworkManager ignores interfaces whose names begin with veth. Default:
	// veth and 11 characters that derive from the attachment.
	HostInterfaceName string `json:"hostInterfaceName" want:"ifname"`

	// MTU of the interface in bytes, 68 to 65535. "auto": the smallest MTU of the interfaces that default routes of the
	// host use. Default: the kernel's, 1500; with vxlanID of the ovs plugin, what fits into the tunnel.
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

// Validate refuses what the kernel would not take, or would go without effect.
func (c Cable) Validate(r *Request) error {
	if err := r.ValidIPv6(c.IPv6, max(0, int(c.MTU))); err != nil {
		return err
	}
	return c.askedMAC(r).ValidMAC()
}

// ValidIPv6 is about the key ipv6, and about an mtu that IPv6 does not go with; zero is the kernel's.
func (r *Request) ValidIPv6(ipv6 string, mtu int) error {
	switch {
	case mtu != 0 && mtu < 1280 && r.Has6():
		return spec.Errorf(spec.CodeConfig, "mtu: %d: ipam gave an IPv6 address, which takes 1280 bytes at least", mtu)
	case ipv6 == "off" && r.Has6():
		return spec.Errorf(spec.CodeConfig, "ipv6: \"off\": ipam gave an IPv6 address; remove one of the two")
	}
	return nil
}

// An Ask is a value, and the key or the variable that asks for it.
type Ask struct{ Key, Value string }

// Asked is the first of asks, in order of precedence, that says anything.
func Asked(asks ...Ask) Ask {
	for _, a := range asks {
		if a.Value != "" {
			return a
		}
	}
	return Ask{}
}

// ArgMAC is the MAC of CNI_ARGS.
func (r *Request) ArgMAC() Ask {
	value, _ := r.Arg("MAC")
	return Ask{"CNI_ARGS: MAC", value}
}

// ValidMAC is nil where no address is asked for, or one that a link can have.
func (a Ask) ValidMAC() error {
	if a.Value == "" {
		return nil
	}
	return resource.ValidMAC(a.Key, a.Value)
}

// askedMAC is the address that is asked for the container's end.
func (c Cable) askedMAC(r *Request) Ask {
	return Asked(Ask{"runtimeConfig.mac", c.RuntimeConfig.MAC}, Ask{"args.cni.mac", c.Args.CNI.MAC}, r.ArgMAC())
}

// MAC is the address of the container's end.
func (c Cable) MAC(r *Request) string { return r.MAC(strings.ToLower(c.askedMAC(r).Value)) }

// HostName is the name of the host's end, and what has to hold before anything is made: a name that was chosen is
// free, or this attachment's already.
func (c Cable) HostName(r *Request) (name string, p plan.Plan, err error) {
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
