package nft

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// Intact compares, for each chain of t, only the number of its rules and of the rules that jump to it; more are
// further rules that may jump. This finds a flush and deleted rules; Diff finds every difference. Of the sets, Intact
// checks only whether elements of the first one can time out, if they should: all sets are made alike. Checks that
// succeeded in the same generation are not repeated.
func (n *Conn) Intact(generation uint32, t *Table, more ...*Rule) (bool, error) {
	ok := true
	var qs []*question
	n.c.Mu.Lock()
	k := n.keeps()
	if generation == 0 || k.intactIn != generation {
		k.intactIn, k.intact = generation, map[string]uint32{}
	}
	seen, now := maps.Clone(k.intact), map[string]uint32{}
	n.c.Mu.Unlock()
	for _, c := range t.Chains {
		if c.Open {
			continue
		}
		want := uint32(len(c.Rules))
		for _, d := range append(t.Chains, &Chain{Rules: more}) {
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
		qs = append(qs, t.chainQuestion(c.Name, func(chain []byte) {
			ok = ok && netlink.Attr32(chain, unix.NFTA_CHAIN_USE) == want
		}))
	}
	if name := "ends " + t.String(); t.Ends && len(t.Sets) > 0 && seen[name] == 0 {
		now[name] = 1
		qs = append(qs, t.Sets[0].question(func(set []byte) { ok = ok && timesOut(set) }))
	}
	err := n.ask(qs...)
	for _, q := range qs {
		ok = ok && q.found
	}
	n.c.Mu.Lock()
	defer n.c.Mu.Unlock()
	if ok && err == nil && k.intactIn == generation {
		maps.Copy(k.intact, now)
	}
	return ok, err
}

// A tableLook is what the kernel has of a table.
type tableLook struct {
	table, dormant bool            // it is there; nothing in it applies
	sets, chains   []*question     // in the table's order
	odd            map[string]bool // what is there and is something else, which cannot be fixed
}

func (n *Conn) lookAt(t *Table) (*tableLook, error) {
	l := &tableLook{odd: map[string]bool{}}
	table := t.question(func(b []byte) { l.dormant = isDormant(b) })
	for _, s := range t.Sets {
		l.sets = append(l.sets, s.question(func(b []byte) { l.odd["set "+s.Name] = !s.like(b) }))
	}
	for _, c := range t.Chains {
		l.chains = append(l.chains, t.chainQuestion(c.Name, func(b []byte) { l.odd["chain "+c.Name] = !c.like(b) }))
	}
	err := n.ask(append(slices.Concat(l.sets, l.chains), table)...)
	l.table = table.found
	return l, err
}

// like reports whether the kernel's set has the keys and values of s.
func (s *Set) like(b []byte) bool {
	keyType, keyLen := s.keyType()
	dataType, dataLen := typeOf(s.Data)
	is := func(attribute uint16, want uint32) bool { return netlink.Attr32(b, attribute) == want }

	differs := netlink.Attr32(b, unix.NFTA_SET_FLAGS) ^ s.flags()
	sameKind := differs&(unix.NFT_SET_MAP|unix.NFT_SET_INTERVAL) == 0
	sameKeys := is(unix.NFTA_SET_KEY_TYPE, keyType) && is(unix.NFTA_SET_KEY_LEN, uint32(keyLen))
	sameData := len(s.Data) == 0 || is(unix.NFTA_SET_DATA_TYPE, dataType) && is(unix.NFTA_SET_DATA_LEN, uint32(dataLen))
	return sameKind && sameKeys && sameData
}

// like reports whether the kernel's chain hangs where c does.
func (c *Chain) like(b []byte) bool {
	if c.Type != netlink.AttrText(b, unix.NFTA_CHAIN_TYPE) {
		return false
	}
	hook := netlink.Attr(b, unix.NFTA_CHAIN_HOOK)
	sameHook := netlink.Attr32(hook, unix.NFTA_HOOK_HOOKNUM) == c.Hook &&
		int32(netlink.Attr32(hook, unix.NFTA_HOOK_PRIORITY)) == c.Priority
	return c.Type == "" || sameHook && netlink.Attr32(b, unix.NFTA_CHAIN_POLICY) == Accept
}

// Diff compares the sets and chains of t with the kernel's. It returns the differences, and the transaction that
// repairs them.
func (n *Conn) Diff(t *Table) (found []error, fix *Batch, err error) {
	l, err := n.lookAt(t)
	if err != nil {
		return nil, nil, err
	}
	for what, bad := range l.odd {
		if bad {
			found = append(found, spec.DiffersBy("kind",
				"nft %s of table %v is of another kind (nft delete table %v makes room)",
				what, t, t))
		}
	}
	if found != nil {
		return found, nil, nil
	}
	fix = &Batch{}
	if !l.table {
		found = append(found, &NoTableError{t.String()})
		fix.AddTable(t)
		defer func() { found = found[:1] }() // which says that all in it is missing, too
	}
	if l.dormant {
		found = append(found, spec.DiffersBy("flags", "nft table %v is dormant, so nothing in it applies", t))
		fix.table("wake", 0, t, 0)
	}
	for i, s := range t.Sets {
		if !l.sets[i].found {
			found = append(found, spec.Missing(fmt.Sprintf("nft set %v %s", t, s.Name)))
			fix.AddSet(s)
		}
	}
	// All chains before the first rule: rules jump.
	for i, c := range t.Chains {
		if !l.chains[i].found {
			found = append(found, spec.Missing(fmt.Sprintf("nft chain %v %s", t, c.Name)))
			fix.AddChain(t, c)
		}
	}
	for i, c := range t.Chains {
		wrong, err := n.diffRules(t, c, l.chains[i].found, fix)
		if err != nil {
			return nil, nil, err
		}
		found = append(found, wrong...)
	}
	return found, fix, nil
}

// diffRules compares the rules of a chain, which is there or to be made, and writes into fix what fixes them.
func (n *Conn) diffRules(t *Table, c *Chain, there bool, fix *Batch) (found []error, err error) {
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
		found = ruleDiff(t, c, got, want)
		if len(got) > 0 {
			fix.flush(t, c.Name)
		}
	}
	for _, r := range c.Rules {
		fix.AddRule(t, c.Name, r)
	}
	return found, nil
}

// DiffOnce returns the differences that Diff finds. It compares a table once in each generation, because an equal
// generation means that no transaction has changed anything. So the plugins of a chain read the same table once.
func (n *Conn) DiffOnce(t *Table, generation uint32) ([]error, error) {
	n.c.Mu.Lock()
	k := n.keeps()
	if k.diffsOf != generation {
		k.diffsOf, k.diffs = generation, map[string][]error{}
	}
	found, known := k.diffs[t.ID()]
	n.c.Mu.Unlock()
	if known {
		return found, nil
	}
	found, _, err := n.Diff(t)
	found = slices.Clip(found) // who asked adds to it
	n.c.Mu.Lock()
	defer n.c.Mu.Unlock()
	if err == nil && k.diffsOf == generation {
		k.diffs[t.ID()] = found
	}
	return found, err
}

func ruleDiff(t *Table, c *Chain, got, want []string) (found []error) {
	for _, w := range want {
		if !slices.Contains(got, w) {
			found = append(found, spec.Missing(fmt.Sprintf("nft rule %v %s %q", t, c.Name, w)))
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			found = append(found, spec.DiffersBy("rules",
				"nft chain %v %s has a rule %q of another program: move it to chain user",
				t, c.Name, g))
		}
	}
	if found == nil {
		found = append(found, spec.DiffersBy("rules", "nft chain %v %s has its rules twice or in another order", t,
			c.Name))
	}
	return found
}

// Rules returns the comments of a chain's rules, in order. A chain that does not exist has none.
func (n *Conn) Rules(t *Table, chain string) (comments []string, err error) {
	err = n.EachRule(t, chain, func(body []byte) {
		comments = append(comments, comment(netlink.Attr(body, unix.NFTA_RULE_USERDATA)))
	})
	return comments, err
}
