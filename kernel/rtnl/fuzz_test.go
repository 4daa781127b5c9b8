package rtnl

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// FuzzParse reads what the kernel could answer as links, addresses, routes, rules, neighbours and VLANs.
func FuzzParse(f *testing.F) {
	f.Add(make([]byte, 64))
	f.Add([]byte{2, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0, 8, 0, 1, 0, 192, 0, 2, 0, 12, 0, 9, 0, 8, 0, 0, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		l := parseLink(bytes.Clone(b))
		l.AltNames()
		if len(b) >= unix.SizeofIfAddrmsg { // others are not listed
			parseAddr(b)
		}
		parsePortVLAN(b)
		Message{unix.RTM_NEWNEIGH, b}.Neighbour()
		events(bytes.Clone(b), -1, func(NamespaceEvent) {})
		sender(b)
		for _, typ := range []uint16{unix.NLMSG_ERROR, unix.NLMSG_DONE} {
			_ = netlink.Message{Type: typ, Flags: unix.NLM_F_ACK_TLVS, Body: b}.Err()
		}

		routes := parseRoute(b)
		if len(routes) == 0 {
			return
		}
		once := storedRoute(bytes.Clone(b))
		twice := storedRoute(bytes.Clone(once))
		if !bytes.Equal(once, twice) {
			t.Errorf("%x is stored as %x, and that as %x", b, once, twice)
		}
	})
}

// FuzzRule: a rule that has no condition beside those of type Rule is written as it was read.
func FuzzRule(f *testing.F) {
	for _, r := range []Rule{
		{From: mustPrefix("10.1.0.0/24"), Table: 100, Priority: 7, IIF: "eth0", Tag: RuleTag(9), Protocol: OurProtocol},
		{To: mustPrefix("fd00::/8"), Mark: 1, Mask: 0xff, OIF: "lo", Action: Prohibit},
		{Family: unix.AF_INET6, Action: Unreachable, Table: 1 << 20},
	} {
		f.Add(NewRule(nil, r).Body)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := parseRule(b)
		if !ok || r.Other || r.Action == 0 {
			return
		}
		if !listed(r.From, b[2], r.Family) || !listed(r.To, b[1], r.Family) {
			return
		}
		again, ok := parseRule(NewRule(nil, r).Body)
		if !ok || !reflect.DeepEqual(r, again) {
			t.Errorf("%x is %+v, and is written as %+v", b, r, again)
		}
	})
}

// listed reports whether a kernel could list a prefix, of a length that the head of a message says, in a rule of a
// family.
func listed(p netip.Prefix, bits, of uint8) bool {
	if !p.Addr().IsValid() {
		return bits == 0
	}
	return p.IsValid() && p == p.Masked() && Family(p.Addr()) == of
}
