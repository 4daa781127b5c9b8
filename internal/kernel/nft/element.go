package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// Get reads the elements with these sets and keys. The result has nil in place of an element that does not exist. Get
// waits for elements that are about to time out (see Ending).
func (n *Conn) Get(keys ...Elem) ([]*Elem, error) {
	found := make([]*Elem, len(keys))
	qs := make([]*question, len(keys))
	for i, e := range keys {
		qs[i] = &question{
			op: unix.NFT_MSG_GETSETELEM, family: e.Set.Table.Family,
			fill: func(r *netlink.Requests) {
				putElements(r, e.Set, []Elem{{Set: e.Set, Key: e.Key, KeyEnd: e.KeyEnd}})
			},
			answer: func(b []byte) {
				eachElement(b, func(v []byte) {
					// Asked for a range, the kernel answers with any that its first key is in.
					if got := element(e.Set, v); bytes.Equal(got.Key, e.Key) && bytes.Equal(got.KeyEnd, e.KeyEnd) {
						found[i] = &got
					}
				})
			},
		}
	}
	if err := n.ask(qs...); err != nil {
		return found, err
	}
	return found, n.awaitEnd(qs, found)
}

// List reads a whole set, without elements that are about to time out. It returns nil if there is no such set.
func (n *Conn) List(set *Set) (all []Elem, err error) {
	all = []Elem{}
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
func element(set *Set, e []byte) Elem {
	return Elem{
		timeout: netlink.Attr64(e, unix.NFTA_SET_ELEM_TIMEOUT),
		Left:    netlink.Attr64(e, unix.NFTA_SET_ELEM_EXPIRATION),
		Set:     set,
		Key:     slices.Clone(netlink.Attr(e, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)),
		KeyEnd:  slices.Clone(netlink.Attr(e, setElemKeyEnd, unix.NFTA_DATA_VALUE)),
		Data:    slices.Clone(netlink.Attr(e, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE)),
		End:     netlink.Attr32(e, unix.NFTA_SET_ELEM_FLAGS)&unix.NFT_SET_ELEM_INTERVAL_END != 0,
		Comment: comment(netlink.Attr(e, unix.NFTA_SET_ELEM_USERDATA)),
	}
}

// putElements appends what an element message consists of.
func putElements(r *netlink.Requests, set *Set, all []Elem) {
	set.Table.named(unix.NFTA_SET_ELEM_LIST_SET, set.Name)(r)
	r.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
		for _, e := range all {
			r.Nest(unix.NFTA_LIST_ELEM, func() {
				putValue(&r.Buffer, unix.NFTA_SET_ELEM_KEY, e.Key)
				if e.KeyEnd != nil {
					putValue(&r.Buffer, setElemKeyEnd, e.KeyEnd)
				}
				if e.End {
					r.U32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
				}
				if e.Data != nil {
					putValue(&r.Buffer, unix.NFTA_SET_ELEM_DATA, e.Data)
				}
				if e.timeout > 0 {
					r.Attr(unix.NFTA_SET_ELEM_TIMEOUT, binary.BigEndian.AppendUint64(nil, e.timeout)...)
				}
				putComment(&r.Buffer, unix.NFTA_SET_ELEM_USERDATA, e.Comment)
			})
		}
	})
}

// The kernel keeps user data as it is; nft(8) writes a comment as type 0, length, text and a zero.
func putComment(b *netlink.Buffer, typ uint16, text string) {
	if text != "" {
		b.Attr(typ, append(append([]byte{0, byte(len(text) + 1)}, text...), 0)...)
	}
}

func comment(userdata []byte) string {
	for len(userdata) >= 2 && len(userdata) >= 2+int(userdata[1]) {
		if userdata[0] == 0 {
			return netlink.Text(userdata[2 : 2+int(userdata[1])])
		}
		userdata = userdata[2+int(userdata[1]):]
	}
	return ""
}

// CommentMax is the length in bytes of the longest comment that nft(8) reads back. The kernel accepts 253 bytes, but
// then the output of "nft list ruleset" could not be loaded again.
const CommentMax = 127

// RuleComment returns the comment in a rule's NFTA_RULE_USERDATA.
func RuleComment(userdata []byte) string { return comment(userdata) }

// An Elem is an element of a set or map.
type Elem struct {
	Set     *Set
	Key     []byte // see Key
	KeyEnd  []byte // where the set has intervals of a concatenation: the last key of the range
	End     bool   // where it has others: Key is the first one behind an interval
	Data    []byte
	Comment string
	Left    uint64 // ms after which it ends by itself, in a set that Times; 0: it stays
	timeout uint64 // ms; 0: none
}
