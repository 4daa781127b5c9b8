package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A Packet is one that might be forwarded. What is zero is not known of it: a rule that asks for it cannot be
// decided, unless it says otherwise below.
type Packet struct {
	In, Out          string     // links, by name
	Src, Dst         netip.Addr // one of them is needed, for the family
	Proto            byte       // TCP, UDP, …
	SrcPort, DstPort uint16
	Reply            bool   // conntrack state established; else new, of TCP the first packet
	DNAT             bool   // translated by a published port or a Service; false is: it is not
	Mark             uint32 // 0 is no mark
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
		s = ProtoName(p.Proto) + " " + s
	}
	return s
}

func (p Packet) is6() bool {
	a := p.Src
	if !a.IsValid() {
		a = p.Dst
	}
	return a.Unmap().Is6()
}

// An Outcome says what happens to a Packet. The zero Outcome is Undecided.
type Outcome uint8

// What can happen.
const (
	Undecided Outcome = iota // a rule asks for what is not known, or in a way that is not understood
	Accepted
	Dropped
)

func (o Outcome) String() string { return [...]string{"undecided", "accepted", "dropped"}[o] }

// A Verdict says what the rules that stand in the packet filter do with a Packet, and which of them does it.
type Verdict struct {
	Outcome Outcome
	Chain   BaseChain // where the kernel enters; zero if Accepted
	Legacy  bool      // Chain is one of legacy iptables, which nft(8) does not show
	Jumped  string    // the chain that Rule stands in, if it is another one
	Rule    string    // in the words of nft(8) or iptables(8); empty where no rule but the policy decides
	Handle  uint64    // of the rule in nf_tables ("nft -a list chain"); 0 with legacy iptables
	Owner   string    // whose it seems to be: Docker, firewalld, ufw, iptables-nft, …
	Packet  Packet
	Why     string // of Undecided: what is not known of the packet, or what is not understood
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
	family, _, _ := strings.Cut(v.Chain.String(), " ")
	chain := v.Chain.Name
	if v.Jumped != "" && v.Jumped != chain {
		chain = v.Jumped + ", called from " + chain
	}
	s := fmt.Sprintf("table %s %s chain %s (", family, v.Chain.Table, chain)
	if v.Outcome == Undecided {
		s = "undecided: " + s
	} else {
		s = v.Outcome.String() + " by " + s
	}
	var words []string
	if v.Rule == "" && v.Outcome == Dropped {
		words = append(words, "policy drop; no rule accepts "+v.Packet.String())
	}
	if v.Rule != "" {
		words = append(words, "rule: "+v.Rule)
	}
	if v.Handle != 0 {
		words = append(words, fmt.Sprintf("handle %d", v.Handle))
	}
	if v.Why != "" {
		words = append(words, v.Why)
	}
	if v.Owner != "" {
		words = append([]string{v.Owner}, words...)
	}
	return s + strings.Join(words, ", ") + ")"
}

// Forwarded says what the rules of others do with a packet that is forwarded: those of nf_tables, of which it reads the
// chains that such a packet comes to and no others, and those of legacy iptables. Tables in skip, as in
// "inet fairlead", are left out.
func (ns *NS) Forwarded(p Packet, skip ...string) (v Verdict, err error) {
	nft, err := ns.NFT()
	if err != nil {
		return Verdict{Packet: p}, err
	}
	var before Verdict
	for i := range 8 {
		from, err := nft.Generation()
		if err != nil && !unsupported(err) {
			return Verdict{Packet: p}, err
		}
		v, chains, err := ns.forwarded(p, skip)
		if errors.Is(err, unix.ENOENT) {
			continue // somebody deletes what the rules that were read lead to
		}
		if err != nil {
			return v, err
		}
		to, err := nft.Generation()
		if err != nil && !unsupported(err) {
			return v, err
		}
		// A chain that is made anew lets all through for a moment, of the new generation already, before it has its policy.
		if v.Outcome == Accepted && len(chains) > 0 {
			now, err := nft.BaseChains()
			if err != nil {
				return v, err
			}
			if !slices.Equal(now, chains) {
				continue
			}
		}
		if unsupported(err) || to == from || i > 0 && v == before {
			return v, nil
		}
		before = v
	}
	return Verdict{Packet: p, Why: "the rules change while they are read"}, nil
}

// forwarded also returns all base chains of nf_tables.
func (ns *NS) forwarded(p Packet, skip []string) (_ Verdict, chains []BaseChain, err error) {
	nft, err := ns.NFT()
	if err != nil {
		return Verdict{Packet: p}, nil, err
	}
	w := newWalk(ns, p)
	if chains, err = nft.BaseChains(); err != nil && !unsupported(err) {
		return Verdict{Packet: p}, nil, err
	}
	hooks, err := w.hooks(nft, slices.Clone(chains), skip)
	if err != nil {
		return Verdict{Packet: p}, nil, err
	}
	slices.SortStableFunc(hooks, func(a, b hook) int { return cmp.Compare(a.Priority, b.Priority) })
	result, at := Verdict{Outcome: Accepted, Packet: p}, hook{}
	for _, h := range hooks {
		w.chains = h.chains
		v := w.base(h.BaseChain)
		if w.err != nil {
			return Verdict{Packet: p}, nil, fmt.Errorf("read what %v does: %w", h.BaseChain, w.err)
		}
		if v.Outcome == Dropped || v.Outcome == Undecided && result.Outcome == Accepted {
			result, at = v, h
		}
		if v.Outcome == Dropped {
			break
		}
	}
	if result.Outcome == Accepted {
		return Verdict{Outcome: Accepted, Packet: p}, chains, nil
	}
	result.Legacy = at.legacy
	result.Owner = at.owner(result)
	return result, chains, nil
}

// A hook is a base chain and where its rules come from.
type hook struct {
	BaseChain
	chains func(name string) ([]rule, error)
	has    func(chain string) bool
	legacy bool
}

// hooks are the base chains that a forwarded packet passes.
func (w *walk) hooks(nft *NFT, chains []BaseChain, skip []string) (hooks []hook, err error) {
	chains = slices.DeleteFunc(chains, func(c BaseChain) bool {
		return !c.forwards() || c.Family != unix.NFPROTO_INET && c.Family != w.family() || slices.Contains(skip, c.table())
	})
	if chains, err = nft.awake(chains); err != nil {
		return nil, err
	}
	filters := map[string]*nftFilter{}
	for _, c := range chains {
		f := filters[c.table()]
		if f == nil {
			f = &nftFilter{nft: nft, family: c.Family, table: c.Table, read: map[string][]rule{}, sets: map[string]*nftSet{}}
			filters[c.table()] = f
		}
		hooks = append(hooks, hook{BaseChain: c, chains: f.chain, has: f.has})
	}
	there, err := w.ns.legacyTables(w.p.is6())
	for table, priority := range map[string]int32{"mangle": -150, "filter": 0, "security": 50} {
		if err != nil || !slices.Contains(there, table) {
			continue
		}
		info, b, err := w.ns.legacyEntries(w.p.is6(), table)
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
		hooks = append(hooks, hook{chains: t.chain, has: func(chain string) bool { _, ok := t.chains[chain]; return ok }, legacy: true,
			BaseChain: BaseChain{Family: w.family(), Table: table, Name: "FORWARD", Type: "filter", Hook: unix.NF_INET_FORWARD, Priority: priority,
				Drops: t.drops, Rules: len(t.chains["FORWARD"])}})
	}
	return hooks, err
}

// awake are the chains whose tables are not dormant.
func (n *NFT) awake(chains []BaseChain) (awake []BaseChain, err error) {
	qs, dormant := make([]*question, len(chains)), make([]bool, len(chains))
	for i, c := range chains {
		qs[i] = (&NFTTable{Family: c.Family, Name: c.Table}).question()
		qs[i].answer = func(body []byte) { dormant[i] = attr32(body[4:], unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0 }
	}
	err = n.ask(qs)
	for i, c := range chains {
		if !dormant[i] {
			awake = append(awake, c)
		}
	}
	return awake, err
}

// mostRules bounds the work for one packet.
const mostRules = 50000
