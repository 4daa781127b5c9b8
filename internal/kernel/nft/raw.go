package nft

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// chainQuestion asks for a chain by name.
func (t *Table) chainQuestion(name string, answer func(chain []byte)) *question {
	return &question{op: unix.NFT_MSG_GETCHAIN, family: t.Family, answer: answer,
		fill: t.named(unix.NFTA_CHAIN_NAME, name)}
}

// HasChain reports whether a chain exists. A name that is longer than the kernel allows gives false; the kernel would
// answer with an error.
func (n *Conn) HasChain(t *Table, chain string) (bool, error) {
	if len(chain) >= 256 { // NFT_CHAIN_MAXNAMELEN
		return false, nil
	}
	there, err := n.HasChains(t, []string{chain})
	return there[0], err
}

// HasChains reports which of these chains exist, in the order of names.
func (n *Conn) HasChains(t *Table, names []string) (there []bool, err error) {
	var qs []*question
	for _, name := range names {
		qs = append(qs, t.chainQuestion(name, nil))
	}
	err = n.ask(qs...)
	for _, q := range qs {
		there = append(there, q.found)
	}
	return there, err
}

// EachRule calls each with every rule of a chain. A chain that does not exist has none.
func (n *Conn) EachRule(t *Table, chain string, each func(body []byte)) error {
	if err := n.RawRules(t, chain, each); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// RawRules calls each with the attributes (NFTA_RULE_…) of every rule of a chain. The error is unix.ENOENT if there
// is no such chain.
func (n *Conn) RawRules(t *Table, chain string, each func(body []byte)) error {
	err := n.dump(unix.NFT_MSG_GETRULE, t.Family, t.named(unix.NFTA_RULE_CHAIN, chain), func(family byte, rule []byte) {
		// A kernel that does not know the filter tells of other chains, too.
		if netlink.AttrText(rule, unix.NFTA_RULE_CHAIN) == chain && t.has(family, rule) {
			each(bytes.Clone(rule))
		}
	})
	return netlink.About(err, "list chain %v %s", t, chain)
}

// What others have in nf_tables is read as the kernel tells it, in netlink's attributes, for package packetfilter.

// RawSet returns the attributes (NFTA_SET_…) of a set or map. The error is unix.ENOENT if there is no such set.
func (n *Conn) RawSet(t *Table, name string) (set []byte, err error) {
	q := (&Set{Table: t, Name: name}).question(func(b []byte) { set = bytes.Clone(b) })
	if err := n.ask(q); err != nil {
		return nil, err
	}
	if !q.found {
		return nil, fmt.Errorf("set %v %s: %w", t, name, unix.ENOENT)
	}
	return set, nil
}

// RawElements calls each with the attributes (NFTA_SET_ELEM_…) of every element of a set or map. The attributes are
// valid only until each returns. The error is unix.ENOENT if there is no such set.
func (n *Conn) RawElements(t *Table, set string, each func(e []byte)) error {
	err := n.dump(unix.NFT_MSG_GETSETELEM, t.Family, t.named(unix.NFTA_SET_ELEM_LIST_SET, set),
		func(_ byte, b []byte) { eachElement(b, each) })
	return netlink.About(err, "list set %v %s", t, set)
}

// eachElement calls each with each element of a message.
func eachElement(b []byte, each func(e []byte)) {
	netlink.EachAttr(netlink.Attr(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_ uint16, e []byte) { each(e) })
}

// Dormant reports whether a table has the flag dormant, so that the kernel does not call its chains.
func (n *Conn) Dormant(t *Table) (dormant bool, err error) {
	err = n.ask(t.question(func(table []byte) { dormant = isDormant(table) }))
	return dormant, err
}

func isDormant(table []byte) bool {
	return netlink.Attr32(table, unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
}
