package kernel

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const nfAccept = 1 // NF_ACCEPT

// Numbers of linux/netfilter/nf_tables.h that x/sys lacks: of tables, and of ranges in concatenations.
const (
	nftaTableHandle   = 4
	nftaSetDescConcat = 2
	nftaSetFieldLen   = 1
	nftaSetElemKeyEnd = 10
	nftSetConcat      = 0x80
)

// named is the body of a request for one object of a table.
func named(table uint16, t *NFTTable, name uint16, what string) func(*requests) {
	return func(r *requests) {
		r.str(table, t.Name)
		if what != "" {
			r.str(name, what)
		}
	}
}

// Supported is nil where the kernel has nf_tables, else what it says.
func (n *NFT) Supported(t *NFTTable) error {
	return n.ask([]*question{t.question()})
}

func (t *NFTTable) question() *question {
	return &question{op: unix.NFT_MSG_GETTABLE, family: t.Family, answer: func([]byte) {},
		fill: named(unix.NFTA_TABLE_NAME, t, 0, "")}
}

// Handle is the number of a table: one that is made anew, under the same name, has another.
func (n *NFT) Handle(t *NFTTable) (handle uint64, there bool, err error) {
	q := t.question()
	q.answer = func(body []byte) {
		if v := Attr(body[4:], nftaTableHandle); len(v) == 8 {
			handle = binary.BigEndian.Uint64(v)
		}
	}
	err = n.ask([]*question{q})
	return handle, q.found, err
}

func (s *NFTSet) question() *question {
	return &question{op: unix.NFT_MSG_GETSET, family: s.Table.Family, answer: func([]byte) {},
		fill: named(unix.NFTA_SET_TABLE, s.Table, unix.NFTA_SET_NAME, s.Name)}
}

// Intact looks at no more than how many rules each chain of t has and how many jump to it, more among them: enough to
// see that somebody flushed or deleted something. Diff sees everything. Of the sets it looks whether something can end
// in the first, where it should: they are all made alike. What was seen in the same generation is not asked again.
func (n *NFT) Intact(generation uint32, t *NFTTable, more ...*NFTRule) (bool, error) {
	ok := true
	var qs []*question
	n.c.mu.Lock()
	k := n.keeps()
	if generation == 0 || k.intactIn != generation {
		k.intactIn, k.intact = generation, map[string]uint32{}
	}
	seen, now := maps.Clone(k.intact), map[string]uint32{}
	n.c.mu.Unlock()
	for _, c := range t.Chains {
		if c.Open {
			continue
		}
		want := uint32(len(c.Rules))
		for _, d := range append(t.Chains, &NFTChain{Rules: more}) {
			for _, r := range d.Rules {
				if r.jumps == c.Name {
					want++
				}
			}
		}
		name := t.String() + " " + c.Name
		if uses, ok := seen[name]; ok && uses == want {
			continue
		}
		now[name] = want
		qs = append(qs, &question{op: unix.NFT_MSG_GETCHAIN, family: t.Family,
			fill:   named(unix.NFTA_CHAIN_TABLE, t, unix.NFTA_CHAIN_NAME, c.Name),
			answer: func(body []byte) { ok = ok && Attr32(body[4:], unix.NFTA_CHAIN_USE) == want },
		})
	}
	if name := "ends " + t.String(); t.Ends && len(t.Sets) > 0 && seen[name] == 0 {
		now[name] = 1
		q := t.Sets[0].question()
		q.answer = func(body []byte) { ok = ok && Attr32(body[4:], unix.NFTA_SET_FLAGS)&unix.NFT_SET_TIMEOUT != 0 }
		qs = append(qs, q)
	}
	err := n.ask(qs)
	for _, q := range qs {
		ok = ok && q.found
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	if ok && err == nil && k.intactIn == generation {
		maps.Copy(k.intact, now)
	}
	return ok, err
}

// A tableLook is what the kernel has of a table.
type tableLook struct {
	table, dormant bool            // it is there; nothing in it applies
	sets, chains   []*question     // in the table's order
	odd            map[string]bool // what is there and is something else, which cannot be mended
}

func (n *NFT) lookAt(t *NFTTable) (*tableLook, error) {
	l := &tableLook{odd: map[string]bool{}}
	table := t.question()
	table.answer = func(body []byte) {
		l.dormant = Attr32(body[4:], unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
	}
	for _, s := range t.Sets {
		q := s.question()
		q.answer = func(body []byte) { l.odd["set "+s.Name] = !s.like(body[4:]) }
		l.sets = append(l.sets, q)
	}
	for _, c := range t.Chains {
		l.chains = append(l.chains, &question{op: unix.NFT_MSG_GETCHAIN, family: t.Family,
			fill:   named(unix.NFTA_CHAIN_TABLE, t, unix.NFTA_CHAIN_NAME, c.Name),
			answer: func(body []byte) { l.odd["chain "+c.Name] = !c.like(body[4:]) }})
	}
	err := n.ask(slices.Concat(l.sets, l.chains, []*question{table}))
	l.table = table.found
	return l, err
}

// like reports whether the kernel's set has the keys and values of s.
func (s *NFTSet) like(b []byte) bool {
	keyType, keyLen := typeOf(s.Key)
	dataType, dataLen := typeOf(s.Data)
	return Attr32(b, unix.NFTA_SET_KEY_TYPE) == keyType && Attr32(b, unix.NFTA_SET_KEY_LEN) == uint32(keyLen) &&
		(Attr32(b, unix.NFTA_SET_FLAGS)^s.flags())&(unix.NFT_SET_MAP|unix.NFT_SET_INTERVAL) == 0 &&
		(len(s.Data) == 0 || Attr32(b, unix.NFTA_SET_DATA_TYPE) == dataType &&
			Attr32(b, unix.NFTA_SET_DATA_LEN) == uint32(dataLen))
}

// like reports whether the kernel's chain hangs where c does.
func (c *NFTChain) like(b []byte) bool {
	return c.Type == text(Attr(b, unix.NFTA_CHAIN_TYPE)) && (c.Type == "" ||
		Attr32(b, unix.NFTA_CHAIN_HOOK, unix.NFTA_HOOK_HOOKNUM) == c.Hook &&
			int32(Attr32(b, unix.NFTA_CHAIN_HOOK, unix.NFTA_HOOK_PRIORITY)) == c.Priority &&
			Attr32(b, unix.NFTA_CHAIN_POLICY) == nfAccept)
}

// Diff compares the sets and chains of t with the kernel's. It returns what is missing or different, in
// words, and the transaction that mends it.
func (n *NFT) Diff(t *NFTTable) (drift []error, fix *NFTBatch, err error) {
	l, err := n.lookAt(t)
	if err != nil {
		return nil, nil, err
	}
	for what, bad := range l.odd {
		if bad {
			drift = append(drift, fmt.Errorf("nft %s of table %v is of another kind (nft delete table %v makes room)", what, t,
				t))
		}
	}
	if drift != nil {
		return drift, nil, nil
	}
	fix = &NFTBatch{}
	if !l.table {
		drift = append(drift, &NoTableError{t.String()})
		fix.op("add", unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t, "table "+t.String(), named(unix.NFTA_TABLE_NAME, t, 0, ""))
		defer func() { drift = drift[:1] }() // which says that all in it is missing, too
	}
	if l.dormant {
		drift = append(drift, fmt.Errorf("nft table %v is dormant, so nothing in it applies", t))
		name := named(unix.NFTA_TABLE_NAME, t, 0, "")
		fix.op("wake", unix.NFT_MSG_NEWTABLE, 0, t, "table "+t.String(), func(r *requests) {
			name(r)
			r.u32(unix.NFTA_TABLE_FLAGS, 0)
		})
	}
	for i, s := range t.Sets {
		if !l.sets[i].found && !(s.Later && l.table) {
			drift = append(drift, fmt.Errorf("nft set %v %s is missing", t, s.Name))
			fix.AddSet(s)
		}
	}
	// All chains before the first rule: rules jump.
	for i, c := range t.Chains {
		if !l.chains[i].found {
			drift = append(drift, fmt.Errorf("nft chain %v %s is missing", t, c.Name))
			fix.addChain(t, c)
		}
	}
	for i, c := range t.Chains {
		wrong, err := n.diffRules(t, c, l.chains[i].found, fix)
		if err != nil {
			return nil, nil, err
		}
		drift = append(drift, wrong...)
	}
	return drift, fix, nil
}

// diffRules compares the rules of a chain, which is there or to be made, and writes into fix what mends them.
func (n *NFT) diffRules(t *NFTTable, c *NFTChain, there bool, fix *NFTBatch) (drift []error, err error) {
	if c.Open {
		return nil, nil
	}
	var got []string
	if there {
		if got, err = n.Rules(t, c.Name); err != nil {
			return nil, err
		}
	}
	want := make([]string, len(c.Rules))
	for i, r := range c.Rules {
		want[i] = r.Comment()
	}
	if slices.Equal(got, want) {
		return nil, nil
	}
	if there {
		drift = ruleDrift(t, c, got, want)
		if len(got) > 0 {
			fix.op("flush", unix.NFT_MSG_DELRULE, 0, t, "chain "+t.String()+" "+c.Name,
				named(unix.NFTA_RULE_TABLE, t, unix.NFTA_RULE_CHAIN, c.Name))
		}
	}
	for _, r := range c.Rules {
		fix.AddRule(t, c.Name, r)
	}
	return drift, nil
}

// Drift is what Diff finds, looked for once a generation: where that is the same, no transaction has changed anything
// since, whoever's. So the plugins of a chain read the same table once.
func (n *NFT) Drift(t *NFTTable, generation uint32) ([]error, error) {
	n.c.mu.Lock()
	k := n.keeps()
	if k.driftsOf != generation {
		k.driftsOf, k.drifts = generation, map[string][]error{}
	}
	found, known := k.drifts[t.ID()]
	n.c.mu.Unlock()
	if known {
		return found, nil
	}
	found, _, err := n.Diff(t)
	found = slices.Clip(found) // who asked adds to it
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	if err == nil && k.driftsOf == generation {
		k.drifts[t.ID()] = found
	}
	return found, err
}

// ID tells apart tables, and what is shared in one: chains and sets of it are named after what they do.
func (t *NFTTable) ID() string {
	names := []string{t.String()}
	for _, c := range t.Chains {
		names = append(names, c.Name)
	}
	for _, s := range t.Sets {
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}

func ruleDrift(t *NFTTable, c *NFTChain, got, want []string) (drift []error) {
	for _, w := range want {
		if !slices.Contains(got, w) {
			drift = append(drift, fmt.Errorf("nft rule %v %s %q is missing", t, c.Name, w))
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			drift = append(drift, fmt.Errorf("nft chain %v %s has a rule %q that is not ours; it belongs into the chain user", t,
				c.Name, g))
		}
	}
	if drift == nil {
		drift = append(drift, fmt.Errorf("nft chain %v %s has its rules twice or in another order", t, c.Name))
	}
	return drift
}

// Rules are the comments of a chain's rules, in order. A chain that does not exist has none.
func (n *NFT) Rules(t *NFTTable, chain string) (comments []string, err error) {
	err = n.eachRule(t, chain, func(body []byte) {
		comments = append(comments, comment(Attr(body, unix.NFTA_RULE_USERDATA)))
	})
	return comments, err
}

func (s *NFTSet) flags() (flags uint32) {
	if len(s.Data) > 0 {
		flags |= unix.NFT_SET_MAP
	}
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL | nftSetConcat
	}
	if s.Table.Ends {
		flags |= unix.NFT_SET_TIMEOUT
	}
	return flags
}

// AddSet makes a set, or leaves one of the same kind as it is.
func (b *NFTBatch) AddSet(s *NFTSet) {
	id := uint32(len(b.ops) + 1)
	b.op("add", unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, s.Table, "set "+s.Table.String()+" "+s.Name, func(r *requests) {
		r.str(unix.NFTA_SET_TABLE, s.Table.Name)
		r.str(unix.NFTA_SET_NAME, s.Name)
		r.u32(unix.NFTA_SET_ID, id)
		typ, size := typeOf(s.Key)
		r.u32(unix.NFTA_SET_KEY_TYPE, typ)
		r.u32(unix.NFTA_SET_KEY_LEN, uint32(size))
		if len(s.Key) == 1 && s.Key[0] == NFTIfname {
			// nft(8) prints names the wrong way round unless it is told their byte order: type 0, 4 bytes,
			// and 1 for the host's.
			r.attr(unix.NFTA_SET_USERDATA, append([]byte{0, 4}, binary.NativeEndian.AppendUint32(nil, 1)...)...)
		}
		if s.flags() != 0 {
			r.u32(unix.NFTA_SET_FLAGS, s.flags())
		}
		if s.Interval {
			r.nest(unix.NFTA_SET_DESC, func() {
				r.nest(nftaSetDescConcat, func() {
					for _, t := range s.Key {
						r.nest(unix.NFTA_LIST_ELEM, func() { r.u32(nftaSetFieldLen, uint32(t.size())) })
					}
				})
			})
		}
		if len(s.Data) == 0 {
			return
		}
		typ, size = typeOf(s.Data)
		r.u32(unix.NFTA_SET_DATA_TYPE, typ)
		r.u32(unix.NFTA_SET_DATA_LEN, uint32(size))
	})
}

func (b *NFTBatch) addChain(t *NFTTable, c *NFTChain) {
	b.op("add", unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, t, "chain "+t.String()+" "+c.Name, func(r *requests) {
		r.str(unix.NFTA_CHAIN_TABLE, t.Name)
		r.str(unix.NFTA_CHAIN_NAME, c.Name)
		if c.Type == "" {
			return
		}
		r.nest(unix.NFTA_CHAIN_HOOK, func() {
			r.u32(unix.NFTA_HOOK_HOOKNUM, c.Hook)
			r.attr(unix.NFTA_HOOK_PRIORITY, binary.BigEndian.AppendUint32(nil, uint32(c.Priority))...)
		})
		r.str(unix.NFTA_CHAIN_TYPE, c.Type)
	})
}

// AddRule adds a rule at the end of a chain.
func (b *NFTBatch) AddRule(t *NFTTable, chain string, rule *NFTRule) {
	b.rule(t, chain, rule, unix.NLM_F_APPEND)
}

// InsertRule adds a rule at the beginning of a chain.
func (b *NFTBatch) InsertRule(t *NFTTable, chain string, rule *NFTRule) { b.rule(t, chain, rule, 0) }

func (b *NFTBatch) rule(t *NFTTable, chain string, rule *NFTRule, flags uint16) {
	b.op("add", unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|flags, t, "rule "+t.String()+" "+chain+" "+rule.comment,
		func(r *requests) {
			r.str(unix.NFTA_RULE_TABLE, t.Name)
			r.str(unix.NFTA_RULE_CHAIN, chain)
			r.nest(unix.NFTA_RULE_EXPRESSIONS, func() { r.buffer = append(r.buffer, rule.buffer...) })
			r.comment(unix.NFTA_RULE_USERDATA, rule.Comment())
		})
}

// A NoTableError says that a table is missing, and with it all that stood in it.
type NoTableError struct{ Table string }

func (e *NoTableError) Error() string { return "nft table " + e.Table + " is missing" }
