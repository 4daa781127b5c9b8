package rtnl

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// RouteTo returns the route that packets of this host to dst take.
func RouteTo(ns *kernel.NS, dst netip.Addr) (Route, error) { return RouteFor(ns, Packet{Dst: dst}) }

// A Packet contains the properties of a packet that routing may use. All but the destination may be zero.
type Packet struct {
	Src, Dst         netip.Addr
	In               int // index of the link that it comes in by; else the namespace sends it
	Mark             uint32
	Proto            byte
	SrcPort, DstPort uint16
}

// RouteFor returns the route that a packet takes. For a packet that comes in through a link, the kernel's error says
// what would happen: EXDEV or EINVAL if rp_filter drops it, EHOSTUNREACH if it is not forwarded. IPv6 checks neither.
func RouteFor(ns *kernel.NS, p Packet) (Route, error) {
	req := newRequest(unix.RTM_GETROUTE, 0, unix.RtMsg{
		Family: Family(p.Dst), Dst_len: uint8(p.Dst.BitLen()), Src_len: uint8(p.Src.BitLen()),
	})
	req.Attr(unix.RTA_DST, p.Dst.AsSlice()...)
	req.OptAttr(unix.RTA_SRC, p.Src.AsSlice()...)
	req.Opt32(unix.RTA_IIF, uint32(p.In))
	req.Opt32(unix.RTA_MARK, p.Mark)
	if p.Proto == kernel.TCP || p.Proto == kernel.UDP {
		req.Attr(unix.RTA_IP_PROTO, p.Proto)
		if p.SrcPort != 0 {
			req.Attr(unix.RTA_SPORT, binary.BigEndian.AppendUint16(nil, p.SrcPort)...)
		}
		if p.DstPort != 0 {
			req.Attr(unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, p.DstPort)...)
		}
	}
	return routeOf(ns, req, p.Dst)
}

// HolderOf returns the index of the link that has an address of the host: the first of them, if several have it. It
// returns 0 if the host lacks the address.
func HolderOf(ns *kernel.NS, a netip.Addr) (int, error) {
	// The entry of the table names the link that has the address. The route that packets take names lo.
	r, err := EntryTo(ns, a)
	if netlink.Is(err, unix.ENETUNREACH, unix.EHOSTUNREACH) || err == nil && r.Type != Local {
		return 0, nil
	}
	return r.Link, err
}

// EntryTo returns the entry of a routing table that decides about packets of this host to dst.
func EntryTo(ns *kernel.NS, dst netip.Addr) (Route, error) {
	req := newRequest(unix.RTM_GETROUTE, 0, unix.RtMsg{Family: Family(dst), Dst_len: uint8(dst.BitLen()),
		Flags: unix.RTM_F_FIB_MATCH})
	req.Attr(unix.RTA_DST, dst.AsSlice()...)
	return routeOf(ns, req, dst)
}

// LacksSubnetRoute reports whether a link has no route to the subnet of its own address, and which other route to that
// subnet stands in its place; nil if there is none. The kernel adds the route with the address, but keeps the address
// if the route is deleted or replaced: then packets to the subnet go elsewhere. A link that is down has no such route,
// and gets it again when it is set up.
func LacksSubnetRoute(ns *kernel.NS, index int, own netip.Prefix) (lacks bool, instead *Route, err error) {
	if own.IsSingleIP() {
		return false, nil, nil
	}
	subnet := own.Masked()
	leads := func(r Route) bool {
		return r.Dst == subnet && r.Link == index && r.Type == Unicast && !r.Via.IsValid()
	}
	// This answers in nearly all cases. The rest lists all routes.
	other := subnet.Addr().Next()
	if other == own.Addr() {
		other = other.Next()
	}
	if r, err := EntryTo(ns, other); err == nil && leads(r) {
		return false, nil, nil
	}
	routes, err := Routes(ns, RouteFilter{Family: Family(subnet.Addr())})
	if err != nil || slices.ContainsFunc(routes, leads) {
		return false, nil, err
	}
	l, err := LinkByIndex(ns, index)
	if err != nil || !l.Up {
		return false, nil, err
	}
	// The kernel takes a second IPv6 route to the subnet beside this one.
	stands := func(r Route) bool { return r.Dst == subnet && r.Table == MainTable && subnet.Addr().Is4() }
	if i := slices.IndexFunc(routes, stands); i >= 0 {
		instead = &routes[i]
	}
	return true, instead, nil
}

// Leads says where a route leads, as in "via 192.0.2.1 dev eth0" or "nowhere".
func (r Route) Leads(ns *kernel.NS) string {
	l, err := LinkByIndex(ns, r.Link)
	if err != nil || r.Type != Unicast && r.Type != Local {
		return "nowhere"
	}
	if r.Via.IsValid() {
		return "via " + r.Via.String() + " dev " + l.Name
	}
	return "dev " + l.Name
}

// routeOf sends a question for the route to dst.
func routeOf(ns *kernel.NS, req *netlink.Request, dst netip.Addr) (Route, error) {
	msgs, err := Call(ns, req, unix.RTM_NEWROUTE)
	if err == nil && len(msgs) > 0 {
		if list := parseRoute(msgs[0]); len(list) > 0 {
			return list[0], nil
		}
	}
	return Route{}, fmt.Errorf("route to %v: %w", dst, cmp.Or(err, error(unix.ENETUNREACH)))
}
