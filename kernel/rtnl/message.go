package rtnl

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Message is a route, a rule or a neighbour as the kernel lists it. It can be deleted and created again completely,
// with attributes that this package has no field for.
type Message struct {
	Type uint16 // RTM_NEWROUTE, RTM_NEWRULE or RTM_NEWNEIGH
	Body []byte
}

// A Neighbour is an entry of the neighbour table, ip-neighbour(8).
type Neighbour struct {
	Addr  netip.Addr
	MAC   net.HardwareAddr // none where it is not known yet
	Link  int
	State uint16
}

// The usual values of a Neighbour's State. Other states come and go with packets.
const (
	Permanent = unix.NUD_PERMANENT
	NoARP     = unix.NUD_NOARP
	Failed    = unix.NUD_FAILED
)

const (
	sizeofNdMsg  = 12
	nexthopID    = 30     // RTA_NH_ID
	ruleDetached = 8 | 16 // FIB_RULE_IIF_DETACHED, FIB_RULE_OIF_DETACHED: the kernel's own knowledge
)

// Routes decodes a route message. The result has one entry for each next hop.
func (m Message) Routes() []Route { return parseRoute(m.Body) }

// Rule decodes a rule message. Ok is false if the message is not a rule.
func (m Message) Rule() (r Rule, ok bool) { return parseRule(m.Body) }

// Neighbour decodes a neighbour message.
func (m Message) Neighbour() (n Neighbour) {
	if len(m.Body) < sizeofNdMsg {
		return n
	}
	n.Link, n.State = int(netlink.U32(m.Body[4:])), netlink.U16(m.Body[8:])
	netlink.EachAttr(m.Body[sizeofNdMsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.NDA_DST:
			n.Addr, _ = netip.AddrFromSlice(v)
		case unix.NDA_LLADDR:
			n.MAC = append(n.MAC, v...)
		}
	})
	return n
}

// RouteMessages returns the routes that pass the filter, with all attributes. A route with several next hops is one
// message.
func RouteMessages(ns *kernel.NS, f RouteFilter) (list []Message, err error) {
	msgs, err := routes(ns, f)
	for _, b := range msgs {
		r := parseRoute(b)
		if len(r) == 0 || f.Table != 0 && r[0].Table != f.Table || f.Protocol != 0 && r[0].Protocol != f.Protocol {
			continue
		}
		list = append(list, Message{unix.RTM_NEWROUTE, storedRoute(b)})
	}
	return list, err
}

// storedRoute is a route as the kernel takes it: without what it knows by itself, such as that a next hop is dead. A
// route by a nexthop object, ip-nexthop(8), is listed with what that object says as well, and taken without.
func storedRoute(b []byte) []byte {
	object := false
	netlink.EachAttr(b[unix.SizeofRtMsg:], func(kind uint16, _ []byte) { object = object || kind == nexthopID })
	return stored(b, unix.SizeofRtMsg, func(head []byte) {
		put32(head[8:], netlink.U32(head[8:])&unix.RTNH_F_ONLINK)
	}, func(kind uint16, v []byte) bool {
		switch kind {
		case unix.RTA_CACHEINFO:
			return false
		case unix.RTA_OIF, unix.RTA_GATEWAY, unix.RTA_VIA, unix.RTA_ENCAP, unix.RTA_ENCAP_TYPE:
			return !object
		case unix.RTA_MULTIPATH:
			for n := 0; len(v) >= unix.SizeofRtNexthop; v = v[min((n+3)&^3, len(v)):] {
				if n = int(netlink.U16(v)); n < unix.SizeofRtNexthop || n > len(v) {
					break
				}
				v[2] &= unix.RTNH_F_ONLINK
			}
			return !object
		}
		return true
	})
}

// RuleMessages returns the rules of a family with all attributes.
func RuleMessages(ns *kernel.NS, family uint8) (list []Message, err error) {
	msgs, err := rules(ns, family)
	for _, b := range msgs {
		if r, ok := parseRule(b); ok && r.Family == family {
			list = append(list, Message{unix.RTM_NEWRULE, stored(b, unix.SizeofRtMsg, func(head []byte) {
				put32(head[8:], netlink.U32(head[8:])&^ruleDetached)
			}, func(uint16, []byte) bool { return true })})
		}
	}
	return list, err
}

// NeighbourMessages returns the neighbours of a family on the link with that index, with all attributes.
func NeighbourMessages(ns *kernel.NS, family uint8, link int) (list []Message, err error) {
	req := newRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP, unix.NdMsg{Family: family})
	req.Host32(unix.NDA_IFINDEX, uint32(link))
	msgs, err := Dump(ns, req, unix.RTM_NEWNEIGH)
	for _, b := range msgs {
		if len(b) < sizeofNdMsg || b[0] != family || int(netlink.U32(b[4:])) != link {
			continue
		}
		keep := func(kind uint16, _ []byte) bool { return kind != unix.NDA_CACHEINFO && kind != unix.NDA_PROBES }
		list = append(list, Message{unix.RTM_NEWNEIGH, stored(b, sizeofNdMsg, func([]byte) {}, keep)})
	}
	return list, netlink.About(err, "list neighbours")
}

// stored is a copy of a listed message with another head, and without the attributes that are not to be kept.
func stored(b []byte, size int, head func([]byte), keep func(kind uint16, value []byte) bool) []byte {
	out := netlink.Buffer(bytes.Clone(b[:size]))
	head(out)
	netlink.EachAttr(b[size:], func(kind uint16, v []byte) {
		v = bytes.Clone(v)
		if keep(kind, v) {
			out.Attr(kind, v...)
		}
	})
	return out
}

func put32(b []byte, v uint32) { binary.NativeEndian.PutUint32(b, v) }

// NewRoute returns the message for a route. Without hops, r contains the only next hop. With hops, their fields Link,
// Via, OnLink and Weight count.
func NewRoute(ns *kernel.NS, r Route, hops []Route) Message {
	if len(hops) == 0 {
		return Message{unix.RTM_NEWROUTE, routeRequest(unix.RTM_NEWROUTE, 0, r).Buffer}
	}
	r.Link, r.Via, r.OnLink = 0, netip.Addr{}, false
	var list []byte
	for _, h := range hops {
		hop := netlink.Struct(unix.RtNexthop{Hops: uint8(max(h.Weight, 1) - 1), Ifindex: int32(h.Link)})
		if h.OnLink {
			hop[2] = unix.RTNH_F_ONLINK
		}
		via(&hop, r.Dst, h.Via)
		binary.NativeEndian.PutUint16(hop, uint16(len(hop)))
		list = append(list, hop...)
	}
	req := routeRequest(unix.RTM_NEWROUTE, 0, r)
	req.Attr(unix.RTA_MULTIPATH, list...)
	return Message{unix.RTM_NEWROUTE, req.Buffer}
}

// NewRule returns the message for a rule.
func NewRule(ns *kernel.NS, r Rule) Message {
	return Message{unix.RTM_NEWRULE, ruleRequest(unix.RTM_NEWRULE, 0, r).Buffer}
}

// NewNeighbour returns the message for a neighbour.
func NewNeighbour(ns *kernel.NS, n Neighbour) Message {
	b := netlink.Struct(unix.NdMsg{Family: Family(n.Addr), Ifindex: int32(n.Link), State: n.State})
	b.Attr(unix.NDA_DST, n.Addr.AsSlice()...)
	if len(n.MAC) > 0 {
		b.Attr(unix.NDA_LLADDR, n.MAC...)
	}
	return Message{unix.RTM_NEWNEIGH, b}
}

// A How tells Make what to do if the object exists.
type How int

// The ways of Make with an existing object. Exclusive: the error is EEXIST. Beside: the same, but of routes only an
// equal route counts as existing. Replace: the object is replaced.
const (
	Exclusive How = unix.NLM_F_EXCL
	Beside    How = 0
	Replace   How = unix.NLM_F_REPLACE
)

// Make creates the object of a message.
func Make(ns *kernel.NS, m Message, how How) error {
	flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_ACK | int(how))
	return Tell(ns, &netlink.Request{Type: m.Type, Flags: flags, Buffer: m.Body})
}

// Drop deletes the object of a message. It is no error if the object does not exist.
func Drop(ns *kernel.NS, m Message) error {
	del := m.Type + 1 // RTM_DELROUTE and so on
	err := Tell(ns, &netlink.Request{Type: del, Flags: unix.NLM_F_ACK, Buffer: m.Body})
	return netlink.Except(err, absent()...)
}

// absent are the kernel's answers to the deletion of what does not exist.
func absent() []syscall.Errno {
	return []syscall.Errno{unix.ESRCH, unix.ENOENT, unix.ENODEV, unix.ENXIO, unix.EAFNOSUPPORT}
}
