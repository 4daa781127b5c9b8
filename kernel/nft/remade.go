package nft

import (
	"bytes"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// Remade returns a transaction that makes every set of t anew whose elements cannot time out, because the kernel
// cannot change the flags of an existing set. It also makes the elements and the rules that use such a set. The
// chains in stay keep their rules and sets. The transaction is empty if there is nothing to do.
func (n *Conn) Remade(t *Table, stay ...string) (*Batch, error) {
	b, sets := &Batch{}, map[string][]byte{}
	err := n.dumpAll(unix.NFT_MSG_GETSET, func(family byte, body []byte) {
		flags := netlink.Attr32(body, unix.NFTA_SET_FLAGS)
		bounded := flags&(unix.NFT_SET_INTERVAL|setConcat) == unix.NFT_SET_INTERVAL
		if family == t.Family && netlink.Text(netlink.Attr(body, unix.NFTA_SET_TABLE)) == t.Name &&
			flags&(unix.NFT_SET_TIMEOUT|unix.NFT_SET_ANONYMOUS) == 0 && !bounded {
			sets[netlink.Text(netlink.Attr(body, unix.NFTA_SET_NAME))] = bytes.Clone(body)
		}
	})
	if err != nil || len(sets) == 0 {
		return b, err
	}
	chains, err := n.lookingUp(t, sets, stay)
	if err != nil {
		return nil, err
	}
	for c := range chains {
		b.op("flush", unix.NFT_MSG_DELRULE, 0, t, "chain "+t.String()+" "+c,
			named(unix.NFTA_RULE_TABLE, t, unix.NFTA_RULE_CHAIN, c))
	}
	for name, set := range sets {
		if err := n.remake(b, t, name, set); err != nil {
			return nil, err
		}
	}
	for c, rules := range chains {
		for _, rule := range rules {
			const flags = unix.NLM_F_CREATE | unix.NLM_F_APPEND
			b.op("add", unix.NFT_MSG_NEWRULE, flags, t, "rule of "+t.String()+" "+c, func(r *netlink.Requests) {
				named(unix.NFTA_RULE_TABLE, t, unix.NFTA_RULE_CHAIN, c)(r)
				putCopy(&r.Buffer, rule, unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, unix.NFTA_RULE_USERDATA)
			})
		}
	}
	return b, nil
}

// lookingUp are the chains, with their rules, that look something up in some sets. A chain has to stay that is given,
// or has a set of its own, which would go with the rule: where it looks something up is taken out of the sets.
func (n *Conn) lookingUp(t *Table, sets map[string][]byte, stay []string) (map[string][][]byte, error) {
	uses, err := n.Uses(t)
	if err != nil {
		return nil, err
	}
	all, in := map[string][][]byte{}, map[string][]string{}
	for c := range uses {
		if err := n.EachRule(t, c, func(rule []byte) {
			all[c] = append(all[c], rule)
			in[c] = append(in[c], lookups(rule)...)
		}); err != nil {
			return nil, err
		}
		own := slices.ContainsFunc(in[c], func(s string) bool { return strings.HasPrefix(s, "__") })
		if own || slices.Contains(stay, c) {
			for _, s := range in[c] {
				delete(sets, s)
			}
			delete(all, c)
		}
	}
	for c := range all {
		if !slices.ContainsFunc(in[c], func(s string) bool { return sets[s] != nil }) {
			delete(all, c)
		}
	}
	return all, nil
}

// remake writes into b how a set is made anew.
func (n *Conn) remake(b *Batch, t *Table, name string, set []byte) error {
	var elems [][]byte
	if err := n.RawElements(t, name, func(e []byte) { elems = append(elems, bytes.Clone(e)) }); err != nil {
		return err
	}
	b.DeleteSet(&Set{Table: t, Name: name})
	what, id := "set "+t.String()+" "+name, uint32(len(b.ops)+1)
	b.op("add", unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, t, what, func(r *netlink.Requests) {
		named(unix.NFTA_SET_TABLE, t, unix.NFTA_SET_NAME, name)(r)
		r.U32(unix.NFTA_SET_ID, id)
		r.U32(unix.NFTA_SET_FLAGS, netlink.Attr32(set, unix.NFTA_SET_FLAGS)|unix.NFT_SET_TIMEOUT)
		putCopy(&r.Buffer, set, unix.NFTA_SET_KEY_TYPE, unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_DATA_TYPE,
			unix.NFTA_SET_DATA_LEN,
			unix.NFTA_SET_DESC|unix.NLA_F_NESTED, unix.NFTA_SET_USERDATA)
	})
	for some := range slices.Chunk(elems, 100) {
		b.op("add", unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, t, "elements of "+what, func(r *netlink.Requests) {
			r.Str(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
			r.Str(unix.NFTA_SET_ELEM_LIST_SET, name)
			r.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
				for _, e := range some {
					r.Nest(unix.NFTA_LIST_ELEM, func() {
						putCopy(&r.Buffer, e, unix.NFTA_SET_ELEM_KEY|unix.NLA_F_NESTED, setElemKeyEnd|unix.NLA_F_NESTED,
							unix.NFTA_SET_ELEM_DATA|unix.NLA_F_NESTED, unix.NFTA_SET_ELEM_FLAGS,
							unix.NFTA_SET_ELEM_USERDATA)
					})
				}
			})
		})
	}
	return nil
}

// putCopy appends those attributes of an object that it has.
func putCopy(b *netlink.Buffer, of []byte, kinds ...uint16) {
	for _, k := range kinds {
		if v := netlink.Attr(of, k&^unix.NLA_F_NESTED); v != nil {
			b.Attr(k, v...)
		}
	}
}

// lookups are the sets that a rule looks something up in.
func lookups(rule []byte) (names []string) {
	netlink.EachAttr(netlink.Attr(rule, unix.NFTA_RULE_EXPRESSIONS), func(_ uint16, e []byte) {
		switch data := netlink.Attr(e, unix.NFTA_EXPR_DATA); netlink.Text(netlink.Attr(e, unix.NFTA_EXPR_NAME)) {
		case "lookup":
			names = append(names, netlink.Text(netlink.Attr(data, unix.NFTA_LOOKUP_SET)))
		case "dynset":
			names = append(names, netlink.Text(netlink.Attr(data, unix.NFTA_DYNSET_SET_NAME)))
		}
	})
	return names
}
