package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ifname is a link's name as the packet filter compares it.
func ifname(name string) bits {
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

// proto, src and dst are what the packet's header says.
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
	case TCP, UDP, SCTP, unix.IPPROTO_UDPLITE, unix.IPPROTO_DCCP:
		return true
	}
	return false
}

// network is the packet's IP header: without options, and not a fragment.
func (w *walk) network() bits {
	var h bits
	put := func(at int, b bits) {
		copy(h.v[at:], b.v)
		copy(h.known[at:], b.known)
	}
	if w.p.is6() {
		h = unknown(40)
		h.v[0], h.known[0] = 0x60, 0xf0
		put(6, w.proto())
		put(8, w.addr(w.p.Src))
		put(24, w.addr(w.p.Dst))
		return h
	}
	h = unknown(20)
	put(0, exactly(0x45))
	h.known[6], h.known[7] = 0xbf, 0xff // of these 16 bits all but "do not fragment"
	put(9, w.proto())
	put(12, w.addr(w.p.Src))
	put(16, w.addr(w.p.Dst))
	return h
}

// transport is the part of the next header that is known.
func (w *walk) transport() bits {
	h := unknown(20)
	if !w.hasPorts() {
		return h
	}
	copy(h.v, append(port(w.p.SrcPort).v, port(w.p.DstPort).v...))
	copy(h.known, append(port(w.p.SrcPort).known, port(w.p.DstPort).known...))
	if w.p.Proto == TCP {
		h.v[13], h.known[13] = w.tcpFlags().v[0], w.tcpFlags().known[0]
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
	base, at, size := attr32(d, unix.NFTA_PAYLOAD_BASE), int(attr32(d, unix.NFTA_PAYLOAD_OFFSET)), int(attr32(d, unix.NFTA_PAYLOAD_LEN))
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
	b := unknown(min(size, 64))
	if at >= 0 && at+size <= len(h.v) {
		b = bits{h.v[at : at+size], h.known[at : at+size]}
	}
	m.put(attr32(d, unix.NFTA_PAYLOAD_DREG), b, origin{"payload", d})
	return true
}

// payloadText is a piece of a header in nft(8)'s words.
func payloadText(family, proto byte, base uint32, at, size int) string {
	names := map[[2]int]string{}
	switch {
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && family == unix.NFPROTO_IPV6:
		names = map[[2]int]string{{6, 1}: "ip6 nexthdr", {7, 1}: "ip6 hoplimit", {8, 16}: "ip6 saddr", {24, 16}: "ip6 daddr"}
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER:
		names = map[[2]int]string{{8, 1}: "ip ttl", {9, 1}: "ip protocol", {6, 2}: "ip frag-off", {2, 2}: "ip length", {12, 4}: "ip saddr", {16, 4}: "ip daddr"}
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && (proto == unix.IPPROTO_ICMP || proto == unix.IPPROTO_ICMPV6):
		names = map[[2]int]string{{0, 1}: "icmp type", {1, 1}: "icmp code"}
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		th := "th"
		if ProtoName(proto)[0] > '9' {
			th = ProtoName(proto)
		}
		names = map[[2]int]string{{0, 2}: th + " sport", {2, 2}: th + " dport", {13, 1}: "tcp flags"}
	}
	if s := names[[2]int{at, size}]; s != "" {
		return s
	}
	kind := "ll"
	switch base {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		kind = "nh"
		// Without the last bytes it is a prefix of an address.
		for k, s := range names {
			if k[0] == at && size < k[1] && k[1] >= 4 {
				return s
			}
		}
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		kind = "th"
	}
	return fmt.Sprintf("@%s,%d,%d", kind, 8*at, 8*size)
}

// metaText is what nft(8) calls what meta loads.
func metaText(key uint32) string {
	switch key {
	case unix.NFT_META_LEN:
		return "meta length"
	case unix.NFT_META_PROTOCOL:
		return "meta protocol"
	case unix.NFT_META_MARK:
		return "meta mark"
	case unix.NFT_META_IIF:
		return "iif"
	case unix.NFT_META_OIF:
		return "oif"
	case unix.NFT_META_IIFNAME:
		return "iifname"
	case unix.NFT_META_OIFNAME:
		return "oifname"
	case unix.NFT_META_NFPROTO:
		return "meta nfproto"
	case unix.NFT_META_L4PROTO:
		return "meta l4proto"
	case unix.NFT_META_PKTTYPE:
		return "meta pkttype"
	case unix.NFT_META_IIFGROUP:
		return "iifgroup"
	case unix.NFT_META_OIFGROUP:
		return "oifgroup"
	}
	return fmt.Sprintf("meta key %d", key)
}

func (m *machine) meta(d []byte) bool {
	key := attr32(d, unix.NFTA_META_KEY)
	if attr(d, unix.NFTA_META_SREG) != nil {
		if key == unix.NFT_META_MARK {
			mark, _ := m.get(attr32(d, unix.NFTA_META_SREG), 4)
			m.w.setMark(mark, m.sure)
		}
		return true
	}
	w := m.w
	b := unknown(4)
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
		b = ifname(w.p.In)
	case unix.NFT_META_OIFNAME:
		b = ifname(w.p.Out)
	case unix.NFT_META_SKUID, unix.NFT_META_SKGID, unix.NFT_META_CGROUP:
		return false // a forwarded packet has no socket
	case unix.NFT_META_NFPROTO:
		b = exactly(w.family())
	case unix.NFT_META_L4PROTO:
		b = w.proto()
	case unix.NFT_META_PKTTYPE:
		if w.p.Dst.IsValid() && !w.p.Dst.IsMulticast() {
			b = exactly(0) // unicast to us, by its MAC address
		} else {
			b = unknown(1)
		}
	case unix.NFT_META_IIFTYPE, unix.NFT_META_OIFTYPE:
		b = unknown(2)
	case metaIifkind, metaOifkind, metaSdifname, unix.NFT_META_BRI_IIFNAME, unix.NFT_META_BRI_OIFNAME:
		b = unknown(16)
	case metaTimeNS:
		b = unknown(8)
	case metaTimeDay:
		b = unknown(1)
	}
	m.put(attr32(d, unix.NFTA_META_DREG), b, origin{"meta", d})
	return true
}

// Keys of meta that x/sys lacks names for.
const (
	metaIifkind  = 26 // NFT_META_IIFKIND
	metaOifkind  = 27
	metaTimeNS   = 29
	metaTimeDay  = 30
	metaSdifname = 33
)

// setMark takes a mark that a rule sets, if the packet comes to the rule.
func (w *walk) setMark(mark bits, sure tri) {
	mark = mark.clone()
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
	if err != nil && !errors.Is(err, ErrNoLink) {
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
)

func (w *walk) ctState() uint32 {
	if w.p.Reply {
		return ctStateEstablished
	}
	return ctStateNew
}

// ctStatus is what is known of conntrack's status: a new flow has not seen an answer and is not confirmed.
func (w *walk) ctStatus() (value, sure uint32) {
	sure = ctStatusDNAT | ctStatusSeenReply | ctStatusConfirmed
	if w.p.DNAT {
		value |= ctStatusDNAT
	}
	if w.p.Reply {
		return value | ctStatusSeenReply | ctStatusConfirmed, sure
	}
	return value, sure | ctStatusAssured
}

func (m *machine) ct(d []byte) bool {
	if attr(d, unix.NFTA_CT_SREG) != nil {
		return true
	}
	w, key := m.w, attr32(d, unix.NFTA_CT_KEY)
	b := unknown(4)
	// The first packet of a flow goes the way of the flow; of others it is not known here, nor what was translated.
	original := !w.p.Reply && !w.p.DNAT && (attr(d, unix.NFTA_CT_DIRECTION) == nil || attr(d, unix.NFTA_CT_DIRECTION)[0] == 0)
	switch key {
	case unix.NFT_CT_STATE:
		b = native(w.ctState())
	case unix.NFT_CT_STATUS:
		value, sure := w.ctStatus()
		b = bits{native(value).v, native(sure).v}
	case unix.NFT_CT_DIRECTION:
		b = unknown(1)
		if !w.p.Reply {
			b = exactly(0)
		}
	case unix.NFT_CT_L3PROTOCOL:
		b = exactly(w.family())
	case unix.NFT_CT_PROTOCOL:
		b = w.proto()
	case unix.NFT_CT_SRC, unix.NFT_CT_SRC_IP, unix.NFT_CT_SRC_IP6:
		if b = w.addr(netip.Addr{}); original {
			b = w.addr(w.p.Src)
		}
	case unix.NFT_CT_DST, unix.NFT_CT_DST_IP, unix.NFT_CT_DST_IP6:
		if b = w.addr(netip.Addr{}); original {
			b = w.addr(w.p.Dst)
		}
	case unix.NFT_CT_PROTO_SRC, unix.NFT_CT_PROTO_DST:
		b = unknown(2)
		if original && w.hasPorts() {
			b = port(w.p.SrcPort)
			if key == unix.NFT_CT_PROTO_DST {
				b = port(w.p.DstPort)
			}
		}
	case unix.NFT_CT_HELPER, unix.NFT_CT_LABELS:
		b = unknown(16)
	case unix.NFT_CT_PKTS, unix.NFT_CT_BYTES, unix.NFT_CT_AVGPKT:
		b = unknown(8)
	case unix.NFT_CT_ZONE:
		b = unknown(2)
	}
	m.put(attr32(d, unix.NFTA_CT_DREG), b, origin{"ct", d})
	return true
}

func ctText(key uint32) string {
	switch key {
	case unix.NFT_CT_STATE:
		return "ct state"
	case unix.NFT_CT_STATUS:
		return "ct status"
	case unix.NFT_CT_MARK:
		return "ct mark"
	case unix.NFT_CT_DIRECTION:
		return "ct direction"
	}
	return fmt.Sprintf("ct key %d", key)
}
