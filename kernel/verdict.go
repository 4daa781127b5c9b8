package kernel

import (
	"cmp"
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
		chain = v.Jumped + " (called from " + chain + ")"
	}
	s := fmt.Sprintf("%s by table %s %s chain %s (", v.Outcome, family, v.Chain.Table, chain)
	if v.Outcome == Undecided {
		s = fmt.Sprintf("undecided: table %s %s chain %s (", family, v.Chain.Table, chain)
	}
	var words []string
	if v.Owner != "" {
		words = append(words, v.Owner)
	}
	switch {
	case v.Rule != "" && v.Handle != 0:
		words = append(words, fmt.Sprintf("rule %q, handle %d", v.Rule, v.Handle))
	case v.Rule != "":
		words = append(words, fmt.Sprintf("rule %q", v.Rule))
	case v.Outcome == Dropped:
		words = append(words, "policy drop; no rule accepts "+v.Packet.String())
	}
	if v.Why != "" {
		words = append(words, v.Why)
	}
	return s + strings.Join(words, ", ") + ")"
}

// Forwarded says what the rules of others do with a packet that is forwarded. It reads nf_tables, and of that only
// the chains that such a packet comes to; tables in skip, as in "inet fairlead", are left out. What legacy iptables
// holds nf_tables does not know: see ForeignForward.
func (ns *NS) Forwarded(p Packet, skip ...string) (Verdict, error) {
	nft, err := ns.NFT()
	if err != nil {
		return Verdict{Packet: p}, err
	}
	chains, err := nft.BaseChains()
	if err != nil && !unsupported(err) {
		return Verdict{Packet: p}, err
	}
	w := &walk{ns: ns, p: p, mark: native(p.Mark), left: mostRules}
	chains = slices.DeleteFunc(chains, func(c BaseChain) bool {
		return !c.forwards() || c.Family != unix.NFPROTO_INET && c.Family != w.family() || slices.Contains(skip, c.table())
	})
	if chains, err = nft.awake(chains); err != nil {
		return Verdict{Packet: p}, err
	}
	slices.SortStableFunc(chains, func(a, b BaseChain) int { return cmp.Compare(a.Priority, b.Priority) })
	filters := map[string]*nftFilter{}
	doubt := Verdict{Outcome: Accepted, Packet: p}
	for _, c := range chains {
		f := filters[c.table()]
		if f == nil {
			f = &nftFilter{nft: nft, family: c.Family, table: c.Table, read: map[string][]rule{}, sets: map[string]*nftSet{}}
			filters[c.table()] = f
		}
		w.chains = f.chain
		v := w.base(c)
		if w.err != nil {
			return Verdict{Packet: p}, fmt.Errorf("read what %v does: %w", c, w.err)
		}
		if v.Outcome == Dropped || doubt.Outcome == Accepted {
			doubt = v
		}
		if v.Outcome == Dropped {
			break
		}
	}
	if doubt.Outcome == Accepted {
		return Verdict{Outcome: Accepted, Packet: p}, nil
	}
	doubt.Owner = ownerOf(doubt.Chain.Family, doubt.Chain.Table, doubt.Jumped)
	if doubt.Rule == "" && doubt.Owner == "iptables-nft" {
		doubt.Owner += filters[doubt.Chain.table()].policyOwner()
	}
	return doubt, nil
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

// policyOwner guesses who has set the policy of FORWARD.
func (f *nftFilter) policyOwner() (owner string) {
	var qs []*question
	for _, p := range policyOwners() {
		qs = append(qs, &question{op: unix.NFT_MSG_GETCHAIN, family: f.family, answer: func([]byte) { owner = " of " + p.owner },
			fill: named(unix.NFTA_CHAIN_TABLE, &NFTTable{Name: f.table}, unix.NFTA_CHAIN_NAME, p.chain)})
	}
	if f.nft.ask(qs) != nil {
		return ""
	}
	return owner
}
