// Package tc speaks traffic control: qdiscs, classes and filters of a link. Links of kind ifb are in package rtnl,
// like all links.
package tc

import (
	"encoding/binary"
	"fmt"
	mathbits "math/bits"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// A TokenBucket limits a rate. It is the qdisc tbf, or a class of htb; a class has no limit of its own.
type TokenBucket struct {
	Rate  uint64 // bytes a second
	Burst uint32 // bytes that may pass at once
	Limit uint32 // bytes that may wait

	// Ticks is how the kernel keeps and shows Burst: the time that it takes at Rate, in 64 ns, and of that the
	// lower 32 bits. It is set in what the kernel answers, where Burst is not.
	Ticks uint32
}

// BurstTicks returns the value that TokenBucket.Ticks gets for a rate and burst. A class of htb gets the time instead
// of the bytes, so for a class the value is limited to 32 bits.
func BurstTicks(rate uint64, burst uint32, class bool) uint32 {
	hi, lo := mathbits.Mul64(uint64(burst), 1e9)
	if hi >= rate {
		return 1<<32 - 1
	}
	ns, _ := mathbits.Div64(hi, lo, rate)
	if class {
		return uint32(min(ns>>6, 1<<32-1))
	}
	return uint32(ns >> 6)
}

// A Qdisc is a queueing discipline of a link, or a class of one.
type Qdisc struct {
	Kind    string // tbf, htb, bfifo, ingress, …
	Handle  uint32 // major and minor number; zero: one that the kernel gave the link by itself
	Parent  uint32 // RootQdisc, IngressQdisc, or a class
	Bucket  TokenBucket
	Default uint32 // htb: the minor number of the class of packets that no filter knows; zero: they pass at once
}

// The places of a link where a qdisc can be, and the handle of the qdisc for incoming packets.
const (
	Root          = 0xFFFFFFFF // TC_H_ROOT
	Ingress       = 0xFFFFFFF1 // TC_H_INGRESS
	IngressHandle = 0xFFFF0000
)

const (
	directQueueLen = 1000 // packets; an ifb's own would be 32
	ethernetLayer  = 1    // TC_LINKLAYER_ETHERNET: the kernel computes times, and asks for no table of them
)

// The attributes of the options of tbf and htb.
const (
	tbfParms      = 1 // TCA_TBF_PARMS
	tbfRate64     = 4 // TCA_TBF_RATE64
	tbfBurst      = 6 // TCA_TBF_BURST
	htbParms      = 1 // TCA_HTB_PARMS
	htbInit       = 2 // TCA_HTB_INIT
	htbDirectQLen = 5 // TCA_HTB_DIRECT_QLEN
	htbRate64     = 6 // TCA_HTB_RATE64
	htbCeil64     = 7 // TCA_HTB_CEIL64
)

// The structures of linux/pkt_sched.h and linux/rtnetlink.h.
type (
	tcMsg struct {
		Family               uint8
		_                    [3]uint8
		Ifindex              int32
		Handle, Parent, Info uint32
	}
	rateSpec struct {
		CellLog, Linklayer       uint8
		Overhead, CellAlign, MPU uint16
		Rate                     uint32
	}
	tbfOptions struct {
		Rate, PeakRate     rateSpec
		Limit, Buffer, MTU uint32
	}
	htbClass struct {
		Rate, Ceil                            rateSpec
		Buffer, CBuffer, Quantum, Level, Prio uint32
	}
	htbGlobal struct{ Version, Rate2Quantum, Default, Debug, DirectPackets uint32 }
)

const sizeofMsg = 20 // struct tcmsg

func tcRequest(typ, flags uint16, link int, handle, parent, info uint32) *netlink.Request {
	msg := tcMsg{Ifindex: int32(link), Handle: handle, Parent: parent, Info: info}
	return netlink.NewRequest(typ, flags|unix.NLM_F_ACK, msg)
}

// QdiscAt returns the qdisc of a link at a place. It returns nil if there is only the kernel's default qdisc.
func QdiscAt(ns *kernel.NS, link int, parent uint32) (*Qdisc, error) {
	// Without ECHO an older kernel tells all listeners, and not the one who asked.
	msgs, err := rtnl.Call(ns, tcRequest(unix.RTM_GETQDISC, unix.NLM_F_ECHO, link, 0, parent, 0), unix.RTM_NEWQDISC)
	if netlink.Is(err, unix.ENOENT, unix.EINVAL) { // nothing; or a built-in one, which is not shown
		return nil, nil
	}
	if netlink.Is(err, unix.ENODEV) {
		err = rtnl.ErrNoLink
	}
	if err != nil {
		return nil, fmt.Errorf("qdisc of link #%d: %w", link, err)
	}
	for _, m := range msgs {
		if q := parseQdisc(m); q.Handle != 0 {
			return q, nil
		}
	}
	return nil, nil
}

// Classes returns the classes of all qdiscs of a link.
func Classes(ns *kernel.NS, link int) (list []*Qdisc, err error) {
	req := tcRequest(unix.RTM_GETTCLASS, unix.NLM_F_DUMP, link, 0, 0, 0)
	msgs, err := rtnl.Dump(ns, req, unix.RTM_NEWTCLASS)
	for _, m := range msgs {
		list = append(list, parseQdisc(m))
	}
	return list, netlink.About(err, "classes of link #%d", link)
}

func parseQdisc(b []byte) *Qdisc {
	if len(b) < sizeofMsg {
		return &Qdisc{}
	}
	q := &Qdisc{Handle: netlink.U32(b[8:]), Parent: netlink.U32(b[12:])}
	netlink.EachAttr(b[sizeofMsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.TCA_KIND: // comes before the options
			q.Kind = netlink.Text(v)
		case unix.TCA_OPTIONS:
			q.parseOptions(v)
		}
	})
	return q
}

func (q *Qdisc) parseOptions(b []byte) {
	if q.Kind == "bfifo" {
		q.Bucket.Limit = netlink.U32(b)
		return
	}
	netlink.EachAttr(b, func(kind uint16, v []byte) {
		var tbf tbfOptions
		var class htbClass
		var global htbGlobal
		var rate uint64
		switch {
		case q.Kind == "tbf" && kind == tbfParms && decode(v, &tbf):
			q.Bucket.Limit, q.Bucket.Ticks, rate = tbf.Limit, tbf.Buffer, uint64(tbf.Rate.Rate)
		case q.Kind == "htb" && kind == htbParms && decode(v, &class):
			q.Bucket.Ticks, rate = class.Buffer, uint64(class.Rate.Rate)
		case q.Kind == "htb" && kind == htbInit && decode(v, &global):
			q.Default = global.Default
		case q.Kind == "tbf" && kind == tbfRate64, q.Kind == "htb" && kind == htbRate64:
			decode(v, &rate) // the number of 32 bits is at its limit then
		}
		q.Bucket.Rate = max(q.Bucket.Rate, rate)
	})
}

// decode reads a structure of the kernel, and reports whether b has all of it.
func decode(b []byte, into any) bool {
	_, err := binary.Decode(b, binary.NativeEndian, into)
	return err == nil
}

// AddQdisc adds a qdisc. It replaces the kernel's default qdisc of the link.
func AddQdisc(ns *kernel.NS, link int, q Qdisc) error {
	return addQdisc(ns, unix.RTM_NEWQDISC, link, q)
}

// AddClass adds a class of htb.
func AddClass(ns *kernel.NS, link int, q Qdisc) error {
	return addQdisc(ns, unix.RTM_NEWTCLASS, link, q)
}

func addQdisc(ns *kernel.NS, typ uint16, link int, q Qdisc) error {
	req := tcRequest(typ, unix.NLM_F_CREATE|unix.NLM_F_EXCL, link, q.Handle, q.Parent, 0)
	req.Str(unix.TCA_KIND, q.Kind)
	spec := rateSpec{Linklayer: ethernetLayer, Rate: uint32(min(q.Bucket.Rate, 1<<32-1))}
	wide := q.Bucket.Rate >= 1<<32-1
	ticks := BurstTicks(q.Bucket.Rate, q.Bucket.Burst, typ == unix.RTM_NEWTCLASS)
	switch {
	case q.Kind == "bfifo": // a bare structure, of one number
		req.Host32(unix.TCA_OPTIONS, q.Bucket.Limit)
	case q.Kind == "tbf":
		req.Nest(unix.TCA_OPTIONS, func() {
			req.Attr(tbfParms, netlink.Struct(tbfOptions{Rate: spec, Limit: q.Bucket.Limit, Buffer: ticks})...)
			req.Host32(tbfBurst, q.Bucket.Burst)
			if wide {
				req.Host64(tbfRate64, q.Bucket.Rate)
			}
		})
	case q.Kind == "htb" && typ == unix.RTM_NEWTCLASS:
		class := htbClass{Rate: spec, Ceil: spec, Buffer: ticks, CBuffer: ticks, Quantum: 64 << 10}
		req.Nest(unix.TCA_OPTIONS, func() {
			req.Attr(htbParms, netlink.Struct(class)...)
			if wide {
				req.Host64(htbRate64, q.Bucket.Rate)
				req.Host64(htbCeil64, q.Bucket.Rate)
			}
		})
	case q.Kind == "htb":
		req.Nest(unix.TCA_OPTIONS, func() {
			req.Attr(htbInit, netlink.Struct(htbGlobal{Version: 3, Rate2Quantum: 10, Default: q.Default})...)
			req.Host32(htbDirectQLen, directQueueLen)
		})
	}
	return netlink.About(rtnl.Tell(ns, req), "add qdisc %s to link #%d", q.Kind, link)
}

// DelQdisc deletes the qdisc of a link at a place, with its classes and filters. It is no error if there is none.
func DelQdisc(ns *kernel.NS, link int, parent uint32) error {
	err := rtnl.Tell(ns, tcRequest(unix.RTM_DELQDISC, 0, link, 0, parent, 0))
	return netlink.About(netlink.Except(err, unix.ENOENT, unix.ENODEV), "delete qdisc of link #%d", link)
}
