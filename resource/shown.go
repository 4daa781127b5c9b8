package resource

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/vishvananda/netlink"
)

// Shown is the MAC and the MTU that the kernel shows of a link.
func Shown(f Iface, w *kernel.World) (mac string, mtu int, err error) {
	l, err := look(f, w)
	if err != nil {
		return "", 0, err
	}
	return l.Attrs().HardwareAddr.String(), l.Attrs().MTU, nil
}

// Addresses are those that the kernel shows on a link, without the link-local ones.
func Addresses(f Iface, w *kernel.World) ([]netip.Prefix, error) {
	l, err := look(f, w)
	if err != nil {
		return nil, err
	}
	ns, err := f.Where.ns(w)
	if err != nil {
		return nil, err
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

// Look is the type of a link on the host and the name of its master. A missing link is os.ErrNotExist.
func Look(w *kernel.World, name string) (kind, master string, err error) {
	l, err := look(Iface{Host, name}, w)
	if err != nil || l.Attrs().MasterIndex == 0 {
		if err != nil {
			return "", "", err
		}
		return l.Type(), "", nil
	}
	m, err := w.Host.LinkByIndex(l.Attrs().MasterIndex)
	if err != nil {
		return "", "", fmt.Errorf("look up the master of host/%s: %w", name, err)
	}
	return l.Type(), m.Attrs().Name, nil
}

func look(f Iface, w *kernel.World) (netlink.Link, error) {
	ns, err := f.Where.ns(w)
	if err != nil {
		return nil, err
	}
	l, err := ns.LinkByName(f.Name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		err = os.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("look up link %s%s: %w", f.Where, f.Name, err)
	}
	return l, nil
}
