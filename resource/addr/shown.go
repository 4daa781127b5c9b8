package addr

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
)

// Shown returns the MAC address and the MTU that the kernel shows for a link.
func Shown(f resource.Iface, w *kernel.World) (mac string, mtu int, err error) {
	_, l, err := f.Where.Link(w, f.Name)
	if err != nil {
		return "", 0, err
	}
	return l.MAC.String(), l.MTU, nil
}

// Addresses returns the addresses that the kernel shows for a link, without link-local ones.
func Addresses(f resource.Iface, w *kernel.World) ([]netip.Prefix, error) {
	ns, l, err := f.Where.Link(w, f.Name)
	if err != nil {
		return nil, err
	}
	addrs, err := rtnl.Addrs(ns, l.Index)
	if err != nil {
		return nil, fmt.Errorf("%s%s: %w", f.Where, f.Name, err)
	}
	var ps []netip.Prefix
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			ps = append(ps, a.Prefix)
		}
	}
	return ps, nil
}
