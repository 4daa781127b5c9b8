package packetfilter

import (
	"golang.org/x/sys/unix"
)

// The bits of conntrack's state and status, from linux/netfilter/nf_conntrack_common.h.
const (
	ctStateInvalid     = 1 << 0
	ctStateEstablished = 1 << 1
	ctStateNew         = 1 << 3
	ctStateUntracked   = 1 << 6

	ctStatusExpected  = 1 << 0
	ctStatusSeenReply = 1 << 1
	ctStatusAssured   = 1 << 2
	ctStatusConfirmed = 1 << 3
	ctStatusDNAT      = 1 << 5
)

func (w *walk) ctState() uint32 {
	switch {
	case w.untracked == yes:
		return ctStateUntracked
	case w.early:
		return ctStateInvalid
	case w.p.Reply:
		return ctStateEstablished
	}
	return ctStateNew
}

// ctStatus is what is known of conntrack's status: a new flow has not seen an answer and is not confirmed.
func (w *walk) ctStatus() bits {
	var value uint32
	sure := uint32(ctStatusDNAT | ctStatusSeenReply | ctStatusConfirmed)
	if w.p.DNAT {
		value |= ctStatusDNAT
	}
	switch {
	case w.p.Reply:
		value |= ctStatusSeenReply | ctStatusConfirmed
	case w.p.Local && (w.hook == Prerouting || w.hook == Input): // postrouting has confirmed it
		sure &^= ctStatusConfirmed
		fallthrough
	default:
		sure |= ctStatusAssured | ctStatusExpected // what is expected is related, and not new
	}
	return bits{native(value).v, native(sure).v}
}

// ct loads what conntrack knows of the packet.
func (m *machine) ct(d []byte) bool {
	w, key, direction := m.w, attr32(d, unix.NFTA_CT_KEY), attr(d, unix.NFTA_CT_DIRECTION)
	if attr(d, unix.NFTA_CT_SREG) != nil {
		if w.ctWritten = true; key == unix.NFT_CT_ZONE { // in another one, it may be a flow that is known, or not
			w.untracked = max(w.untracked, maybe)
		}
		return true
	}
	b := unknown(16)
	switch {
	case w.pf == unix.NFPROTO_BRIDGE, w.untracked == maybe:
	case key == unix.NFT_CT_STATE:
		b = native(w.ctState())
	case w.noConntrack():
		return false
	default:
		b = w.flow(key, len(direction) > 0 && direction[0] == 1)
	}
	m.store(d, unix.NFTA_CT_DREG, b, ctText(key))
	return true
}

// noConntrack reports whether conntrack has nothing to say of the packet.
func (w *walk) noConntrack() bool { return w.early || w.untracked == yes }

// flow is what conntrack knows of the packet's flow. The first packet of one goes the way of the flow.
func (w *walk) flow(key uint32, reply bool) bits {
	o := w.p.original()
	switch key {
	case unix.NFT_CT_STATUS:
		return w.ctStatus()
	case unix.NFT_CT_L3PROTOCOL:
		return exactly(w.family())
	case unix.NFT_CT_PROTOCOL:
		return w.proto()
	case unix.NFT_CT_DIRECTION:
		if w.p.Reply {
			return exactly(1)
		}
		return exactly(0)
	case unix.NFT_CT_MARK, unix.NFT_CT_LABELS:
		if w.p.Fresh && !w.ctWritten {
			return exactly(make([]byte, 16)...)
		}
	}
	if !o.known || reply {
		return unknown(16)
	}
	switch key {
	case unix.NFT_CT_SRC, unix.NFT_CT_SRC_IP, unix.NFT_CT_SRC_IP6:
		return w.addr(o.src)
	case unix.NFT_CT_DST, unix.NFT_CT_DST_IP, unix.NFT_CT_DST_IP6:
		return w.addr(o.dst)
	case unix.NFT_CT_PROTO_SRC:
		return port(o.srcPort)
	case unix.NFT_CT_PROTO_DST:
		return port(o.dstPort)
	}
	return unknown(16)
}
