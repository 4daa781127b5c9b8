package rtnl

import (
	"cmp"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Route is a route, or one next hop of a route with several next hops.
type Route struct {
	Dst      netip.Prefix
	Via, Src netip.Addr
	Link     int // index
	Priority int // the metric
	Table    int
	Scope    uint8
	Protocol uint8
	Type     uint8 // zero in AddRoute and DelRoute: Unicast
	OnLink   bool
	MTU      int
	AdvMSS   int
	Weight   int // of one next hop of several; zero where there is one alone
}

// Default reports whether the route is a default route, or a half of one: a VPN adds 0.0.0.0/1 and 128.0.0.0/1 to come
// before a default route without replacing it.
func (r Route) Default() bool { return r.Dst.IsValid() && r.Dst.Bits() <= 1 }

// The kernel's names for the usual values of a Route.
const (
	MainTable = unix.RT_TABLE_MAIN
	ScopeLink = unix.RT_SCOPE_LINK
	ByRA      = unix.RTPROT_RA // the Protocol of a route that a router advertised
	ByBoot    = unix.RTPROT_BOOT
	ByKernel  = unix.RTPROT_KERNEL // of one that came with an address of the link
	Unicast   = unix.RTN_UNICAST
	Local     = unix.RTN_LOCAL

	ProhibitRoute = unix.RTN_PROHIBIT // the Type of a route that answers "administratively prohibited"
)

// The families of a RouteFilter.
const (
	IPv4 = unix.AF_INET
	IPv6 = unix.AF_INET6
)

// A RouteFilter selects routes for Routes. A zero field matches every route.
type RouteFilter struct {
	Family   uint8 // IPv4 or IPv6, never zero
	Table    int
	Link     int
	Protocol uint8
}

// Routes returns the routes that pass the filter.
func Routes(ns *kernel.NS, f RouteFilter) ([]Route, error) {
	msgs, err := routes(ns, f)
	var list []Route
	for _, m := range msgs {
		for _, r := range parseRoute(m) {
			if (f.Table == 0 || r.Table == f.Table) && (f.Link == 0 || r.Link == f.Link) &&
				(f.Protocol == 0 || r.Protocol == f.Protocol) {
				list = append(list, r)
			}
		}
	}
	return list, err
}

// routes are the kernel's words for them. It may leave the filter to who asks.
func routes(ns *kernel.NS, f RouteFilter) (list [][]byte, err error) {
	req := newRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP, unix.RtMsg{Family: f.Family, Protocol: f.Protocol})
	req.Opt32(unix.RTA_TABLE, uint32(f.Table))
	req.Opt32(unix.RTA_OIF, uint32(f.Link))
	msgs, err := Dump(ns, req, unix.RTM_NEWROUTE)
	err = netlink.Except(err, unix.ENOENT, unix.ENODEV) // a table without a route; a link that is gone
	for _, m := range msgs {
		// What is cloned is no route, but what one destination learnt (its path's MTU).
		if len(m) >= unix.SizeofRtMsg && netlink.U32(m[8:])&unix.RTM_F_CLONED == 0 {
			list = append(list, m)
		}
	}
	return list, netlink.About(err, "list routes")
}

func parseRoute(b []byte) []Route {
	if len(b) < unix.SizeofRtMsg {
		return nil
	}
	r := Route{Table: int(b[4]), Protocol: b[5], Scope: b[6], Type: b[7],
		OnLink: netlink.U32(b[8:])&unix.RTNH_F_ONLINK != 0}
	zero := netip.IPv4Unspecified()
	if b[0] == unix.AF_INET6 {
		zero = netip.IPv6Unspecified()
	}
	r.Dst = netip.PrefixFrom(zero, int(b[1]))
	var hops []Route
	netlink.EachAttr(b[unix.SizeofRtMsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.RTA_DST:
			if a, ok := netip.AddrFromSlice(v); ok {
				r.Dst = netip.PrefixFrom(a, int(b[1]))
			}
		case unix.RTA_TABLE:
			r.Table = int(netlink.U32(v))
		case unix.RTA_OIF:
			r.Link = int(netlink.U32(v))
		case unix.RTA_GATEWAY:
			r.Via, _ = netip.AddrFromSlice(v)
		case unix.RTA_VIA:
			r.Via, _ = netip.AddrFromSlice(v[min(2, len(v)):])
		case unix.RTA_PREFSRC:
			r.Src, _ = netip.AddrFromSlice(v)
		case unix.RTA_PRIORITY:
			r.Priority = int(netlink.U32(v))
		case unix.RTA_METRICS:
			netlink.EachAttr(v, func(kind uint16, v []byte) {
				switch kind {
				case unix.RTAX_MTU:
					r.MTU = int(netlink.U32(v))
				case unix.RTAX_ADVMSS:
					r.AdvMSS = int(netlink.U32(v))
				}
			})
		case unix.RTA_MULTIPATH:
			hops = parseHops(v)
		}
	})
	if hops == nil {
		return []Route{r}
	}
	for i, h := range hops {
		hops[i] = r
		hops[i].Link, hops[i].Via, hops[i].OnLink, hops[i].Weight = h.Link, h.Via, h.OnLink, h.Weight
	}
	return hops
}

func parseHops(b []byte) (hops []Route) {
	for len(b) >= unix.SizeofRtNexthop {
		n := int(netlink.U16(b))
		if n < unix.SizeofRtNexthop || n > len(b) {
			break
		}
		h := Route{Link: int(netlink.U32(b[4:])), OnLink: b[2]&unix.RTNH_F_ONLINK != 0, Weight: int(b[3]) + 1}
		netlink.EachAttr(b[unix.SizeofRtNexthop:n], func(kind uint16, v []byte) {
			switch kind {
			case unix.RTA_GATEWAY:
				h.Via, _ = netip.AddrFromSlice(v)
			case unix.RTA_VIA:
				h.Via, _ = netip.AddrFromSlice(v[min(2, len(v)):])
			}
		})
		hops = append(hops, h)
		b = b[min((n+3)&^3, len(b)):]
	}
	return hops
}

// AddRoute adds a route. If exclusive is true, the error is EEXIST for any existing route with the same destination and
// metric. If exclusive is false, the error is EEXIST only for an equal route.
func AddRoute(ns *kernel.NS, r Route, exclusive bool) error {
	flags := unix.NLM_F_CREATE | unix.NLM_F_ACK
	if exclusive {
		flags |= unix.NLM_F_EXCL
	}
	return Tell(ns, routeRequest(unix.RTM_NEWROUTE, flags, r))
}

// DelRoute deletes a route. It is no error if the route does not exist.
func DelRoute(ns *kernel.NS, r Route) error {
	err := Tell(ns, routeRequest(unix.RTM_DELROUTE, unix.NLM_F_ACK, r))
	return netlink.About(netlink.Except(err, unix.ESRCH, unix.ENODEV), "delete route %v", r.Dst)
}

func routeRequest(typ, flags int, r Route) *netlink.Request {
	msg := unix.RtMsg{
		Family: Family(r.Dst.Addr()), Dst_len: uint8(r.Dst.Bits()), Scope: r.Scope,
		Protocol: r.Protocol, Type: cmp.Or(r.Type, Unicast),
	}
	if r.OnLink {
		msg.Flags |= unix.RTNH_F_ONLINK
	}
	req := newRequest(typ, flags, msg)
	req.Host32(unix.RTA_TABLE, uint32(r.Table))
	req.Opt32(unix.RTA_OIF, uint32(r.Link)) // a prohibit route leads nowhere
	if r.Dst.Bits() > 0 {
		req.Attr(unix.RTA_DST, r.Dst.Masked().Addr().AsSlice()...)
	}
	if r.Via.IsValid() {
		via(&req.Buffer, r.Dst, r.Via)
	}
	req.OptAttr(unix.RTA_PREFSRC, r.Src.AsSlice()...)
	req.Opt32(unix.RTA_PRIORITY, uint32(r.Priority))
	if r.MTU != 0 || r.AdvMSS != 0 {
		req.Nest(unix.RTA_METRICS, func() {
			req.Opt32(unix.RTAX_MTU, uint32(r.MTU))
			req.Opt32(unix.RTAX_ADVMSS, uint32(r.AdvMSS))
		})
	}
	return req
}

// via adds the next hop of a route.
func via(b *netlink.Buffer, dst netip.Prefix, router netip.Addr) {
	if router.Is4() == dst.Addr().Is4() {
		b.Attr(unix.RTA_GATEWAY, router.AsSlice()...)
		return
	}
	// RFC 5549: an IPv4 route by an IPv6 router
	b.Attr(unix.RTA_VIA, append(netlink.Struct(uint16(Family(router))), router.AsSlice()...)...)
}
