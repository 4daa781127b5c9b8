package nft

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// FuzzElement: an element that the kernel could list is read as it is written.
func FuzzElement(f *testing.F) {
	for i, e := range []Elem{
		{Key: Key(netip.MustParseAddr("10.1.2.3")), Comment: "web"},
		{Key: Key(netip.MustParseAddr("2001:db8::1"), uint8(6), uint16(80)), timeout: 5000},
		{Key: Key(uint8(17), uint16(53), uint32(7)), Data: Key(netip.MustParseAddr("10.1.2.3"))},
		{Key: Key("veth0"), End: true},
		{Key: Key(uint8(17), uint16(8000)), KeyEnd: Key(uint8(17), uint16(8010))},
	} {
		var r netlink.Requests
		e.Set = keySets()[i]
		putElements(&r, e.Set, []Elem{e})
		f.Add(append(make([]byte, 4), r.Buffer...))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, set := range keySets() {
			eachElement(body, func(b []byte) {
				e := element(set, b)
				_ = e.String()
				if e.Key == nil || len(e.Comment) > CommentMax { // which no element is, and no program writes
					return
				}

				e.Left = 0 // the kernel tells it, and is not told
				var r netlink.Requests
				putElements(&r, set, []Elem{e})
				var again []Elem
				eachElement(append(make([]byte, 4), r.Buffer...), func(b []byte) { again = append(again, element(set, b)) })
				if len(again) != 1 || !reflect.DeepEqual(again[0], e) {
					t.Errorf("%x is %+v, and is written as %+v", b, e, again)
				}
			})
		}
	})
}

// FuzzMessage reads what the kernel could tell of changes, chains, rules and the path of a packet.
func FuzzMessage(f *testing.F) {
	var b netlink.Buffer
	b.Str(unix.NFTA_RULE_TABLE, "filter")
	b.Str(unix.NFTA_RULE_CHAIN, "FORWARD")
	b.Nest(unix.NFTA_RULE_EXPRESSIONS, func() {
		b.Nest(unix.NFTA_LIST_ELEM, func() {
			b.Str(unix.NFTA_EXPR_NAME, "lookup")
			b.Nest(unix.NFTA_EXPR_DATA, func() { b.Str(unix.NFTA_LOOKUP_SET, "s") })
		})
	})
	f.Add(uint16(unix.NFT_MSG_NEWRULE), append(netlink.NetfilterHeader(unix.NFPROTO_INET), b...))
	f.Fuzz(func(t *testing.T, op uint16, body []byte) {
		if len(body) < 4 {
			return // which all callers refuse
		}
		before := bytes.Clone(body)
		if c, ok := changeOf(op, body); ok && (c.Op != op || c.Family != body[0]) {
			t.Errorf("%d, %x: %+v", op, body, c)
		}
		if s := stepOf(body); s.Src.Is4() != s.Dst.Is4() {
			t.Errorf("%x: a packet from %v to %v", body, s.Src, s.Dst)
		}
		attrs := body[4:]
		hookDevices(attrs)
		dropPolicy(attrs)
		RuleComment(attrs)
		for _, set := range keySets() {
			set.like(attrs)
		}
		(&Chain{Type: "filter"}).like(attrs)
		if !bytes.Equal(before, body) {
			t.Errorf("%x was changed to %x", before, body)
		}
	})
}
