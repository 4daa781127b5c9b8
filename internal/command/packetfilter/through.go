package packetfilter

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// The hooks that a packet passes, of IP and, with the same names but for the first two, of a bridge.
const (
	Prerouting  = unix.NF_INET_PRE_ROUTING
	Input       = unix.NF_INET_LOCAL_IN
	Forward     = unix.NF_INET_FORWARD
	Output      = unix.NF_INET_LOCAL_OUT
	Postrouting = unix.NF_INET_POST_ROUTING
)

// A Translation is a new address or port of one end of a packet. What is invalid or zero stays as it is.
type Translation struct {
	Kind    string // dnat, snat, masquerade, redirect
	Addr    netip.Addr
	Port    uint16
	Unknown string // what is not known of it
}

// An original is where a packet went before it was translated.
type original struct {
	known            bool
	src, dst         netip.Addr
	srcPort, dstPort uint16
}

func (p Packet) original() original {
	if p.asked.known {
		return p.asked
	}
	return original{!p.Reply && !p.DNAT, p.Src, p.Dst, p.SrcPort, p.DstPort}
}

// Entering is the packet as it comes in by a link, with nothing that conntrack knew of it. Its mark stays within one
// namespace.
func (p Packet) Entering(link string, within bool) Packet {
	e := Packet{In: link, Src: p.Src, Dst: p.Dst, Proto: p.Proto, SrcPort: p.SrcPort, DstPort: p.DstPort,
		SrcMAC: p.SrcMAC,
		DstMAC: p.DstMAC, Fresh: true, Inner: p.Inner, VNI: p.VNI, altered: p.altered}
	if within {
		e.Mark, e.anyMark, e.touched, e.lost, e.untracked = p.Mark, p.anyMark, p.touched, p.lost, min(p.untracked,
			maybe)
	}
	return e
}

// Answer is what comes in answer to the packet, which rules have made after since. Conntrack knows nothing of the
// answer to what it did not see.
func (p Packet) Answer(after Packet) Packet {
	return Packet{In: p.Out, Src: p.Dst, Dst: p.Src, Proto: p.Proto, SrcPort: p.DstPort, DstPort: p.SrcPort,
		Reply: true,
		DNAT:  p.DNAT, touched: after.touched, lost: after.lost, altered: after.altered,
		untracked: min(after.untracked, maybe)}
}

// Through follows a packet through all chains at a hook of IP, ours among them, and says what each of them does. After
// is the packet as it is then, translated and marked. It goes on until a chain drops it.
func Through(ns *kernel.NS, hook int, p Packet) (verdicts []Verdict, after Packet, err error) {
	return through(ns, hook, p, false)
}

// ThroughBridge is Through for the chains of family bridge, whose links are ports.
func ThroughBridge(ns *kernel.NS, hook int, p Packet) (verdicts []Verdict, after Packet, err error) {
	return through(ns, hook, p, true)
}

func through(ns *kernel.NS, hook int, p Packet, bridge bool) (verdicts []Verdict, after Packet, err error) {
	steady, err := whileSteady(ns, func(r *rules) error {
		verdicts = nil
		w := newWalk(ns, p)
		w.hook, w.through = hook, true
		if bridge {
			w.pf = unix.NFPROTO_BRIDGE
		}
		hooks, err := w.hooks(r, func(nft.BaseChain) bool { return false })
		if err != nil {
			return err
		}
		// it came by lo, and its way out has decided
		translated := p.Reply || p.Local && (hook == Prerouting || hook == Input)
		for _, h := range hooks {
			if h.Type == "nat" && (translated || w.untracked == yes) {
				continue
			}
			v, err := w.ask(h)
			if err != nil {
				return err
			}
			if v.Outcome == Translated {
				translated = true
				w.translate(&v.To)
				if v.To.Unknown != "" {
					v.Outcome, v.Why = Undecided, v.To.Unknown
				}
			}
			if verdicts = append(verdicts, v); v.Outcome == Dropped {
				break
			}
		}
		after = w.packet()
		return nil
	})
	if err == nil && !steady {
		verdicts = []Verdict{{Packet: p, Why: unsteady}}
	}
	return verdicts, after, err
}

// packet is the packet as it is by now.
func (w *walk) packet() Packet {
	p := w.p
	p.Mark, p.anyMark, p.untracked = 0, !w.mark.all(), w.untracked
	if p.anyMark = p.anyMark || len(w.mark.v) != 4; !p.anyMark {
		p.Mark = binary.NativeEndian.Uint32(w.mark.v)
	}
	p.Fresh = p.Fresh && !w.ctWritten
	return p
}

// translate changes the packet, and fills in the address that the kernel chooses.
func (w *walk) translate(to *Translation) {
	if !w.p.asked.known {
		w.p.asked = w.p.original()
	}
	switch {
	case to.Unknown != "":
		return
	case to.Kind == "masquerade":
		to.Addr = w.ownAddr(w.p.Out, w.p.Dst)
	case to.Kind == "redirect" && w.hook == Output && w.p.is6():
		to.Addr = netip.IPv6Loopback()
	case to.Kind == "redirect" && w.hook == Output:
		to.Addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case to.Kind == "redirect":
		to.Addr = w.ownAddr(w.p.In, netip.Addr{})
	}
	switch to.Kind {
	case "dnat", "redirect":
		w.p.DNAT = true
		w.p.Dst = cmp.Or(to.Addr, w.p.Dst)
		w.p.DstPort = cmp.Or(to.Port, w.p.DstPort)
	default:
		w.p.Src = cmp.Or(to.Addr, w.p.Src)
		w.p.SrcPort = to.Port // the kernel takes another one where this one is in use
	}
	w.headers()
}

// ownAddr is the address of a link that the kernel takes for what it sends by that link: one of the subnet where it
// goes, else the first one.
func (w *walk) ownAddr(link string, to netip.Addr) (first netip.Addr) {
	index, err := rtnl.IndexOf(w.ns, link)
	if err != nil {
		return first
	}
	if r, err := rtnl.RouteTo(w.ns, to); to.IsValid() && err == nil && r.Via.IsValid() {
		to = r.Via
	}
	addrs, _ := rtnl.Addrs(w.ns, index)
	for _, a := range addrs {
		switch own := a.Prefix.Addr(); {
		case own.Is6() != w.p.is6() || own.IsLinkLocalUnicast():
		case a.Prefix.Contains(to):
			return own
		case !first.IsValid():
			first = own
		}
	}
	return first
}

// noIn and noOut report whether the kernel has no such link to compare with at this hook.
func (w *walk) noIn() bool  { return w.through && w.p.In == "" && w.p.Local && !w.p.is6() }
func (w *walk) noOut() bool { return w.through && (w.hook == Prerouting || w.hook == Input) }

func (w *walk) inName() bits  { return linkName(w.p.In, w.noIn()) }
func (w *walk) outName() bits { return linkName(w.p.Out, w.noOut()) }

// translation is what "dnat", "snat", "redirect" or "masquerade" make of a packet.
func (m *machine) translation(name string, d []byte) Translation {
	switch name {
	case "masq":
		return Translation{Kind: "masquerade"}
	case "redir":
		to := Translation{Kind: "redirect"}
		to.Port, to.Unknown = m.natPort(attr32(d, unix.NFTA_REDIR_REG_PROTO_MIN),
			attr32(d, unix.NFTA_REDIR_REG_PROTO_MAX))
		return to
	}
	to := Translation{Kind: "dnat"}
	if attr32(d, unix.NFTA_NAT_TYPE) == unix.NFT_NAT_SNAT {
		to.Kind = "snat"
	}
	size := 4
	if attr32(d, unix.NFTA_NAT_FAMILY) == unix.NFPROTO_IPV6 {
		size = 16
	}
	from, last := attr32(d, unix.NFTA_NAT_REG_ADDR_MIN), attr32(d, unix.NFTA_NAT_REG_ADDR_MAX)
	if from != 0 {
		a, what := m.get(from, size)
		b, _ := m.get(cmp.Or(last, from), size)
		const prefix = 1 << 6 // NF_NAT_RANGE_NETMAP
		switch {
		case !a.all() || !b.all() || attr32(d, unix.NFTA_NAT_FLAGS)&prefix != 0:
			to.Unknown = "where it is translated to depends on " + what
		case b.is(a.v) != yes:
			to.Unknown = "it is translated to one of several addresses"
		default:
			to.Addr, _ = netip.AddrFromSlice(a.v)
		}
	}
	port, why := m.natPort(attr32(d, unix.NFTA_NAT_REG_PROTO_MIN), attr32(d, unix.NFTA_NAT_REG_PROTO_MAX))
	if to.Port = port; to.Unknown == "" && to.Kind == "dnat" {
		to.Unknown = why
	}
	return to
}

// natPort is the port that stands in registers, which may hold a range of them.
func (m *machine) natPort(from, last uint32) (number uint16, why string) {
	if from == 0 {
		return 0, ""
	}
	a, what := m.get(from, 2)
	b, _ := m.get(cmp.Or(last, from), 2)
	switch {
	case !a.all() || !b.all():
		return 0, "the port that it is translated to depends on " + what
	case b.is(a.v) != yes:
		return 0, "it is translated to one of several ports"
	}
	return binary.BigEndian.Uint16(a.v), ""
}

// targetTranslation is the same of a target of iptables.
func (w *walk) targetTranslation(name string, rev uint32, info []byte) Translation {
	const mapsAddr, mapsPort = 1, 2 // NF_NAT_RANGE_MAP_IPS, NF_NAT_RANGE_PROTO_SPECIFIED
	to := Translation{Kind: map[string]string{"DNAT": "dnat", "SNAT": "snat", "MASQUERADE": "masquerade",
		"REDIRECT": "redirect"}[name]}
	r, ok := xtables.ParseNAT(rev, info, w.p.is6())
	if to.Kind == "" || !ok {
		to.Unknown = "-j " + name
		return to
	}
	if r.Flags&mapsAddr != 0 {
		to.Addr = r.First
		if r.First != r.Last {
			to.Unknown = "it is translated to one of several addresses"
		}
	}
	if r.Flags&mapsPort != 0 {
		to.Port = r.FirstPort
		if to.Kind != "snat" && to.Kind != "masquerade" && r.FirstPort != r.LastPort {
			to.Unknown = "it is translated to one of several ports"
		}
	}
	return to
}

// String is "dnat to 10.88.0.5:80".
func (t Translation) String() string {
	switch {
	case t.Unknown != "":
		return t.Kind + ", but " + t.Unknown
	case t.Addr.IsValid() && t.Port != 0:
		return t.Kind + " to " + netip.AddrPortFrom(t.Addr, t.Port).String()
	case t.Addr.IsValid():
		return t.Kind + " to " + t.Addr.String()
	case t.Port != 0:
		return fmt.Sprintf("%s to port %d", t.Kind, t.Port)
	}
	return t.Kind
}
