package rtnl

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// Traits are settings of a link that root in the link's namespace may change, and that are rarely changed.
type Traits struct {
	Flags     uint32 // noarp, multicast and others that are only a matter of taste
	LinkMode  uint8
	Broadcast []byte
	GSOSize   uint32 // bytes of the longest packet that is cut up late,
	GSOSegs   uint32 // in how many at most,
	GROSize   uint32 // and of the longest that is put together
	GSO4Size  uint32 // likewise for IPv4 (Linux 6.3)
	GRO4Size  uint32
	ProtoDown bool
}

const traitFlags = unix.IFF_DEBUG | unix.IFF_NOTRAILERS | unix.IFF_NOARP | unix.IFF_MULTICAST | unix.IFF_PORTSEL |
	unix.IFF_AUTOMEDIA | unix.IFF_DYNAMIC

func (l *Link) parseTrait(kind uint16, v []byte) {
	t := &l.Traits
	if len(v) == 0 {
		return
	}
	switch kind {
	case unix.IFLA_XDP:
		netlink.EachAttr(v, func(kind uint16, v []byte) {
			// of the one program, or of each of several: of the driver, of packets in memory, of the card
			if kind >= unix.IFLA_XDP_PROG_ID && kind <= unix.IFLA_XDP_HW_PROG_ID && l.XDP == 0 {
				l.XDP = netlink.U32(v)
			}
		})
	case unix.IFLA_PERM_ADDRESS:
		l.Permanent = v
	case unix.IFLA_LINKMODE:
		t.LinkMode = v[0]
	case unix.IFLA_PROTO_DOWN:
		t.ProtoDown = v[0] != 0
	case unix.IFLA_BROADCAST:
		t.Broadcast = v
	case unix.IFLA_GSO_MAX_SIZE:
		t.GSOSize = netlink.U32(v)
	case unix.IFLA_GSO_MAX_SEGS:
		t.GSOSegs = netlink.U32(v)
	case unix.IFLA_GRO_MAX_SIZE:
		t.GROSize = netlink.U32(v)
	case unix.IFLA_GSO_IPV4_MAX_SIZE:
		t.GSO4Size = netlink.U32(v)
	case unix.IFLA_GRO_IPV4_MAX_SIZE:
		t.GRO4Size = netlink.U32(v)
	}
}

// SetTraits sets those values of want that the link does not have. It sends one message for each, because a driver
// may refuse one value and accept the others.
func SetTraits(ns *kernel.NS, l *Link, want Traits) error {
	var errs []error
	set := func(what string, flags uint32, attr func(*netlink.Buffer)) {
		req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK, unix.IfInfomsg{
			Index: int32(l.Index), Change: flags, Flags: want.Flags & flags,
		})
		if attr != nil {
			attr(&req.Buffer)
		}
		if err := Tell(ns, req); err != nil {
			errs = append(errs, fmt.Errorf("%s of link %s: %w", what, l.Name, full(err)))
		}
	}
	is := l.Traits
	if changed := is.Flags ^ want.Flags; changed != 0 {
		set("flags", changed, nil)
	}
	if is.LinkMode != want.LinkMode {
		set("mode", 0, func(b *netlink.Buffer) { b.Attr(unix.IFLA_LINKMODE, want.LinkMode) })
	}
	if is.ProtoDown != want.ProtoDown {
		set("protodown", 0, func(b *netlink.Buffer) { b.Bool(unix.IFLA_PROTO_DOWN, want.ProtoDown) })
	}
	if !bytes.Equal(is.Broadcast, want.Broadcast) && len(is.Broadcast) == len(want.Broadcast) {
		set("broadcast", 0, func(b *netlink.Buffer) { b.Attr(unix.IFLA_BROADCAST, want.Broadcast...) })
	}
	// What is for both families comes first, for it may change what is for IPv4.
	for _, c := range []struct {
		what     string
		attr     uint16
		is, want uint32
		again    bool
	}{
		{"gso_max_segs", unix.IFLA_GSO_MAX_SEGS, is.GSOSegs, want.GSOSegs, false},
		{"gso_max_size", unix.IFLA_GSO_MAX_SIZE, is.GSOSize, want.GSOSize, false},
		{"gro_max_size", unix.IFLA_GRO_MAX_SIZE, is.GROSize, want.GROSize, false},
		{"gso_ipv4_max_size", unix.IFLA_GSO_IPV4_MAX_SIZE, is.GSO4Size, want.GSO4Size, is.GSOSize != want.GSOSize},
		{"gro_ipv4_max_size", unix.IFLA_GRO_IPV4_MAX_SIZE, is.GRO4Size, want.GRO4Size, is.GROSize != want.GROSize},
	} {
		if c.want != 0 && (c.is != c.want || c.again) {
			set(c.what, 0, func(b *netlink.Buffer) { b.Host32(c.attr, c.want) })
		}
	}
	return errors.Join(errs...)
}

// Params returns the settings of a link's kind that root in its namespace may change, such as the mode of a macvlan
// or the remote end of a vxlan. It returns nil for a kind that SetParams cannot change.
func (l *Link) Params() []byte {
	switch l.Kind {
	case "macvlan", "macvtap", "ipvlan", "ipvtap", "vlan", "vxlan":
		return l.kindData
	}
	return nil
}

// SetParams sets those values of want that the link does not have, each in a message of its own. Want is the answer
// of Params.
func SetParams(ns *kernel.NS, l *Link, want []byte) error {
	is, was := map[uint16][]byte{}, map[uint16][]byte{}
	netlink.EachAttr(l.Params(), func(key uint16, v []byte) { is[key] = v })
	netlink.EachAttr(want, func(key uint16, v []byte) { was[key] = v })
	if l.Kind == "vxlan" { // has no address for none
		for key, v := range is {
			if was[key] == nil {
				was[key] = make([]byte, len(v))
			}
		}
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(was)) {
		v := was[key]
		if bytes.Equal(is[key], v) || strings.HasPrefix(l.Kind, "macv") && key != unix.IFLA_MACVLAN_MODE &&
			key != unix.IFLA_MACVLAN_FLAGS && key != macvlanQueueLen {
			continue
		}
		req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK, unix.IfInfomsg{Index: int32(l.Index)})
		linkInfo(req, l.Kind, func(b *netlink.Buffer) { b.Attr(key, v...) })
		if err := Tell(ns, req); err != nil {
			errs = append(errs, fmt.Errorf("%s attribute %d of link %s: %w", l.Kind, key, l.Name, full(err)))
		}
	}
	return errors.Join(errs...)
}

const macvlanQueueLen = 7 // IFLA_MACVLAN_BC_QUEUE_LEN; the others are for reading
