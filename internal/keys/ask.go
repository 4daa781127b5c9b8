// Package keys has the configuration keys that several plugins share: what they mean, what is wrong with a value, and
// the part of a plan that follows from them.
package keys

import (
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// ValidIPv6 checks the keys ipv6 and mtu (bytes; 0 is the kernel's default) against the addresses of r. The error has
// code 7.
func ValidIPv6(r *sdk.Request, ipv6 string, mtu int) error {
	switch {
	case mtu != 0 && mtu < 1280 && r.Has6():
		return spec.Errorf(spec.CodeConfig, "mtu: %d: ipam gave an IPv6 address, which needs at least 1280 bytes", mtu)
	case ipv6 == "off" && r.Has6():
		return spec.Errorf(spec.CodeConfig, "ipv6: \"off\": ipam gave an IPv6 address; remove one of the two")
	}
	return nil
}

// An Ask is a value together with the key or environment variable that it comes from, for error messages.
type Ask struct{ Key, Value string }

// Asked returns the first of asks, in order of precedence, whose value is not empty.
func Asked(asks ...Ask) Ask {
	for _, a := range asks {
		if a.Value != "" {
			return a
		}
	}
	return Ask{}
}

// ArgMAC returns the value of MAC in CNI_ARGS.
func ArgMAC(r *sdk.Request) Ask {
	value, _ := r.Arg("MAC")
	return Ask{"CNI_ARGS: MAC", value}
}

// ValidMAC returns an error if the value is neither empty nor a MAC address that an interface can have.
func (a Ask) ValidMAC() error {
	if a.Value == "" {
		return nil
	}
	return resource.ValidMAC(a.Key, a.Value)
}
