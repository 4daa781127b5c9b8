package kernel

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Route is a route, or one next hop of a route that has several.
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

// What the kernel calls the values that a Route is likely to have.
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

// A RouteFilter says which routes Routes is to list; zero fields do not count.
type RouteFilter struct {
	Family   uint8 // IPv4 or IPv6, never zero
	Table    int
	Link     int
	Protocol uint8
}

// Routes lists the routes that pass the filter.
func (ns *NS) Routes(f RouteFilter) ([]Route, error) {
	msgs, err := ns.routes(f)
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
func (ns *NS) routes(f RouteFilter) (list [][]byte, err error) {
	msgs, err := ns.dump(unix.RTM_NEWROUTE, func() *nl.NetlinkRequest {
		req := newRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: f.Family, Protocol: f.Protocol}})
		if f.Table != 0 {
			req.AddData(attrU32(unix.RTA_TABLE, uint32(f.Table)))
		}
		if f.Link != 0 {
			req.AddData(attrU32(unix.RTA_OIF, uint32(f.Link)))
		}
		return req
	})
	if is(err, unix.ENOENT, unix.ENODEV) { // a table that nobody has used yet; a link that is gone
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, m := range msgs {
		// What is cloned is no route, but what one destination learnt (its path's MTU).
		if len(m) >= unix.SizeofRtMsg && u32(m[8:])&unix.RTM_F_CLONED == 0 {
			list = append(list, m)
		}
	}
	return list, nil
}

// RouteTo is the route that packets to dst take.
func (ns *NS) RouteTo(dst netip.Addr) (Route, error) { return ns.RouteFor(Packet{Dst: dst}) }

// A Packet is what routing may ask of one. All but the destination may be zero.
type Packet struct {
	Src, Dst         netip.Addr
	In               int // index of the link that it comes in by; else the namespace sends it
	Mark             uint32
	Proto            byte
	SrcPort, DstPort uint16
}

// RouteFor is the route that a packet takes. Of one that comes in by a link the kernel's error is what it would do:
// EXDEV or EINVAL where rp_filter drops it, EHOSTUNREACH where it is not forwarded. IPv6 does not look at either.
func (ns *NS) RouteFor(p Packet) (Route, error) {
	req := newRequest(unix.RTM_GETROUTE, 0)
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{Family: family(p.Dst), Dst_len: uint8(p.Dst.BitLen())}}
	req.AddData(msg)
	req.AddData(attrIP(unix.RTA_DST, p.Dst))
	if p.Src.IsValid() {
		msg.Src_len = uint8(p.Src.BitLen())
		req.AddData(attrIP(unix.RTA_SRC, p.Src))
	}
	if p.In != 0 {
		req.AddData(attrU32(unix.RTA_IIF, uint32(p.In)))
	}
	if p.Mark != 0 {
		req.AddData(attrU32(unix.RTA_MARK, p.Mark))
	}
	if p.Proto == TCP || p.Proto == UDP {
		req.AddData(nl.NewRtAttr(unix.RTA_IP_PROTO, []byte{p.Proto}))
		if p.SrcPort != 0 {
			req.AddData(nl.NewRtAttr(unix.RTA_SPORT, binary.BigEndian.AppendUint16(nil, p.SrcPort)))
		}
		if p.DstPort != 0 {
			req.AddData(nl.NewRtAttr(unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, p.DstPort)))
		}
	}
	msgs, err := ns.Call(req, unix.RTM_NEWROUTE)
	if err == nil && len(msgs) > 0 {
		if list := parseRoute(msgs[0]); len(list) > 0 {
			return list[0], nil
		}
	}
	return Route{}, fmt.Errorf("route to %v: %w", p.Dst, cmp.Or(err, error(unix.ENETUNREACH)))
}

func parseRoute(b []byte) []Route {
	if len(b) < unix.SizeofRtMsg {
		return nil
	}
	r := Route{Table: int(b[4]), Protocol: b[5], Scope: b[6], Type: b[7], OnLink: u32(b[8:])&unix.RTNH_F_ONLINK != 0}
	zero := netip.IPv4Unspecified()
	if b[0] == unix.AF_INET6 {
		zero = netip.IPv6Unspecified()
	}
	r.Dst = netip.PrefixFrom(zero, int(b[1]))
	var hops []Route
	EachAttr(b[unix.SizeofRtMsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.RTA_DST:
			if a, ok := netip.AddrFromSlice(v); ok {
				r.Dst = netip.PrefixFrom(a, int(b[1]))
			}
		case unix.RTA_TABLE:
			r.Table = int(u32(v))
		case unix.RTA_OIF:
			r.Link = int(u32(v))
		case unix.RTA_GATEWAY:
			r.Via, _ = netip.AddrFromSlice(v)
		case unix.RTA_VIA:
			r.Via, _ = netip.AddrFromSlice(v[min(2, len(v)):])
		case unix.RTA_PREFSRC:
			r.Src, _ = netip.AddrFromSlice(v)
		case unix.RTA_PRIORITY:
			r.Priority = int(u32(v))
		case unix.RTA_METRICS:
			EachAttr(v, func(kind uint16, v []byte) {
				switch kind {
				case unix.RTAX_MTU:
					r.MTU = int(u32(v))
				case unix.RTAX_ADVMSS:
					r.AdvMSS = int(u32(v))
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
		n := int(u16(b))
		if n < unix.SizeofRtNexthop || n > len(b) {
			break
		}
		h := Route{Link: int(u32(b[4:])), OnLink: b[2]&unix.RTNH_F_ONLINK != 0, Weight: int(b[3]) + 1}
		EachAttr(b[unix.SizeofRtNexthop:n], func(kind uint16, v []byte) {
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

// AddRoute adds a route. With alone, a route to the same destination of the same metric is EEXIST, whatever
// its next hop; without, only an equal one is.
func (ns *NS) AddRoute(r Route, alone bool) error {
	flags := unix.NLM_F_CREATE | unix.NLM_F_ACK
	if alone {
		flags |= unix.NLM_F_EXCL
	}
	return ns.tell(ns.routeRequest(unix.RTM_NEWROUTE, flags, r))
}

// DelRoute deletes a route; one that is not there is deleted.
func (ns *NS) DelRoute(r Route) error {
	if err := ns.tell(ns.routeRequest(unix.RTM_DELROUTE, unix.NLM_F_ACK, r)); err != nil &&
		!is(err, unix.ESRCH, unix.ENODEV) {
		return fmt.Errorf("delete route %v: %w", r.Dst, err)
	}
	return nil
}

func (ns *NS) routeRequest(proto, flags int, r Route) *nl.NetlinkRequest {
	req := newRequest(proto, flags)
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family: family(r.Dst.Addr()), Dst_len: uint8(r.Dst.Bits()), Scope: r.Scope,
		Protocol: r.Protocol, Type: cmp.Or(r.Type, Unicast),
	}}
	if r.OnLink {
		msg.Flags |= unix.RTNH_F_ONLINK
	}
	req.AddData(msg)
	req.AddData(attrU32(unix.RTA_TABLE, uint32(r.Table)))
	if r.Link != 0 { // a prohibit route leads nowhere
		req.AddData(attrU32(unix.RTA_OIF, uint32(r.Link)))
	}
	if r.Dst.Bits() > 0 {
		req.AddData(attrIP(unix.RTA_DST, r.Dst.Masked().Addr()))
	}
	if r.Via.IsValid() {
		req.AddData(via(r.Dst, r.Via))
	}
	if r.Src.IsValid() {
		req.AddData(attrIP(unix.RTA_PREFSRC, r.Src))
	}
	if r.Priority != 0 {
		req.AddData(attrU32(unix.RTA_PRIORITY, uint32(r.Priority)))
	}
	if r.MTU != 0 || r.AdvMSS != 0 {
		metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
		if r.MTU != 0 {
			metrics.AddRtAttr(unix.RTAX_MTU, nl.Uint32Attr(uint32(r.MTU)))
		}
		if r.AdvMSS != 0 {
			metrics.AddRtAttr(unix.RTAX_ADVMSS, nl.Uint32Attr(uint32(r.AdvMSS)))
		}
		req.AddData(metrics)
	}
	return req
}

// via is the attribute of a next hop.
func via(dst netip.Prefix, router netip.Addr) *nl.RtAttr {
	if router.Is4() == dst.Addr().Is4() {
		return attrIP(unix.RTA_GATEWAY, router)
	}
	// RFC 5549: an IPv4 route by an IPv6 router
	return nl.NewRtAttr(unix.RTA_VIA, append(nl.Uint16Attr(uint16(family(router))), router.AsSlice()...))
}

// EgressMTU is the least MTU on the way out by a default route of either family, or zero where there is no
// default route.
func (ns *NS) EgressMTU() (int, error) {
	least := 0
	for _, fam := range []uint8{IPv4, IPv6} {
		routes, err := ns.Routes(RouteFilter{Family: fam, Table: MainTable})
		if err != nil {
			return 0, err
		}
		for _, r := range routes {
			if r.Dst.Bits() != 0 || r.Type != Unicast || r.Link == 0 {
				continue
			}
			l, err := ns.LinkAt(r.Link)
			if err != nil {
				return 0, err
			}
			for _, mtu := range []int{l.MTU, r.MTU} {
				if mtu > 0 && (least == 0 || mtu < least) {
					least = mtu
				}
			}
		}
	}
	return least, nil
}
