package tc

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// A Filter is a u32 filter of a qdisc: which packets it matches and where it sends them.
type Filter struct {
	Kind     string // set in what the kernel answers
	Parent   uint32 // the qdisc
	Pref     uint16 // lower ones are asked first; all of one number are of one protocol
	Protocol uint16 // ETH_P_ALL, ETH_P_IP or ETH_P_IPV6
	Sel      []byte // what of the packet is looked at: AnyPacket or an AddressMatch
	ClassID  uint32 // the class it goes to
	Redirect int    // or the link that it is sent out by instead
	Program  string // the name of a BPF program, as it was loaded
}

// The protocols of a Filter.
const (
	AnyProtocol  = unix.ETH_P_ALL
	IPv4Protocol = unix.ETH_P_IP
	IPv6Protocol = unix.ETH_P_IPV6
)

const (
	u32ClassID    = 1  // TCA_U32_CLASSID
	u32Selector   = 5  // TCA_U32_SEL
	u32Actions    = 7  // TCA_U32_ACT
	bpfName       = 7  // TCA_BPF_NAME
	sizeofU32Sel  = 16 // struct tc_u32_sel without its keys
	firstAction   = 1  // actions are numbered from 1
	actionKind    = 1  // TCA_ACT_KIND
	actionOptions = 2  // TCA_ACT_OPTIONS
	u32Terminal   = 1  // without it, the next filter is asked all the same
	egressRedir   = 1  // TCA_EGRESS_REDIR
	actStolen     = 4  // TC_ACT_STOLEN
	mirredParms   = 2  // TCA_MIRRED_PARMS
	mirredEaction = 20 // offsets in struct tc_mirred
	mirredIfindex = 24
	sizeofMirred  = 28
)

// AnyPacket returns the u32 selector that matches every packet.
func AnyPacket() []byte { return u32Sel([3]uint32{}) }

// AddressMatch returns the u32 selector that matches packets from (or else to) an address in p.
func AddressMatch(p netip.Prefix, from bool) []byte {
	addr, left := p.Masked().Addr().AsSlice(), p.Bits()
	at := uint32(8) // the sender's address in a header of IPv6; the receiver's follows
	if p.Addr().Is4() {
		at = 12
	}
	if !from {
		at += uint32(len(addr))
	}
	var keys [][3]uint32
	for i := 0; left > 0; i += 4 {
		n := min(left, 32)
		keys = append(keys, [3]uint32{^uint32(0) << (32 - n), binary.BigEndian.Uint32(addr[i:]), at + uint32(i)})
		left -= n
	}
	if keys == nil {
		return AnyPacket()
	}
	return u32Sel(keys...)
}

// u32Sel is a struct tc_u32_sel of keys that are mask, value and offset in the network header.
func u32Sel(keys ...[3]uint32) []byte {
	b := make([]byte, sizeofU32Sel)
	b[0], b[2] = u32Terminal, byte(len(keys))
	for _, k := range keys {
		b = binary.BigEndian.AppendUint32(b, k[0])
		b = binary.BigEndian.AppendUint32(b, k[1])
		b = binary.NativeEndian.AppendUint32(b, k[2])
		b = append(b, 0, 0, 0, 0) // no offset that the packet itself says
	}
	return b
}

// Matches reports whether two filters send the same packets to the same place.
func (f Filter) Matches(g Filter) bool {
	return f.Protocol == g.Protocol && f.ClassID == g.ClassID && f.Redirect == g.Redirect && bytes.Equal(f.Sel, g.Sel)
}

// AddFilter adds a filter to a qdisc of a link.
func AddFilter(ns *kernel.NS, link int, f Filter) error {
	req := tcRequest(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_EXCL, link, 0, f.Parent, f.info())
	req.Str(unix.TCA_KIND, "u32")
	req.Nest(unix.TCA_OPTIONS, func() {
		req.Attr(u32Selector, f.Sel...)
		if f.Redirect == 0 {
			req.Host32(u32ClassID, f.ClassID)
			return
		}
		req.Nest(u32Actions, func() {
			req.Nest(firstAction, func() {
				req.Str(actionKind, "mirred")
				req.Nest(actionOptions, func() { req.Attr(mirredParms, mirred(f.Redirect)...) })
			})
		})
	})
	return netlink.About(rtnl.Tell(ns, req), "add filter to link #%d", link)
}

// mirred is a struct tc_mirred that sends a packet out by a link, and is done with it.
func mirred(link int) []byte {
	b := make([]byte, sizeofMirred)
	for at, v := range map[int]uint32{8: actStolen, mirredEaction: egressRedir, mirredIfindex: uint32(link)} {
		binary.NativeEndian.PutUint32(b[at:], v)
	}
	return b
}

// Filters returns the filters of a link's qdisc, or those of all its incoming packets.
func Filters(ns *kernel.NS, link int, parent uint32) (list []Filter, err error) {
	req := tcRequest(unix.RTM_GETTFILTER, unix.NLM_F_DUMP, link, 0, parent, 0)
	msgs, err := rtnl.Dump(ns, req, unix.RTM_NEWTFILTER)
	err = netlink.Except(err, unix.EINVAL, unix.ENODEV) // no such qdisc
	for _, m := range msgs {
		if f, whole := parseFilter(m); whole {
			list = append(list, f)
		}
	}
	return list, netlink.About(err, "filters of link #%d", link)
}

// parseFilter takes an answer apart; whole is false for what the kernel lists beside the filters: their tables.
func parseFilter(b []byte) (f Filter, whole bool) {
	if len(b) < sizeofMsg {
		return f, false
	}
	info := netlink.U32(b[16:])
	f.Parent, f.Pref, f.Protocol = netlink.U32(b[12:]), uint16(info>>16), wireProtocol(uint16(info))
	netlink.EachAttr(b[sizeofMsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.TCA_KIND:
			f.Kind = netlink.Text(v)
			whole = f.Kind != "u32" && netlink.U32(b[8:]) != 0
		case unix.TCA_OPTIONS:
			if f.Kind == "bpf" {
				f.Program = netlink.AttrText(v, bpfName)
			}
			if f.Kind != "u32" {
				return
			}
			netlink.EachAttr(v, func(kind uint16, v []byte) {
				switch kind {
				case u32Selector:
					f.Sel, whole = v, true
				case u32ClassID:
					f.ClassID = netlink.U32(v)
				case u32Actions:
					f.parseActions(v)
				}
			})
		}
	})
	return f, whole
}

func (f *Filter) parseActions(b []byte) {
	netlink.EachAttr(b, func(_ uint16, v []byte) {
		mirred := false
		netlink.EachAttr(v, func(kind uint16, v []byte) {
			switch {
			case kind == actionKind:
				mirred = netlink.Text(v) == "mirred"
			case kind == actionOptions && mirred:
				netlink.EachAttr(v, func(kind uint16, v []byte) {
					if kind == mirredParms && len(v) >= sizeofMirred && netlink.U32(v[mirredEaction:]) == egressRedir {
						f.Redirect = int(netlink.U32(v[mirredIfindex:]))
					}
				})
			}
		})
	})
}

// DelFilters deletes every filter with the preference and protocol of f. It is no error if there is none.
func DelFilters(ns *kernel.NS, link int, f Filter) error {
	err := rtnl.Tell(ns, tcRequest(unix.RTM_DELTFILTER, 0, link, 0, f.Parent, f.info()))
	return netlink.About(netlink.Except(err, unix.ENOENT, unix.EINVAL, unix.ENODEV), "delete filter of link #%d", link)
}

func (f Filter) info() uint32 { return uint32(f.Pref)<<16 | uint32(wireProtocol(f.Protocol)) }

// wireProtocol puts a protocol into the order of the network, or back.
func wireProtocol(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
