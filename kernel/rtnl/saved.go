package rtnl

import (
	"cmp"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Saved is an address or a route with all attributes that the kernel has listed. RestoreAddr and RestoreRoute
// create it again.
type Saved []byte

// SaveAddrs returns the permanent addresses of a link, without those that the kernel creates itself.
func SaveAddrs(ns *kernel.NS, index int) (list []Saved, err error) {
	msgs, err := addrs(ns, index)
	for _, m := range msgs {
		a := parseAddr(m)
		if ip := a.Prefix.Addr(); !a.Dynamic && !(ip.Is6() && ip.IsLinkLocalUnicast()) {
			list = append(list, m)
		}
	}
	return list, err
}

// RestoreAddr creates a saved address on the link with that index. The error is EEXIST if the address exists.
func RestoreAddr(ns *kernel.NS, index int, s Saved) error {
	m := slices.Clone(s)
	if len(m) < unix.SizeofIfAddrmsg {
		return unix.EINVAL
	}
	put32(m[4:], uint32(index))
	err := Make(ns, Message{unix.RTM_NEWADDR, m}, Exclusive)
	return netlink.About(err, "add address %v", parseAddr(m).Prefix)
}

// SaveRoutes returns the routes through a link that the kernel has not created itself. A route comes before the
// routes whose gateways it leads to.
func SaveRoutes(ns *kernel.NS, index int) (list []Saved, err error) {
	for _, family := range []uint8{IPv4, IPv6} {
		msgs, err := routes(ns, RouteFilter{Family: family, Link: index})
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			r := parseRoute(m)
			if len(r) != 1 || r[0].Link != index || r[0].Type != Unicast || r[0].Protocol <= unix.RTPROT_KERNEL ||
				r[0].Protocol == ByRA {
				continue
			}
			list = append(list, m)
		}
	}
	slices.SortStableFunc(list, func(a, b Saved) int { return cmp.Compare(hops(a), hops(b)) })
	return list, nil
}

func hops(s Saved) int {
	if r := parseRoute(s); len(r) == 1 && r[0].Via.IsValid() {
		return 1
	}
	return 0
}

// RestoreRoute creates a saved route through the link with that index. The error is EEXIST if there is a route with
// the same destination and metric.
func RestoreRoute(ns *kernel.NS, index int, s Saved) error {
	m := slices.Clone(s)
	if len(m) < unix.SizeofRtMsg {
		return unix.EINVAL
	}
	put32(m[8:], netlink.U32(m[8:])&unix.RTNH_F_ONLINK) // the others say how it was
	netlink.EachAttr(m[unix.SizeofRtMsg:], func(kind uint16, v []byte) {
		if kind == unix.RTA_OIF {
			put32(v, uint32(index))
		}
	})
	err := Make(ns, Message{unix.RTM_NEWROUTE, m}, Exclusive)
	return netlink.About(err, "add route %v", parseRoute(m)[0].Dst)
}
