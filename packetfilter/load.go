package packetfilter

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
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

// headers writes down what is known of the packet's headers.
func (w *walk) headers() { w.ll, w.ip, w.th = w.ethernet(), w.network(), w.transport() }

// ethernet is the frame's header, where the addresses are known.
func (w *walk) ethernet() bits {
	h, none := unknown(14), [6]byte{}
	for at, mac := range map[int][6]byte{0: w.p.DstMAC, 6: w.p.SrcMAC} {
		if mac != none {
			h.write(at, exactly(mac[:]...))
		}
	}
	h.write(12, w.etherType())
	return h
}

func (w *walk) etherType() bits {
	switch {
	case w.p.ARP:
		return exactly(0x08, 0x06)
	case w.p.is6():
		return exactly(0x86, 0xdd)
	}
	return exactly(0x08, 0x00)
}

// network is the packet's IP header: without options, and not a fragment.
func (w *walk) network() bits {
	if w.p.ARP {
		h, op := unknown(28), byte(1)
		if w.p.Reply {
			op = 2
		}
		h.write(0, exactly(0, 1, 8, 0, 6, 4, 0, op))
		if w.p.SrcMAC != [6]byte{} {
			h.write(8, exactly(w.p.SrcMAC[:]...))
		}
		h.write(14, w.addr(w.p.Src))
		h.write(24, w.addr(w.p.Dst))
		return h
	}
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
	switch {
	case w.p.ICMP != 0:
		h.write(0, exactly(w.p.ICMP, 0))
	case w.p.Proto == kernel.TCP:
		h.write(13, w.tcpFlags())
	case w.p.Proto == kernel.ICMP && w.p.Fresh:
		h.write(0, exactly(8, 0))
	case w.p.Proto == kernel.ICMPv6 && w.p.Fresh:
		h.write(0, exactly(128, 0))
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
		// A header is written: all that follows may ask for it, but for the kind of service, which is never known.
		// Of IPv4 the second byte, of IPv6 the end of the first one and the two that follow.
		b, _ := m.get(attr32(d, unix.NFTA_PAYLOAD_SREG), size)
		if base == unix.NFT_PAYLOAD_NETWORK_HEADER && !m.w.p.ARP && (at+size <= 2 || at+size <= 4 && m.w.p.is6()) &&
			(at > 0 || b.under(m.w.ip.known[:size]).is(m.w.ip.v[:size]) == yes) {
			return true
		}
		return m.end(toOthers, "", "a header that is rewritten")
	}
	if m.w.p.ARP && base == unix.NFT_PAYLOAD_TRANSPORT_HEADER {
		return false
	}
	var h bits
	switch base {
	case unix.NFT_PAYLOAD_LL_HEADER:
		h = m.w.ll
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
		switch key {
		case unix.NFT_META_MARK:
			mark, _ := m.get(attr32(d, unix.NFTA_META_SREG), 4)
			w.setMark(mark, m.sure)
		case unix.NFT_META_PRIORITY, unix.NFT_META_NFTRACE, unix.NFT_META_SECMARK: // which are never known
		default: // the kernel forwards a packet by its type, and what is to be routed leaves the bridge
			return m.end(toOthers, "", metaText(key)+", which is rewritten")
		}
		return true
	}
	b := unknown(16) // what is not named here has at most so much
	switch key {
	case unix.NFT_META_PROTOCOL:
		b = w.etherType()
	case unix.NFT_META_MARK:
		b = w.mark
	case unix.NFT_META_IIF:
		if b = w.index(w.p.In); w.noIn() {
			b = native(0)
		}
	case unix.NFT_META_OIF:
		if b = w.index(w.p.Out); w.noOut() {
			b = native(0)
		}
	case unix.NFT_META_IIFNAME:
		b = w.inName()
	case unix.NFT_META_OIFNAME:
		b = w.outName()
	case unix.NFT_META_SKUID, unix.NFT_META_SKGID, unix.NFT_META_CGROUP:
		if !w.p.Local && w.hook != unix.NF_INET_LOCAL_IN {
			return false // a forwarded packet has no socket
		}
	case metaIifkind:
		if l, err := rtnl.LinkByName(w.ns, w.p.In); err == nil {
			b = exactly(append([]byte(l.Kind), make([]byte, 16)...)[:16]...)
		}
	case unix.NFT_META_NFPROTO:
		b = exactly(w.pf)
	case unix.NFT_META_L4PROTO:
		if b = w.proto(); w.p.ARP {
			return false // it has none
		}
	case unix.NFT_META_PKTTYPE:
		if w.pf != unix.NFPROTO_BRIDGE && w.p.Dst.IsValid() && !w.p.Dst.IsMulticast() {
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
	i, err := rtnl.IndexOf(w.ns, name)
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return unknown(4)
	}
	return native(uint32(i)) // 0, which no link has, for one that is not there
}

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
	m.put(attr32(d, unix.NFTA_CT_DREG), b, ctText(key))
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
	r, err := rtnl.RouteTo(w.ns, a)
	switch {
	case err == nil && (r.Type == unix.RTN_LOCAL || r.Type == unix.RTN_BROADCAST || r.Type == unix.RTN_UNICAST):
		return uint32(r.Type), true
	case a.Is4():
		return unix.RTN_UNICAST, true // there is no route, which is not asked for here
	}
	return 0, false
}

const metaIifkind = 26 // NFT_META_IIFKIND

// What x/sys lacks names for.
const (
	fibDaddr = 1 << 1 // NFTA_FIB_F_DADDR
	fibSaddr = 1 << 0
	fibMark  = 1 << 2
	fibIif   = 1 << 3
	fibOif   = 1 << 4
)

// wayBack is the link that the packet comes in by, if the way back to its source leads there, and 0 if there is no way
// back at all. Where it leads elsewhere, another table may say otherwise.
func (w *walk) wayBack() (index uint32, ok bool) {
	if !w.p.Src.IsValid() || w.p.In == "" {
		return 0, false
	}
	in, err := rtnl.IndexOf(w.ns, w.p.In)
	r, rerr := rtnl.RouteTo(w.ns, w.p.Src)
	switch {
	case err != nil:
		return 0, false
	case errors.Is(rerr, unix.ENETUNREACH):
		return 0, true
	case rerr != nil || r.Type != unix.RTN_UNICAST || r.Link != in:
		return 0, false
	}
	return uint32(in), true
}

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
	if flags == fibSaddr|fibIif || flags == fibSaddr|fibIif|fibMark {
		if index, ok := m.w.wayBack(); ok && attr32(d, unix.NFTA_FIB_RESULT) == unix.NFT_FIB_RESULT_OIF {
			b = native(index)
		}
	}
	m.put(attr32(d, unix.NFTA_FIB_DREG), b, fibText(d))
}
