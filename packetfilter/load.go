package packetfilter

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// What is known of the packet: its headers, and what the kernel keeps with it.

// linkName is a link's name as the packet filter compares it.
func linkName(name string) bits {
	if name == "" {
		return unknown(16)
	}
	return exactly(append([]byte(name), make([]byte, 16)...)[:16]...)
}

func (w *walk) family() byte {
	if w.p.is6() {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

func (w *walk) proto() bits {
	if w.p.Proto == 0 {
		return unknown(1)
	}
	return exactly(w.p.Proto)
}

func (w *walk) addr(a netip.Addr) bits {
	size := 4
	if w.p.is6() {
		size = 16
	}
	if b := a.Unmap().AsSlice(); len(b) == size {
		return exactly(b...)
	}
	return unknown(size)
}

func port(n uint16) bits {
	if n == 0 {
		return unknown(2)
	}
	return exactly(binary.BigEndian.AppendUint16(nil, n)...)
}

// hasPorts reports whether the packet's protocol has ports at the start of its header, where that is known.
func (w *walk) hasPorts() bool {
	switch w.p.Proto {
	case kernel.TCP, kernel.UDP, kernel.SCTP, unix.IPPROTO_UDPLITE, unix.IPPROTO_DCCP:
		return true
	}
	return false
}

// write puts what is known of a field into a header.
func (b bits) write(at int, field bits) {
	copy(b.v[at:], field.v)
	copy(b.known[at:], field.known)
}

// network is the packet's IP header: without options, and not a fragment.
func (w *walk) network() bits {
	if w.p.is6() {
		h := unknown(40)
		h.v[0], h.known[0] = 0x60, 0xf0
		h.write(6, w.proto())
		h.write(8, w.addr(w.p.Src))
		h.write(24, w.addr(w.p.Dst))
		return h
	}
	h := unknown(20)
	h.write(0, exactly(0x45))
	h.known[6], h.known[7] = 0xbf, 0xff // of these 16 bits all but "do not fragment"
	h.write(9, w.proto())
	h.write(12, w.addr(w.p.Src))
	h.write(16, w.addr(w.p.Dst))
	return h
}

// transport is the part of the next header that is known.
func (w *walk) transport() bits {
	h := unknown(20)
	if w.hasPorts() {
		h.write(0, port(w.p.SrcPort))
		h.write(2, port(w.p.DstPort))
	}
	if w.p.Proto == kernel.TCP {
		h.write(13, w.tcpFlags())
	}
	return h
}

// tcpFlags are SYN alone at first, and later ACK without RST and FIN.
func (w *walk) tcpFlags() bits {
	const fin, syn, rst, ack = 0x01, 0x02, 0x04, 0x10
	if w.p.Reply {
		return bits{[]byte{ack}, []byte{fin | rst | ack}}
	}
	return exactly(syn)
}

func (m *machine) payload(d []byte) bool {
	base := attr32(d, unix.NFTA_PAYLOAD_BASE)
	at, size := int(min(attr32(d, unix.NFTA_PAYLOAD_OFFSET), 1<<16)), int(min(attr32(d, unix.NFTA_PAYLOAD_LEN), 64))
	if attr(d, unix.NFTA_PAYLOAD_SREG) != nil {
		// A header is written. What stands before the protocol nobody asks for; of the rest all that follows may.
		if base == unix.NFT_PAYLOAD_NETWORK_HEADER && (at+size <= 6 || at+size <= 9 && !m.w.p.is6()) {
			return true
		}
		return m.end(toOthers, "", "a header that is rewritten")
	}
	var h bits
	switch base {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		h = m.w.ip
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		h = m.w.th
	}
	b := unknown(size)
	if at+size <= len(h.v) {
		b = bits{h.v[at : at+size], h.known[at : at+size]}
	}
	m.put(attr32(d, unix.NFTA_PAYLOAD_DREG), b, payloadText(m.w.family(), base, at, size))
	return true
}

func (m *machine) meta(d []byte) bool {
	w, key := m.w, attr32(d, unix.NFTA_META_KEY)
	if attr(d, unix.NFTA_META_SREG) != nil {
		if key == unix.NFT_META_MARK {
			mark, _ := m.get(attr32(d, unix.NFTA_META_SREG), 4)
			w.setMark(mark, m.sure)
		}
		return true
	}
	b := unknown(16) // what is not named here has at most so much
	switch key {
	case unix.NFT_META_PROTOCOL:
		b = exactly(0x08, 0x00)
		if w.p.is6() {
			b = exactly(0x86, 0xdd)
		}
	case unix.NFT_META_MARK:
		b = w.mark
	case unix.NFT_META_IIF:
		b = w.index(w.p.In)
	case unix.NFT_META_OIF:
		b = w.index(w.p.Out)
	case unix.NFT_META_IIFNAME:
		b = linkName(w.p.In)
	case unix.NFT_META_OIFNAME:
		b = linkName(w.p.Out)
	case unix.NFT_META_SKUID, unix.NFT_META_SKGID, unix.NFT_META_CGROUP:
		return false // a forwarded packet has no socket
	case unix.NFT_META_NFPROTO:
		b = exactly(w.family())
	case unix.NFT_META_L4PROTO:
		b = w.proto()
	case unix.NFT_META_PKTTYPE:
		if w.p.Dst.IsValid() && !w.p.Dst.IsMulticast() {
			b = exactly(0) // unicast to us, by its MAC address
		}
	}
	m.put(attr32(d, unix.NFTA_META_DREG), b, metaText(key))
	return true
}

// setMark takes a mark that a rule sets, if the packet comes to the rule.
func (w *walk) setMark(mark bits, sure tri) {
	mark = mark.under(nil) // a copy: the register may be written again
	if sure != yes {
		mark.join(w.mark)
	}
	w.mark = mark
}

// index is the index of a link, in the host's order.
func (w *walk) index(name string) bits {
	if name == "" {
		return unknown(4)
	}
	i, err := w.ns.Index(name)
	if err != nil && !errors.Is(err, kernel.ErrNoLink) {
		return unknown(4)
	}
	return native(uint32(i)) // 0, which no link has, for one that is not there
}

// The bits of conntrack's state and status, from linux/netfilter/nf_conntrack_common.h.
const (
	ctStateEstablished = 1 << 1
	ctStateNew         = 1 << 3

	ctStatusSeenReply = 1 << 1
	ctStatusAssured   = 1 << 2
	ctStatusConfirmed = 1 << 3
	ctStatusDNAT      = 1 << 5
)

func (w *walk) ctState() uint32 {
	if w.p.Reply {
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
	if w.p.Reply {
		value |= ctStatusSeenReply | ctStatusConfirmed
	} else {
		sure |= ctStatusAssured
	}
	return bits{native(value).v, native(sure).v}
}

func (m *machine) ct(d []byte) bool {
	if attr(d, unix.NFTA_CT_SREG) != nil {
		return true
	}
	w, key, direction := m.w, attr32(d, unix.NFTA_CT_KEY), attr(d, unix.NFTA_CT_DIRECTION)
	b := unknown(16)
	// The first packet of a flow goes the way of the flow; of others it is not known here, nor what was translated.
	original := !w.p.Reply && !w.p.DNAT && (len(direction) == 0 || direction[0] == 0)
	switch key {
	case unix.NFT_CT_STATE:
		b = native(w.ctState())
	case unix.NFT_CT_STATUS:
		b = w.ctStatus()
	case unix.NFT_CT_L3PROTOCOL:
		b = exactly(w.family())
	case unix.NFT_CT_PROTOCOL:
		b = w.proto()
	case unix.NFT_CT_DIRECTION:
		if !w.p.Reply {
			b = exactly(0)
		}
	case unix.NFT_CT_SRC, unix.NFT_CT_SRC_IP, unix.NFT_CT_SRC_IP6:
		if original {
			b = w.addr(w.p.Src)
		}
	case unix.NFT_CT_DST, unix.NFT_CT_DST_IP, unix.NFT_CT_DST_IP6:
		if original {
			b = w.addr(w.p.Dst)
		}
	}
	m.put(attr32(d, unix.NFTA_CT_DREG), b, ctText(key))
	return true
}

// addrType is what the host's routes say of an address: unix.RTN_LOCAL and so on, in the bounds of what the packet
// filter asks, for which all but the table local is unicast in IPv4.
func (w *walk) addrType(a netip.Addr) (kind uint32, ok bool) {
	a = a.Unmap()
	switch {
	case !a.IsValid():
		return 0, false
	case a.IsMulticast():
		return unix.RTN_MULTICAST, true
	case a == netip.IPv4Unspecified(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return unix.RTN_BROADCAST, true
	}
	r, err := w.ns.RouteTo(a)
	switch {
	case err == nil && (r.Type == unix.RTN_LOCAL || r.Type == unix.RTN_BROADCAST || r.Type == unix.RTN_UNICAST):
		return uint32(r.Type), true
	case a.Is4():
		return unix.RTN_UNICAST, true // there is no route, which is not asked for here
	}
	return 0, false
}

// What x/sys lacks names for.
const (
	fibDaddr = 1 << 1 // NFTA_FIB_F_DADDR
	fibIif   = 1 << 3
	fibOif   = 1 << 4
)

// fib loads the type of an address. What else fib can find depends on links and rules that are not known here.
func (m *machine) fib(d []byte) {
	flags, a := attr32(d, unix.NFTA_FIB_FLAGS), m.w.p.Src
	if flags&fibDaddr != 0 {
		a = m.w.p.Dst
	}
	b := unknown(16)
	if attr32(d, unix.NFTA_FIB_RESULT) == unix.NFT_FIB_RESULT_ADDRTYPE {
		// Of a link, its own local addresses count alone; what is not local is so on every link.
		kind, ok := m.w.addrType(a)
		if ok && (flags&(fibIif|fibOif) == 0 || kind == unix.RTN_UNICAST || kind == unix.RTN_MULTICAST) {
			b = native(kind)
		}
	}
	m.put(attr32(d, unix.NFTA_FIB_DREG), b, fibText(d))
}
