package rtnl

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/vishvananda/netlink/nl"
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
	if p.Proto == kernel.TCP || p.Proto == kernel.UDP {
		req.AddData(nl.NewRtAttr(unix.RTA_IP_PROTO, []byte{p.Proto}))
		if p.SrcPort != 0 {
			req.AddData(nl.NewRtAttr(unix.RTA_SPORT, binary.BigEndian.AppendUint16(nil, p.SrcPort)))
		}
		if p.DstPort != 0 {
			req.AddData(nl.NewRtAttr(unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, p.DstPort)))
		}
	}
	msgs, err := Call(ns, req, unix.RTM_NEWROUTE)
	if err == nil && len(msgs) > 0 {
		if list := parseRoute(msgs[0]); len(list) > 0 {
			return list[0], nil
		}
	}
	return Route{}, fmt.Errorf("route to %v: %w", p.Dst, cmp.Or(err, error(unix.ENETUNREACH)))
}
