package packetfilter

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// What iptables asks with -m and does with -j, whether nf_tables calls it or ip_tables.

// inState is "-m conntrack --ctstate": mask has the bits of ctStateNew and so on, and these two.
func (w *walk) inState(mask uint32) tri {
	const snat, dnat, untracked = 1 << 6, 1 << 7, 1 << 8 // XT_CONNTRACK_STATE_SNAT, …
	switch {
	case w.untracked == maybe:
		return maybe
	case w.untracked == yes:
		return known(mask&untracked != 0)
	case w.early:
		return known(mask&ctStateInvalid != 0)
	}
	t := known(mask&w.ctState() != 0 || mask&dnat != 0 && w.p.DNAT)
	if mask&snat != 0 && w.p.Reply { // before the source is translated, at the end, it is not
		t = max(t, maybe)
	}
	return t
}

// ofType is "-m addrtype" for one side: mask has a bit for each unix.RTN_….
func (w *walk) ofType(a netip.Addr, mask uint16, ofLink bool) tri {
	kind, ok := w.addrType(a)
	if !ok || ofLink && kind != unix.RTN_UNICAST && kind != unix.RTN_MULTICAST {
		return maybe
	}
	return known(mask&(1<<kind) != 0)
}

// between is whether a port lies in a range.
func between(n, from, to uint16) tri {
	if n == 0 {
		return maybe
	}
	return known(n >= from && n <= to)
}

// is is "-p".
func (w *walk) is(proto byte) tri { return w.proto().is([]byte{proto}) }

// match decides about a match of iptables: its name, its revision and what its program wrote, in the layouts of
// linux/netfilter/xt_*.h.
func (w *walk) match(name string, rev uint32, info []byte) tri {
	order := binary.NativeEndian
	switch {
	case name == "comment":
		return yes
	case name == "state" && len(info) >= 4:
		return w.inState(order.Uint32(info))
	case name == "conntrack" && rev >= 2 && rev <= 3 && len(info) >= 154:
		return w.matchConntrack(info)
	case name == "mark" && rev == 1 && len(info) >= 9:
		return w.mark.under(info[4:8]).is(info[:4]).not(info[8] != 0)
	case name == "addrtype" && rev == 1 && len(info) >= 8:
		const notSrc, notDst, in, out = 1, 2, 4, 8
		src, dst, flags := order.Uint16(info), order.Uint16(info[2:]), order.Uint32(info[4:])
		t := yes
		if src != 0 {
			t = min(t, w.ofType(w.p.Src, src, flags&in != 0).not(flags&notSrc != 0))
		}
		if dst != 0 {
			t = min(t, w.ofType(w.p.Dst, dst, flags&out != 0).not(flags&notDst != 0))
		}
		return t
	case name == "multiport" && rev == 1 && len(info) >= 48:
		return w.matchMultiport(info)
	case name == "tcp" && len(info) >= 12, name == "udp" && len(info) >= 9:
		return w.matchPorts(name, info)
	}
	return maybe
}

func (w *walk) matchConntrack(info []byte) tri {
	const state, proto, status, alias = 1 << 0, 1 << 1, 1 << 6, 1 << 13 // XT_CONNTRACK_…
	order := binary.NativeEndian
	flags, invert := order.Uint16(info[146:]), order.Uint16(info[148:])
	t := yes
	ask := func(bit uint16, u tri) {
		if flags&bit != 0 {
			t = min(t, u.not(invert&bit != 0))
		}
	}
	ask(state, w.inState(uint32(order.Uint16(info[150:]))))
	if w.noConntrack() { // the kernel asks for nothing else then
		return min(t, known(flags&state != 0))
	}
	ask(proto, w.is(byte(order.Uint16(info[136:]))))
	ask(status, w.ctStatus().any(native(uint32(order.Uint16(info[152:]))).v))
	if flags&^(state|proto|status|alias) != 0 { // the flow's first addresses and ports, its age, its direction
		t = min(t, maybe)
	}
	return t
}

func (w *walk) matchMultiport(info []byte) tri {
	const src, dst = 0, 1 // 2 is either of them
	if w.p.Proto != 0 && !w.hasPorts() {
		return no
	}
	t := no
	for _, ports := range xtables.Multiports(info) {
		if info[0] != dst {
			t = max(t, between(w.p.SrcPort, ports[0], ports[1]))
		}
		if info[0] != src {
			t = max(t, between(w.p.DstPort, ports[0], ports[1]))
		}
	}
	if t = t.not(info[47] != 0); w.p.Proto == 0 {
		return maybe
	}
	return t
}

// matchPorts is a match of tcp or udp. The rule has said elsewhere that it is for that protocol.
func (w *walk) matchPorts(name string, info []byte) tri {
	order, inv := binary.NativeEndian, info[8]
	t := w.is(kernel.UDP)
	if name == "tcp" {
		t, inv = w.is(kernel.TCP), info[11]
		if info[8] != 0 {
			t = min(t, maybe) // an option of the header
		}
		if mask := info[9]; mask != 0 {
			t = min(t, w.tcpFlags().under([]byte{mask}).is([]byte{info[10]}).not(inv&4 != 0))
		}
	}
	ports := func(n uint16, b []byte, not bool) {
		if from, to := order.Uint16(b), order.Uint16(b[2:]); not || from > 0 || to < 0xffff {
			t = min(t, between(n, from, to).not(not))
		}
	}
	ports(w.p.SrcPort, info, inv&1 != 0)
	ports(w.p.DstPort, info[4:], inv&2 != 0)
	return t
}

const ctNotrack = 1 // XT_CT_NOTRACK

// target does what a target of iptables does to the mark, and says how it ends the packet's way, if it does.
func (w *walk) target(name string, rev uint32, info []byte, sure tri) branch {
	order := binary.NativeEndian
	isDNAT := slices.Contains([]string{"DNAT", "REDIRECT", "NETMAP"}, name)
	isSNAT := slices.Contains([]string{"SNAT", "MASQUERADE"}, name)
	switch {
	case name == "MARK" && rev == 2 && len(info) >= 8: // --set-xmark mark/mask
		keep := order.AppendUint32(nil, ^order.Uint32(info[4:]))
		w.setMark(w.mark.masked(keep, info[:4]), sure)
		return branch{}
	case name == "MARK" || name == "CONNMARK": // which may restore it
		w.ctWritten = w.ctWritten || name == "CONNMARK"
		w.setMark(unknown(4), sure)
		return branch{}
	case name == "REJECT" || name == "DROP":
		return branch{do: toDrop}
	case w.translates && isDNAT, w.through && isSNAT:
		return branch{do: toTranslate, to: w.targetTranslation(name, rev, info)}
	case name == "NOTRACK", name == "CT" && len(info) >= 2 && order.Uint16(info)&ctNotrack != 0:
		w.notrack(sure)
		return branch{}
	case name == "CT":
		w.untracked = max(w.untracked, maybe)
		return branch{}
	case name == "ACCEPT":
		return branch{do: toAccept}
	case name == "RETURN":
		return branch{do: toReturn}
	case slices.Contains([]string{"LOG", "NFLOG", "ULOG", "TRACE", "TCPMSS", "CLASSIFY", "CHECKSUM", "DSCP", "TOS",
		"SET", "TEE", "AUDIT", "SECMARK", "CONNSECMARK", "RATEEST", "LED", "IDLETIMER", "TCPOPTSTRIP",
		"ECN"}, name):
		return branch{}
	}
	w.alter()
	return branch{do: toUnknown, why: "-j " + name} // NFQUEUE and SYNPROXY, and what is not known here
}
