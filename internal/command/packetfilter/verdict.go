// Package packetfilter says what the rules in a host's packet filter would do with a packet, without sending one: which
// rule or policy drops it, and whose that is. It is for `fairlead doctor` and `fairlead trace`; no plugin links it.
//
// It reads every base chain at the forward or the input hook of ip, ip6 and inet, in order of priority, with the chains
// and sets that the packet comes to, and FORWARD or INPUT of legacy iptables in mangle, filter and security. No program
// is run. Not all of the packet need be known. A rule that asks for the rest, or in a way that is not understood, may
// match or not, and both are followed: what is dropped either way is dropped, and what is accepted either way is
// accepted; else the answer is undecided, because of that rule. Understood are
//
//   - of nf_tables what asks for links, addresses, protocols, ports, marks, conntrack's state and status and the type
//     of an address, with masks, ranges, sets, intervals, concatenations, maps and verdict maps; and what sets marks;
//   - of both kinds of iptables -s -d -i -o -p -f, tcp, udp, multiport, conntrack, state, mark, addrtype and comment.
//
// Never decided is what counts or throws dice (limit, quota, statistic), what is not in the packet's addresses and
// ports (its length and content, the time, conntrack's mark, ipset), and what a program in user space says (queue).
// Through says more of one packet: what each chain of a hook, or of a bridge's, does with it, and how it is translated.
// Chains at ingress and egress of a device are not looked at, nor programs of BPF.
package packetfilter

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// A Packet is one that might be forwarded. What is zero is not known of it: a rule that asks for it cannot be
// decided, unless it says otherwise below.
type Packet struct {
	In, Out          string     // links, by name
	Src, Dst         netip.Addr // one of them is needed, for the family
	Proto            byte       // TCP, UDP, …
	SrcPort, DstPort uint16
	Reply            bool   // an answer, of conntrack state established; else new, of TCP the first packet
	DNAT             bool   // translated by a published port or a Service; false is: it is not
	Mark             uint32 // 0 is no mark

	Local          bool    // the host sends it itself: it has a socket, and comes in by no link
	Fresh          bool    // conntrack's entry is new, and all that wrote to it was followed; of ICMP an echo request
	SrcMAC, DstMAC [6]byte // of the frame
	// it is no packet of IP, but the question of Src who has Dst; as a Reply, Src's answer to Dst
	ARP  bool
	ICMP byte // the type of ICMP; 0 is not known, if the packet is not Fresh

	Inner *Packet // it is of VXLAN, and carries this one
	VNI   uint32  // of VXLAN: the network identifier

	six       bool   // it is of IPv6, also where no address says so
	anyMark   bool   // the mark is not known
	touched   string // sets that rules have changed on its way, by nftTable.key
	lost      bool   // rules that were not followed may have changed sets, marks and what conntrack knows
	altered   bool   // a rule or a program may have written into the packet
	untracked tri
	exempt    *Verdict // the rule for which conntrack does not look at it
	asked     original // where it went before it was translated
}

// String is "10.88.0.5 -> anywhere" or "tcp 10.88.0.5:1024 -> 192.0.2.1:80".
func (p Packet) String() string {
	side := func(a netip.Addr, port uint16) string {
		switch {
		case !a.IsValid() && port == 0:
			return "anywhere"
		case !a.IsValid():
			return fmt.Sprintf("port %d", port)
		case port == 0:
			return a.Unmap().String()
		}
		return netip.AddrPortFrom(a.Unmap(), port).String()
	}
	s := side(p.Src, p.SrcPort) + " -> " + side(p.Dst, p.DstPort)
	if p.Proto != 0 {
		s = kernel.ProtoName(p.Proto) + " " + s
	}
	return s
}

// Exempt is the rule for which conntrack does not look at the packet, so that it is not translated either. It is nil if
// there is none.
func (p Packet) Exempt() *Verdict { return p.exempt }

func (p Packet) is6() bool {
	return p.six || p.Src.Unmap().Is6() || p.Dst.Unmap().Is6()
}

// An Outcome says what happens to a Packet. The zero Outcome is Undecided.
type Outcome uint8

// What can happen.
const (
	Undecided Outcome = iota // a rule asks for what is not known, or in a way that is not understood
	Accepted
	Dropped
	Translated // its destination is another one from there on
)

func (o Outcome) String() string {
	return [...]string{"undecided", "accepted", "dropped", "translated"}[o]
}

// A Verdict says what the rules that stand in the packet filter do with a Packet, and which of them does it.
type Verdict struct {
	Outcome Outcome
	Chain   nft.BaseChain // where the kernel enters; zero if Accepted
	Legacy  bool          // Chain is one of legacy iptables, which nft(8) does not show
	Jumped  string        // the chain that Rule stands in
	Rule    string        // in the words of nft(8); empty where no rule but the policy decides
	Number  uint64        // of Rule: its handle (nft -a list chain), with Legacy its line (iptables -L --line-numbers)
	Program string        // whose it seems to be: Docker, Firewalld, …; empty if its chains have no known name
	Owner   string        // that for people, such as "iptables-nft of ufw"
	Packet  Packet
	To      Translation // of Translated
	Exact   bool        // no other rule can be the one that decides; only of Exact ones is the rule named that accepts
	Why     string      // of Undecided: what is not known of the packet, or what is not understood
}

// String is one clause for an error message: "dropped by table ip filter chain FORWARD (iptables-nft, policy drop;
// no rule accepts 10.88.0.5 -> anywhere)".
func (v Verdict) String() string {
	if v.Outcome == Accepted {
		return "accepted (" + v.Packet.String() + ")"
	}
	if v.Chain.Table == "" {
		return v.Outcome.String() + ": " + v.Why
	}
	by := " by"
	if v.Outcome == Undecided {
		by = ":"
	}
	var words []string
	add := func(word, what string) {
		if what != "" {
			words = append(words, word+what)
		}
	}
	add("", v.Owner)
	add("rule: ", v.Rule)
	switch {
	case v.Rule == "" && v.Outcome == Dropped:
		add("policy drop; no rule accepts ", v.Packet.String())
	case v.Number != 0 && v.Legacy:
		add("line ", fmt.Sprint(v.Number))
	case v.Number != 0:
		add("handle ", fmt.Sprint(v.Number))
	}
	add("", v.Why)
	return fmt.Sprintf("%v%s %s (%s)", v.Outcome, by, v.Place(), strings.Join(words, ", "))
}

// Place returns the table and the chain of a verdict, such as "table inet filter chain site, called from forward".
func (v Verdict) Place() string {
	chain := v.Chain.Name
	if v.Jumped != "" && v.Jumped != chain {
		chain = v.Jumped + ", called from " + chain
	}
	return "table " + v.Chain.TableName() + " chain " + chain
}

// Forwarded says what the rules of others do with a packet that the host forwards. Tables in skip, as in "inet
// fairlead", are left out. It is undecided if the rules change all the time while they are read.
func Forwarded(ns *kernel.NS, p Packet, skip ...string) (Verdict, error) {
	return at(ns, Forward, p, skip, nil)
}

// Received says the same of a packet that is for the host itself, at the input hook.
func Received(ns *kernel.NS, p Packet, skip ...string) (Verdict, error) {
	return at(ns, Input, p, skip, nil)
}

// Arriving says whether the rules of others drop, or send elsewhere, a packet that comes to an address of the host.
// Only chains are looked at that come before those of another program at priority before.
func Arriving(ns *kernel.NS, p Packet, before int32, skip ...string) (Verdict, error) {
	return at(ns, Prerouting, p, skip, func(c nft.BaseChain) bool { return c.Priority >= before })
}

// ByAddress reports whether the addresses of a packet that is forwarded may decide what the rules of others do with it,
// on its whole way through the host. Rules that translate are not looked at.
func ByAddress(ns *kernel.NS, p Packet, skip ...string) (bool, error) {
	translates := func(c nft.BaseChain) bool { return c.Type == "nat" }
	for _, hook := range []int{Prerouting, Forward, Postrouting} {
		v, err := at(ns, hook, p.AnyAddress(), skip, translates)
		if err != nil || v.Outcome == Undecided {
			return true, err
		}
	}
	return false, nil
}

// at says what a hook does with a packet. Chains of tables in skip, and others, if it is given, are left out.
func at(ns *kernel.NS, hook int, p Packet, skip []string, others func(nft.BaseChain) bool) (Verdict, error) {
	v := Verdict{Packet: p}
	steady, err := whileSteady(ns, func(r *rules) (err error) {
		w := newWalk(ns, p)
		w.hook, w.translates = hook, hook == Prerouting
		v, err = w.decide(r, func(c nft.BaseChain) bool {
			return slices.Contains(skip, c.TableName()) || others != nil && others(c)
		})
		return err
	})
	if err == nil && !steady {
		v = Verdict{Packet: p, Why: unsteady}
	}
	return v, err
}

const unsteady = "the rules change while they are read"

// decide asks the base chains of the hook, without those that skip tells, until one drops the packet.
func (w *walk) decide(r *rules, skip func(nft.BaseChain) bool) (Verdict, error) {
	result := Verdict{Outcome: Accepted, Packet: w.p}
	hooks, err := w.hooks(r, skip)
	for _, h := range hooks {
		var v Verdict
		if v, err = w.ask(h); err != nil {
			break
		}
		if v.Outcome >= Dropped {
			return v, nil
		}
		if v.Outcome == Undecided && result.Outcome == Accepted {
			result = v
		}
	}
	if err != nil {
		return Verdict{Packet: result.Packet}, err
	}
	return result, nil
}

// ask walks through one base chain.
func (w *walk) ask(h hook) (Verdict, error) {
	w.chains, w.entered = h.table.chain, h
	w.early = int(h.Priority) < conntrack &&
		(w.hook == Prerouting && !w.p.Local || w.hook == Output) // by lo it comes with what conntrack knew of it
	altered := w.p.altered
	v := w.base(h.BaseChain)
	if w.err != nil {
		return v, fmt.Errorf("read what %v does: %w", h.BaseChain, w.err)
	}
	v.Legacy = h.legacy()
	if altered && v.Outcome != Undecided {
		v = Verdict{Chain: h.BaseChain, Legacy: v.Legacy, Packet: w.p,
			Why: "a rule before it may have changed the packet"}
	}
	if v.Owner, v.Program = h.owner(v); v.Outcome == Accepted && !w.through {
		v = Verdict{Outcome: Accepted, Packet: w.p}
	}
	return v, nil
}

// A hook is a base chain in its table.
type hook struct {
	nft.BaseChain
	table interface {
		chain(name string) ([]rule, error)
		has(chain string) bool
	}
}

// legacy reports whether the base chain is one of legacy iptables.
func (h hook) legacy() bool {
	_, is := h.table.(*legacyTable)
	return is
}

// Where conntrack and translation have their turn, whatever priorities the chains have that say how to translate:
// these only say which of them comes first.
const (
	conntrack = -200
	dnatTurn  = -100
	snatTurn  = 100
)

// turn is when a base chain is asked.
func (w *walk) turn(c nft.BaseChain) int32 {
	switch {
	case c.Type != "nat" || w.pf == unix.NFPROTO_BRIDGE:
		return c.Priority
	case w.hook == Prerouting || w.hook == Output:
		return dnatTurn
	}
	return snatTurn
}

// legacyTables are those of legacy iptables that have a chain at a hook.
func legacyTables(hook int) map[string]int32 {
	switch hook {
	case Prerouting:
		return map[string]int32{"raw": -300, "mangle": -150, "nat": dnatTurn}
	case Output:
		return map[string]int32{"raw": -300, "mangle": -150, "nat": dnatTurn, "filter": 0, "security": 50}
	case Postrouting:
		return map[string]int32{"mangle": -150, "nat": snatTurn}
	}
	return map[string]int32{"mangle": -150, "filter": 0, "security": 50}
}

// hooks are the base chains that a packet passes at one, without those that skip tells, in their order.
func (w *walk) hooks(r *rules, skip func(nft.BaseChain) bool) (hooks []hook, err error) {
	for _, c := range r.chains {
		ofFamily := c.Family == w.pf || c.Family == unix.NFPROTO_INET && w.pf != unix.NFPROTO_BRIDGE
		if !ofFamily || int(c.Hook) != w.hook || skip(c) {
			continue
		}
		t, err := r.table(c)
		if err != nil {
			return nil, err
		}
		if t != nil {
			hooks = append(hooks, hook{c, t})
		}
	}
	legacy := legacyTables(w.hook)
	if w.pf == unix.NFPROTO_BRIDGE {
		legacy = nil
	}
	for table, priority := range legacy {
		info, b, err := xtables.LegacyEntries(w.ns, w.p.is6(), table)
		if err != nil {
			return nil, err
		}
		if b == nil {
			continue
		}
		t, err := parseLegacy(info, b, w.p.is6())
		if err != nil {
			return nil, err
		}
		c := nft.BaseChain{Family: w.family(), Table: table, Name: builtIn(w.hook), Type: "filter",
			Hook: uint32(w.hook), Priority: priority, Drops: t.drops[w.hook]}
		if table == "nat" {
			c.Type = table
		}
		hooks = append(hooks, hook{c, t})
	}
	slices.Reverse(hooks) // of one priority the kernel asks those first that came last
	slices.SortStableFunc(hooks, func(a, b hook) int {
		return cmp.Or(cmp.Compare(w.turn(a.BaseChain), w.turn(b.BaseChain)), cmp.Compare(a.Priority, b.Priority))
	})
	return hooks, nil
}
