package packetfilter

import (
	"encoding/binary"
	"net/netip"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// linkName is a link's name as the packet filter compares it. Where the kernel has none, it compares zeros.
func linkName(name string, none bool) bits {
	switch {
	case none:
		return exactly(make([]byte, 16)...)
	case name == "":
		return unknown(16)
	}
	return exactly(nft.Key(name)...)
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
	case w.p.Inner != nil:
		h = w.vxlan(h)
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

// vxlan puts what is known of the packet inside behind the UDP header.
func (w *walk) vxlan(udp bits) bits {
	inner := walk{p: *w.p.Inner}
	inner.headers()
	h := unknown(8 + 8 + len(inner.ll.v) + len(inner.ip.v))
	h.write(0, bits{udp.v[:8], udp.known[:8]})
	h.write(8+4, exactly(byte(w.p.VNI>>16), byte(w.p.VNI>>8), byte(w.p.VNI)))
	h.write(8+8, inner.ll)
	h.write(8+8+len(inner.ll.v), inner.ip)
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

// payload loads a part of a header, or ends the walk where a rule rewrites one.
func (m *machine) payload(d []byte) bool {
	base := attr32(d, unix.NFTA_PAYLOAD_BASE)
	at, size := int(min(attr32(d, unix.NFTA_PAYLOAD_OFFSET), 1<<16)), int(min(attr32(d, unix.NFTA_PAYLOAD_LEN), 64))
	if attr(d, unix.NFTA_PAYLOAD_SREG) != nil {
		b, _ := m.load(d, unix.NFTA_PAYLOAD_SREG, size)
		if base == unix.NFT_PAYLOAD_NETWORK_HEADER && m.w.keepsHeader(at, b) {
			return true
		}
		return m.endUnknown("a header that is rewritten")
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
	m.store(d, unix.NFTA_PAYLOAD_DREG, b, payloadText(m.w.family(), base, at, size))
	return true
}

// keepsHeader reports whether no rule asks for what a rule writes into the IP header. That is the kind of service,
// which is never known: of IPv4 the second byte, of IPv6 the end of the first one and the two that follow.
func (w *walk) keepsHeader(at int, written bits) bool {
	end := at + len(written.v)
	isService := end <= 2 || end <= 4 && w.p.is6()
	if w.p.ARP || !isService {
		return false
	}
	return at > 0 || written.under(w.ip.known[:end]).is(w.ip.v[:end]) == yes
}
