package kernel

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"
)

// What others have in nf_tables is read as the kernel tells it, in netlink's attributes, for package packetfilter.

// RawSet is the attributes (NFTA_SET_…) of a set or map. Its error is unix.ENOENT if there is none.
func (n *NFT) RawSet(t *NFTTable, name string) (set []byte, err error) {
	q := &question{op: unix.NFT_MSG_GETSET, family: t.Family,
		fill:   named(unix.NFTA_SET_TABLE, t, unix.NFTA_SET_NAME, name),
		answer: func(body []byte) { set = bytes.Clone(body[4:]) }}
	if err := n.ask([]*question{q}); err != nil {
		return nil, err
	}
	if !q.found {
		return nil, fmt.Errorf("set %v %s: %w", t, name, unix.ENOENT)
	}
	return set, nil
}

// RawElements calls each with the attributes (NFTA_SET_ELEM_…) of each element of a set or map, which are only valid
// until it returns. Its error is unix.ENOENT if there is no such set.
func (n *NFT) RawElements(t *NFTTable, set string, each func(e []byte)) error {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	r := n.c.requests()
	r.begin(nftMsg(unix.NFT_MSG_GETSETELEM), unix.NLM_F_DUMP, nfgenmsg(t.Family)...)
	r.str(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	r.str(unix.NFTA_SET_ELEM_LIST_SET, set)
	if err := n.c.dump(r, func(body []byte) { eachElement(body, each) }); err != nil {
		return fmt.Errorf("list set %v %s: %w", t, set, err)
	}
	return nil
}

// eachElement calls each with each element of a message.
func eachElement(body []byte, each func(e []byte)) {
	if len(body) >= 4 {
		EachAttr(Attr(body[4:], unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_ uint16, e []byte) { each(e) })
	}
}

// Dormant reports whether a table's chains are not called at present.
func (n *NFT) Dormant(t *NFTTable) (dormant bool, err error) {
	q := t.question()
	q.answer = func(body []byte) { dormant = Attr32(body[4:], unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0 }
	return dormant, n.ask([]*question{q})
}

// RuleComment is the comment in a rule's NFTA_RULE_USERDATA.
func RuleComment(userdata []byte) string { return comment(userdata) }
