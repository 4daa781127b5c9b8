package resource

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/vishvananda/netlink"
)

// ErrNoLink says that a link does not exist.
var ErrNoLink = kernel.ErrNoLink

// Shown is the MAC and the MTU that the kernel shows of a link.
func Shown(f Iface, w *kernel.World) (mac string, mtu int, err error) {
	l, err := look(f, w)
	if err != nil {
		return "", 0, err
	}
	return l.MAC.String(), l.MTU, nil
}

// Addresses are those that the kernel shows on a link, without the link-local ones.
func Addresses(f Iface, w *kernel.World) ([]netip.Prefix, error) {
	ns, err := f.Where.ns(w)
	if err != nil {
		return nil, err
	}
	l, err := ns.LinkByName(f.Name)
	if err != nil {
		return nil, fmt.Errorf("link %s%s: %w", f.Where, f.Name, err)
	}
	addrs, err := ns.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s%s: %w", f.Where, f.Name, err)
	}
	var ps []netip.Prefix
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if bits, _ := a.Mask.Size(); ok && !ip.Unmap().IsLinkLocalUnicast() {
			ps = append(ps, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return ps, nil
}

// Look is the type of a link on the host and the name of its master. A missing link is ErrNoLink.
func Look(w *kernel.World, name string) (kind, master string, err error) {
	l, err := look(Iface{Host, name}, w)
	if err != nil || l.Master == 0 {
		if err != nil {
			return "", "", err
		}
		return l.Kind, "", nil
	}
	m, err := w.Host.LinkAt(l.Master)
	if err != nil && !errors.Is(err, ErrNoLink) {
		return "", "", fmt.Errorf("master of host/%s: %w", name, err)
	}
	if m != nil {
		master = m.Name
	}
	return l.Kind, master, nil
}

func look(f Iface, w *kernel.World) (*kernel.Link, error) {
	ns, err := f.Where.ns(w)
	if err != nil {
		return nil, err
	}
	return ns.Link(f.Name)
}
