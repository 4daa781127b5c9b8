package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// An NFT speaks nf_tables in one namespace, by netlink alone: no program is run, nothing grows with the
// number of attachments, and all that one call changes is one transaction. What makes the kernel wait for
// a grace period (5 to 20 ms) is kept off the common path: a batch that fails, adding a chain that exists,
// and closing the socket after something was deleted, which is why it stays open until NS.Close.
type NFT struct{ c *conn }

// kept is what is known of a namespace as long as it is open.
type kept struct {
	ending []NFTElem // see World.Ended

	intactIn uint32 // the generation that these chains were seen in, and how often each is used, see Intact
	intact   map[string]uint32

	driftsOf uint32 // the generation that these were found in, see Drift
	drifts   map[string][]error
}

// keeps is that of the namespace; the caller holds n.c.mu.
func (n *NFT) keeps() *kept {
	k, ok := n.c.kept.(*kept)
	if !ok {
		k = &kept{}
		n.c.kept = k
	}
	return k
}

// NFT opens nf_tables in the namespace.
func (ns *NS) NFT() (*NFT, error) {
	c, err := ns.conn(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open nf_tables: %w", err)
	}
	return &NFT{c}, nil
}

// An NFTTable is a table with what always stands in it.
type NFTTable struct {
	Family byte // unix.NFPROTO_INET, …
	Name   string
	Ends   bool // its sets are made so that elements can end, see Ending and CanEnd
	Sets   []*NFTSet
	Chains []*NFTChain
}

// String is "inet fairlead".
func (t *NFTTable) String() string {
	return familyName(t.Family) + " " + t.Name
}

// NFProto is the family of tables of IPv4 or IPv6.
func NFProto(v6 bool) byte {
	if v6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// familyName is what nft(8) calls a family.
func familyName(family byte) string {
	switch family {
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_IPV6:
		return "ip6"
	case unix.NFPROTO_INET:
		return "inet"
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	case unix.NFPROTO_ARP:
		return "arp"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	}
	return fmt.Sprintf("family %d", family)
}

// An NFTChain is a chain with its rules, in order; with Type, a base chain.
type NFTChain struct {
	Name     string
	Type     string // filter, nat
	Hook     uint32
	Priority int32
	Rules    []*NFTRule
	Open     bool // others write the rules; it is only made
}

const nfnlBatchGenID = 1 // NFNL_BATCH_GENID, since Linux 4.12

func nftMsg(op uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | op }

func nfgenmsg(family byte) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

// A question is a request that the kernel answers with exactly one message.
type question struct {
	op     uint16
	family byte
	fill   func(*requests)
	answer func(body []byte) // not called for what does not exist
	found  bool
}

// Generation is a number that every transaction on nf_tables raises.
func (n *NFT) Generation() (id uint32, err error) {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	r := n.c.requests()
	r.begin(nftMsg(unix.NFT_MSG_GETGEN), 0, nfgenmsg(unix.NFPROTO_UNSPEC)...)
	if err := n.c.send(r); err != nil {
		return 0, err
	}
	var failed error
	err = n.c.receive(r.first, func(m message) bool {
		if m.typ == unix.NLMSG_ERROR {
			failed = m.err()
		} else if len(m.body) >= 4 {
			id = Attr32(m.body[4:], unix.NFTA_GEN_ID)
		}
		return false
	})
	if err = errors.Join(err, failed); err != nil {
		err = fmt.Errorf("ask nf_tables: %w", err)
	}
	return id, err
}

// ask asks many questions in few system calls. That something does not exist is no error.
func (n *NFT) ask(qs []*question) error {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	for chunk := range slices.Chunk(qs, 16) { // as many answers as the socket has room for, with ease
		r := n.c.requests()
		for _, q := range chunk {
			r.begin(nftMsg(q.op), 0, nfgenmsg(q.family)...)
			q.fill(r)
		}
		if err := n.c.send(r); err != nil {
			return err
		}
		var failed error
		left := len(chunk)
		err := n.c.receive(r.first, func(m message) bool {
			q := chunk[m.seq-r.first]
			if m.typ != unix.NLMSG_ERROR {
				q.found = true
				q.answer(m.body)
			} else if err := m.err(); !errors.Is(err, unix.ENOENT) {
				failed = errors.Join(failed, err)
				if errors.Is(err, unix.EPERM) { // nfnetlink_rcv refuses all that were sent together by one answer
					return false
				}
			}
			left--
			return left > 0
		})
		if err := errors.Join(err, failed); err != nil {
			return fmt.Errorf("ask nf_tables: %w", err)
		}
	}
	return nil
}

// Get reads the elements with these sets and keys. What is missing comes as nil, in its place. What is ending is
// waited for.
func (n *NFT) Get(keys ...NFTElem) ([]*NFTElem, error) {
	found := make([]*NFTElem, len(keys))
	qs := make([]*question, len(keys))
	for i, e := range keys {
		qs[i] = &question{
			op: unix.NFT_MSG_GETSETELEM, family: e.Set.Table.Family,
			fill: func(r *requests) { r.elements(e.Set, []NFTElem{{Set: e.Set, Key: e.Key, KeyEnd: e.KeyEnd}}) },
			answer: func(body []byte) {
				eachElement(body, func(v []byte) {
					// Asked for a range, the kernel answers with any that its first key is in.
					if got := element(e.Set, v); bytes.Equal(got.Key, e.Key) && bytes.Equal(got.KeyEnd, e.KeyEnd) {
						found[i] = &got
					}
				})
			},
		}
	}
	if err := n.ask(qs); err != nil {
		return found, err
	}
	return found, n.settled(qs, found)
}

// List reads a whole set but for what is ending; nil is that there is none.
func (n *NFT) List(set *NFTSet) (all []NFTElem, err error) {
	all = []NFTElem{}
	err = n.RawElements(set.Table, set.Name, func(e []byte) {
		if got := element(set, e); !got.ending() {
			all = append(all, got)
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return all, err
}

// element is what the attributes of one are.
func element(set *NFTSet, e []byte) NFTElem {
	var timeout uint64
	if v := Attr(e, unix.NFTA_SET_ELEM_TIMEOUT); len(v) == 8 {
		timeout = binary.BigEndian.Uint64(v)
	}
	return NFTElem{
		timeout: timeout,
		Set:     set,
		Key:     slices.Clone(Attr(e, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)),
		KeyEnd:  slices.Clone(Attr(e, nftaSetElemKeyEnd, unix.NFTA_DATA_VALUE)),
		Data:    slices.Clone(Attr(e, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE)),
		Comment: comment(Attr(e, unix.NFTA_SET_ELEM_USERDATA)),
	}
}

// elements appends what an element message consists of.
func (r *requests) elements(set *NFTSet, all []NFTElem) {
	r.str(unix.NFTA_SET_ELEM_LIST_TABLE, set.Table.Name)
	r.str(unix.NFTA_SET_ELEM_LIST_SET, set.Name)
	r.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
		for _, e := range all {
			r.nest(unix.NFTA_LIST_ELEM, func() {
				r.value(unix.NFTA_SET_ELEM_KEY, e.Key)
				if e.KeyEnd != nil {
					r.value(nftaSetElemKeyEnd, e.KeyEnd)
				}
				if e.Data != nil {
					r.value(unix.NFTA_SET_ELEM_DATA, e.Data)
				}
				if e.timeout > 0 {
					r.attr(unix.NFTA_SET_ELEM_TIMEOUT, binary.BigEndian.AppendUint64(nil, e.timeout)...)
				}
				r.comment(unix.NFTA_SET_ELEM_USERDATA, e.Comment)
			})
		}
	})
}

// The kernel keeps user data as it is; nft(8) writes a comment as type 0, length, text and a zero.
func (b *buffer) comment(typ uint16, text string) {
	if text != "" {
		b.attr(typ, append(append([]byte{0, byte(len(text) + 1)}, text...), 0)...)
	}
}

func comment(userdata []byte) string {
	for len(userdata) >= 2 && len(userdata) >= 2+int(userdata[1]) {
		if userdata[0] == 0 {
			return text(userdata[2 : 2+int(userdata[1])])
		}
		userdata = userdata[2+int(userdata[1]):]
	}
	return ""
}

// NFTCommentMax is the longest comment that nft(8) reads back. The kernel takes 253 bytes, but then what
// "nft list ruleset" prints could not be loaded again.
const NFTCommentMax = 127

// An NFTBatch is a transaction while it is written.
type NFTBatch struct{ ops []nftOp }

type nftOp struct {
	verb  string
	typ   uint16
	flags uint16
	elem  NFTElem // or else:
	what  string
	table *NFTTable
	fill  func(*requests)
}

// Empty reports whether there is nothing to do.
func (b *NFTBatch) Empty() bool { return b == nil || len(b.ops) == 0 }

// Add adds an element; one that exists fails the transaction with EEXIST.
func (b *NFTBatch) Add(e NFTElem) {
	e.timeout = 0
	b.ops = append(b.ops, nftOp{verb: "add", typ: unix.NFT_MSG_NEWSETELEM, flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		elem: e})
}

// Delete deletes an element; one that does not exist fails the transaction with ENOENT.
func (b *NFTBatch) Delete(e NFTElem) {
	b.ops = append(b.ops, nftOp{verb: "delete", typ: unix.NFT_MSG_DELSETELEM, elem: e})
}

// Append takes over what another batch would do, after what b does.
func (b *NFTBatch) Append(other *NFTBatch) { b.ops = append(b.ops, other.ops...) }

// Each calls fn for the elements that are added and deleted, in order.
func (b *NFTBatch) Each(fn func(e NFTElem, added bool)) {
	for _, o := range b.ops {
		if o.elem.Set != nil {
			fn(o.elem, o.verb == "add")
		}
	}
}

func (b *NFTBatch) op(verb string, typ, flags uint16, t *NFTTable, what string, fill func(*requests)) {
	b.ops = append(b.ops, nftOp{verb: verb, typ: typ, flags: flags, table: t, what: what, fill: fill})
}

// element is what of an element the kernel is told: one that is deleted goes by its key.
func (o nftOp) element() NFTElem {
	if o.typ == unix.NFT_MSG_DELSETELEM {
		return NFTElem{Set: o.elem.Set, Key: o.elem.Key, KeyEnd: o.elem.KeyEnd}
	}
	return o.elem
}

func (o nftOp) String() string {
	if o.elem.Set != nil {
		return o.verb + " element " + o.element().String()
	}
	return o.verb + " " + o.what
}

func sameSet(a, b *NFTSet) bool {
	return a == b || a != nil && b != nil && a.Name == b.Name && a.Table.Family == b.Table.Family &&
		a.Table.Name == b.Table.Name
}

// Commit makes all of b happen, or nothing.
func (n *NFT) Commit(b *NFTBatch) error { return n.CommitAt(b, 0) }

// CommitAt is Commit for what was read in one generation: when there has been another transaction since, whoever's, it
// does nothing, and the error is ERESTART. That costs no grace period. Generation 0 is any.
func (n *NFT) CommitAt(b *NFTBatch, generation uint32) error {
	if b.Empty() {
		return nil
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	subsys := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES)
	r := n.c.requests()
	r.begin(unix.NFNL_MSG_BATCH_BEGIN, 0, subsys...)
	if generation != 0 {
		r.u32(nfnlBatchGenID, generation)
	}
	first := map[uint32]nftOp{} // by sequence number
	for i := 0; i < len(b.ops); {
		// Elements of one set go in one message, of at most half of what an attribute can hold.
		o, j := b.ops[i], i+1
		for o.elem.Set != nil && j < len(b.ops) && j-i < 100 && sameSet(b.ops[j].elem.Set, o.elem.Set) &&
			b.ops[j].verb == o.verb && b.ops[j].flags == o.flags {
			j++
		}
		flags := o.flags
		if j == len(b.ops) {
			flags |= unix.NLM_F_ACK
		}
		first[r.next] = o
		if o.elem.Set != nil {
			r.begin(nftMsg(o.typ), flags, nfgenmsg(o.elem.Set.Table.Family)...)
			all := make([]NFTElem, 0, j-i)
			for _, o := range b.ops[i:j] {
				all = append(all, o.element())
			}
			r.elements(o.elem.Set, all)
		} else {
			r.begin(nftMsg(o.typ), flags, nfgenmsg(o.table.Family)...)
			o.fill(r)
		}
		i = j
	}
	last := r.next - 1
	r.begin(unix.NFNL_MSG_BATCH_END, 0, subsys...)
	if err := n.c.send(r); err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	var failed error
	err := n.c.receive(r.first, func(m message) bool {
		if m.typ != unix.NLMSG_ERROR {
			return true
		}
		if err := m.err(); err != nil && failed == nil {
			if o, ok := first[m.seq]; ok {
				err = fmt.Errorf("nft %v: %w", o, err)
			}
			failed = err
		}
		// What is wrong with the batch as a whole is an answer to its first message.
		return m.seq != last && m.seq != r.first
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	k := n.keeps()
	if k.intactIn == generation && !slices.ContainsFunc(b.ops, func(o nftOp) bool { return o.elem.Set == nil }) {
		k.intactIn = max(generation+1, 1) // elements have changed, and no chain
	} else {
		k.intactIn, k.intact = 0, nil
	}
	b.Each(func(e NFTElem, _ bool) {
		if e.ending() {
			k.ending = append(k.ending, e)
		}
	})
	return nil
}
