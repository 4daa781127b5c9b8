package kernel

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// The conditions that both front ends ask, in iptables(8)'s terms.

// inState is "-m conntrack --ctstate": mask has the bits of ctStateNew and so on, and xtStateSNAT and xtStateDNAT.
func (w *walk) inState(mask uint32) tri {
	t := known(mask&w.ctState() != 0)
	if mask&xtStateDNAT != 0 && w.p.DNAT {
		t = yes
	}
	if mask&xtStateSNAT != 0 && w.p.Reply { // before the source is translated, at the end, it is not
		t = max(t, maybe)
	}
	return t
}

const (
	xtStateSNAT = 1 << 6 // and bit 0 to 3 as ct state has them
	xtStateDNAT = 1 << 7
)

// ofType is "-m addrtype" for one side: mask has a bit for each unix.RTN_….
func (w *walk) ofType(a netip.Addr, mask uint32, ofLink bool) tri {
	kind, ok := w.addrType(a)
	if !ok || ofLink && kind != unix.RTN_UNICAST && kind != unix.RTN_MULTICAST {
		return maybe
	}
	return known(mask&(1<<kind) != 0)
}

// between is whether a port lies in a range.
func between(n, from, to uint16) tri {
	return port(n).within(binary.BigEndian.AppendUint16(nil, from), binary.BigEndian.AppendUint16(nil, to))
}

// is is "-p".
func (w *walk) is(proto byte) tri { return w.proto().is([]byte{proto}) }

// xtMatch decides about a match of iptables that nf_tables calls: its name, revision and what its program wrote,
// in the layouts of linux/netfilter/xt_*.h. What it cannot decide it names.
func xtMatch(w *walk, name string, rev uint32, info []byte) (t tri, why string) {
	doubt := "-m " + name
	order := binary.NativeEndian
	switch {
	case name == "comment":
		return yes, ""
	case name == "state" && len(info) >= 4:
		return w.inState(order.Uint32(info)), doubt
	case name == "conntrack" && rev >= 2 && rev <= 3 && len(info) >= 154:
		return xtConntrack(w, info), doubt
	case name == "mark" && rev == 1 && len(info) >= 9:
		mask := info[4:8]
		return w.mark.masked(mask).is(info[:4]).not(info[8] != 0), doubt
	case name == "addrtype" && rev == 1 && len(info) >= 8:
		const invertSrc, invertDst, in, out = 1, 2, 4, 8
		src, dst, flags := uint32(order.Uint16(info)), uint32(order.Uint16(info[2:])), order.Uint32(info[4:])
		t = yes
		if src != 0 {
			t = min(t, w.ofType(w.p.Src, src, flags&in != 0).not(flags&invertSrc != 0))
		}
		if dst != 0 {
			t = min(t, w.ofType(w.p.Dst, dst, flags&out != 0).not(flags&invertDst != 0))
		}
		return t, doubt
	case name == "multiport" && rev == 1 && len(info) >= 48:
		return xtMultiport(w, info), doubt
	case name == "tcp" && len(info) >= 12, name == "udp" && len(info) >= 9:
		return xtPorts(w, name, info), doubt
	case name == "iprange" && rev == 1 && len(info) >= 65:
		const src, dst, notSrc, notDst = 1, 2, 16, 32
		t = yes
		if info[64]&src != 0 {
			t = min(t, w.addrIn(w.p.Src, info[0:16], info[16:32]).not(info[64]&notSrc != 0))
		}
		if info[64]&dst != 0 {
			t = min(t, w.addrIn(w.p.Dst, info[32:48], info[48:64]).not(info[64]&notDst != 0))
		}
		return t, doubt
	}
	return maybe, doubt
}

func (w *walk) addrIn(a netip.Addr, from, to []byte) tri {
	b := w.addr(a)
	return b.within(from[:len(b.v)], to[:len(b.v)])
}

func xtConntrack(w *walk, info []byte) tri {
	const ( // XT_CONNTRACK_…
		state, proto, origSrc, origDst, status, direction = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 6, 1 << 12
		alias                                             = 1 << 13
	)
	order := binary.NativeEndian
	flags, invert := order.Uint16(info[146:]), order.Uint16(info[148:])
	stateMask, statusMask := order.Uint16(info[150:]), order.Uint16(info[152:])
	t := yes
	ask := func(bit uint16, u tri) {
		if flags&bit != 0 {
			t = min(t, u.not(invert&bit != 0))
		}
	}
	address := func(at int, a netip.Addr) tri {
		b := w.addr(a)
		if w.p.Reply || w.p.DNAT {
			return maybe // of the flow's first packet, before it was translated
		}
		return b.masked(info[at+16 : at+16+len(b.v)]).is(info[at : at+len(b.v)])
	}
	ask(state, w.inState(uint32(stateMask)))
	ask(proto, w.is(byte(order.Uint16(info[136:]))))
	ask(origSrc, address(0, w.p.Src))
	ask(origDst, address(32, w.p.Dst))
	value, sure := w.ctStatus()
	ask(status, bits{native(value).v, native(sure).v}.any(native(uint32(statusMask)).v))
	if flags&direction != 0 {
		t = min(t, maybe)
	}
	if flags&^(state|proto|origSrc|origDst|status|direction|alias) != 0 {
		t = min(t, maybe)
	}
	return t
}

func xtMultiport(w *walk, info []byte) tri {
	const src, dst = 0, 1 // 2 is either of them
	if w.p.Proto == 0 {
		return maybe
	}
	if !w.hasPorts() {
		return no
	}
	in := func(n uint16) tri {
		t := no
		for _, ports := range multiports(info) {
			t = max(t, between(n, ports[0], ports[1]))
		}
		return t
	}
	var t tri
	switch info[0] {
	case src:
		t = in(w.p.SrcPort)
	case dst:
		t = in(w.p.DstPort)
	default:
		t = max(in(w.p.SrcPort), in(w.p.DstPort))
	}
	return t.not(info[47] != 0)
}

// xtPorts is a match of tcp or udp. The rule has said elsewhere that it is for that protocol.
func xtPorts(w *walk, name string, info []byte) tri {
	order, inv := binary.NativeEndian, info[8]
	t := w.is(UDP)
	if name == "tcp" {
		t, inv = w.is(TCP), info[11]
		if info[8] != 0 {
			t = min(t, maybe) // an option of the header
		}
		if mask := info[9]; mask != 0 {
			t = min(t, w.tcpFlags().masked([]byte{mask}).is([]byte{info[10]}).not(inv&4 != 0))
		}
	}
	t = min(t, between(w.p.SrcPort, order.Uint16(info), order.Uint16(info[2:])).not(inv&1 != 0))
	return min(t, between(w.p.DstPort, order.Uint16(info[4:]), order.Uint16(info[6:])).not(inv&2 != 0))
}

// target does what a target of iptables does to the mark, and says how it ends the packet's way: 0 if it does not.
func (w *walk) target(name string, rev uint32, info []byte, sure tri) (do decision, why string) {
	switch {
	case name == "MARK" && rev == 2 && len(info) >= 8:
		w.setMark(markSet(w.mark, info[:4], info[4:8]), sure)
	case name == "MARK" || name == "CONNMARK": // which may restore it
		w.setMark(unknown(4), sure)
	}
	return xtTarget(name)
}

// markSet is "--set-xmark mark/mask".
func markSet(old bits, mark, mask []byte) bits {
	b := old.clone()
	for i := range b.v {
		b.known[i] |= mask[i]
		b.v[i] = (b.v[i]&^mask[i] ^ mark[i]) & b.known[i]
	}
	return b
}

// xtTarget is how a target ends a packet's way, 0 if it does not, and what that depends on.
func xtTarget(name string) (do decision, why string) {
	switch {
	case name == "REJECT" || name == "DROP":
		return toDrop, ""
	case name == "ACCEPT":
		return toAccept, ""
	case name == "RETURN":
		return toReturn, ""
	case slices.Contains([]string{"LOG", "NFLOG", "ULOG", "MARK", "CONNMARK", "TRACE", "TCPMSS", "CLASSIFY", "CHECKSUM", "DSCP", "TOS", "TTL",
		"HL", "SET", "TEE", "AUDIT", "CT", "NOTRACK", "SECMARK", "CONNSECMARK", "RATEEST", "LED", "IDLETIMER", "TCPOPTSTRIP", "ECN"}, name):
		return 0, ""
	}
	return toOthers, "-j " + name // NFQUEUE and SYNPROXY, and what is not known here
}
