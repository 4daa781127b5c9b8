// Package tc speaks traffic control: qdiscs, classes and filters of a link. Links of kind ifb are in package rtnl,
// like all links.
package tc

import (
	"fmt"
	mathbits "math/bits"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/vishvananda/netlink/nl"
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

func tcRequest(proto, flags, link int, handle, parent, info uint32) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(proto, flags|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(link), Handle: handle, Parent: parent, Info: info})
	return req
}

// QdiscAt returns the qdisc of a link at a place. It returns nil if there is only the kernel's default qdisc.
func QdiscAt(ns *kernel.NS, link int, parent uint32) (*Qdisc, error) {
	// Without ECHO an older kernel tells everybody who listens, and not the one who asked.
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
	msgs, err := rtnl.Dump(ns, unix.RTM_NEWTCLASS, func() *nl.NetlinkRequest {
		return tcRequest(unix.RTM_GETTCLASS, unix.NLM_F_DUMP, link, 0, 0, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("classes of link #%d: %w", link, err)
	}
	for _, m := range msgs {
		list = append(list, parseQdisc(m))
	}
	return list, nil
}

func parseQdisc(b []byte) *Qdisc {
	if len(b) < nl.SizeofTcMsg {
		return &Qdisc{}
	}
	q := &Qdisc{Handle: netlink.U32(b[8:]), Parent: netlink.U32(b[12:])}
	netlink.EachAttr(b[nl.SizeofTcMsg:], func(kind uint16, v []byte) {
		switch kind {
		case nl.TCA_KIND: // comes before the options
			q.Kind = netlink.Text(v)
		case nl.TCA_OPTIONS:
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
		switch {
		case q.Kind == "tbf" && kind == nl.TCA_TBF_PARMS && len(v) >= nl.SizeofTcTbfQopt:
			o := nl.DeserializeTcTbfQopt(v)
			q.Bucket = TokenBucket{Rate: max(q.Bucket.Rate, uint64(o.Rate.Rate)), Limit: o.Limit, Ticks: o.Buffer}
		case q.Kind == "htb" && kind == nl.TCA_HTB_PARMS && len(v) >= nl.SizeofTcHtbCopt:
			o := nl.DeserializeTcHtbCopt(v)
			q.Bucket = TokenBucket{Rate: max(q.Bucket.Rate, uint64(o.Rate.Rate)), Ticks: o.Buffer}
		case q.Kind == "htb" && kind == nl.TCA_HTB_INIT && len(v) >= nl.SizeofTcHtbGlob:
			q.Default = nl.DeserializeTcHtbGlob(v).Defcls
		case q.Kind == "tbf" && kind == nl.TCA_TBF_RATE64, q.Kind == "htb" && kind == nl.TCA_HTB_RATE64:
			if len(v) >= 8 {
				q.Bucket.Rate = max(q.Bucket.Rate, nl.NativeEndian().Uint64(v)) // the other one is full, then
			}
		}
	})
}

// AddQdisc adds a qdisc. It replaces the kernel's default qdisc of the link.
func AddQdisc(ns *kernel.NS, link int, q Qdisc) error {
	return addQdisc(ns, unix.RTM_NEWQDISC, link, q)
}

// AddClass adds a class of htb.
func AddClass(ns *kernel.NS, link int, q Qdisc) error {
	return addQdisc(ns, unix.RTM_NEWTCLASS, link, q)
}

func addQdisc(ns *kernel.NS, proto, link int, q Qdisc) error {
	req := tcRequest(proto, unix.NLM_F_CREATE|unix.NLM_F_EXCL, link, q.Handle, q.Parent, 0)
	req.AddData(rtnl.AttrText(nl.TCA_KIND, q.Kind))
	opt := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	spec := nl.TcRateSpec{Linklayer: ethernetLayer, Rate: uint32(min(q.Bucket.Rate, 1<<32-1))}
	wide := q.Bucket.Rate >= 1<<32-1
	ticks := BurstTicks(q.Bucket.Rate, q.Bucket.Burst, proto == unix.RTM_NEWTCLASS)
	switch {
	case q.Kind == "bfifo": // a bare structure, of one number
		opt.Data = nl.Uint32Attr(q.Bucket.Limit)
	case q.Kind == "tbf":
		opt.AddRtAttr(nl.TCA_TBF_PARMS, (&nl.TcTbfQopt{Rate: spec, Limit: q.Bucket.Limit, Buffer: ticks}).Serialize())
		opt.AddRtAttr(nl.TCA_TBF_BURST, nl.Uint32Attr(q.Bucket.Burst))
		if wide {
			opt.AddRtAttr(nl.TCA_TBF_RATE64, nl.Uint64Attr(q.Bucket.Rate))
		}
	case q.Kind == "htb" && proto == unix.RTM_NEWTCLASS:
		opt.AddRtAttr(nl.TCA_HTB_PARMS, (&nl.TcHtbCopt{Rate: spec, Ceil: spec, Buffer: ticks, Cbuffer: ticks,
			Quantum: 64 << 10}).Serialize())
		if wide {
			opt.AddRtAttr(nl.TCA_HTB_RATE64, nl.Uint64Attr(q.Bucket.Rate))
			opt.AddRtAttr(nl.TCA_HTB_CEIL64, nl.Uint64Attr(q.Bucket.Rate))
		}
	case q.Kind == "htb":
		opt.AddRtAttr(nl.TCA_HTB_INIT, (&nl.TcHtbGlob{Version: 3, Rate2Quantum: 10, Defcls: q.Default}).Serialize())
		opt.AddRtAttr(nl.TCA_HTB_DIRECT_QLEN, nl.Uint32Attr(directQueueLen))
	default:
		opt = nil
	}
	if opt != nil {
		req.AddData(opt)
	}
	if err := rtnl.Tell(ns, req); err != nil {
		return fmt.Errorf("add qdisc %s to link #%d: %w", q.Kind, link, err)
	}
	return nil
}

// DelQdisc deletes the qdisc of a link at a place, with its classes and filters. It is no error if there is none.
func DelQdisc(ns *kernel.NS, link int, parent uint32) error {
	err := rtnl.Tell(ns, tcRequest(unix.RTM_DELQDISC, 0, link, 0, parent, 0))
	if err != nil && !netlink.Is(err, unix.ENOENT, unix.ENODEV) {
		return fmt.Errorf("delete qdisc of link #%d: %w", link, err)
	}
	return nil
}
