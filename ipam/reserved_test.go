package ipam

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

func prefixes(texts ...string) (ps []netip.Prefix) {
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// clause: K13
func TestParseReserved(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.0.5": "10.1.0.5/32", "10.1.0.0/28": "10.1.0.0/28", "fd00::5": "fd00::5/128", "fd00::/120": "fd00::/120",
		"::ffff:10.1.0.5": "10.1.0.5/32", "::ffff:10.1.0.0/124": "10.1.0.0/28",
		"::ffff:0.0.0.0/96": "0.0.0.0/0",
	} {
		if p, err := ParseReserved(text); err != nil || p.String() != want {
			t.Errorf("%s: %s, %v; want %s", text, p, err, want)
		}
	}
	for text, want := range map[string]string{
		"x": `"x": want an address or a subnet`, "": `"": want`, "10.1.0.5/24": "10.1.0.5/24 has host bits set; write 10.1.0.5, or 10.1.0.0/24",
		"fd00::5/64": "write fd00::5, or fd00::/64", "fe80::1%eth0": "want an address", "10.1.0.0/33": "want an address",
	} {
		if _, err := ParseReserved(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", text, err, want)
		}
	}
}

func TestUnionAndCut(t *testing.T) {
	r := Union(prefixes("10.1.0.8/29", "10.1.0.12/32", "fd00::/126", "10.1.0.0/30", "10.1.0.2/31",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127"))
	if got := fmt.Sprint(r); got != "[{10.1.0.0 10.1.0.3 invalid IP} {10.1.0.8 10.1.0.15 invalid IP} {fd00:: fd00::3 invalid IP} {ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff invalid IP}]" {
		t.Errorf("got %s", got)
	}
	gw := netip.MustParseAddr("10.1.0.5")
	for _, tc := range []struct{ first, last, want string }{
		{"10.1.0.1", "10.1.0.20", "[{10.1.0.4 10.1.0.7 10.1.0.5} {10.1.0.16 10.1.0.20 10.1.0.5}]"},
		{"10.1.0.9", "10.1.0.11", "[]"},
		{"10.1.0.4", "10.1.0.7", "[{10.1.0.4 10.1.0.7 10.1.0.5}]"},
		{"10.1.0.7", "10.1.0.8", "[{10.1.0.7 10.1.0.7 10.1.0.5}]"},
		{"fd00::1", "fd00::9", "[{fd00::4 fd00::9 10.1.0.5}]"},
		{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
			"[{ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0 ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffd 10.1.0.5}]"},
		{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "[]"},
	} {
		if got := fmt.Sprint(r.Cut([]Span{{netip.MustParseAddr(tc.first), netip.MustParseAddr(tc.last),
			gw}})); got != tc.want {
			t.Errorf("%s-%s: %s, want %s", tc.first, tc.last, got, tc.want)
		}
	}
	order := []Span{{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.9"), gw},
		{netip.MustParseAddr("10.1.0.12"), netip.MustParseAddr("10.1.0.14"), gw}}
	if got := fmt.Sprint(Clip(order,
		netip.MustParsePrefix("10.1.0.8/29"))); got != "[{10.1.0.8 10.1.0.9 10.1.0.5} {10.1.0.12 10.1.0.14 10.1.0.5}]" {
		t.Errorf("clipped to %s", got)
	}
	if got := fmt.Sprint(Clip(order, netip.MustParsePrefix("fd00::/64"))); got != "[]" {
		t.Errorf("clipped to %s", got)
	}
}

// What is reserved is what a look at each address says, in both families.
func TestReservedLaw(t *testing.T) {
	for _, family := range []string{"10.1.0.", "fd00::1:"} {
		r := rand.New(rand.NewPCG(1, uint64(len(family))))
		at := func(i int) netip.Addr {
			if family == "10.1.0." {
				return netip.MustParseAddr(fmt.Sprintf("10.1.0.%d", i))
			}
			return netip.MustParseAddr(fmt.Sprintf("fd00::1:%x", i))
		}
		for range 300 {
			var list []netip.Prefix
			for range r.IntN(6) {
				a := at(r.IntN(64))
				list = append(list, netip.PrefixFrom(a, a.BitLen()-r.IntN(5)).Masked())
			}
			set := Set{Ranges: []Range{{Subnet: netip.PrefixFrom(at(0), at(0).BitLen()-6), RangeStart: at(1 + r.IntN(20)),
				RangeEnd: at(30 + r.IntN(33)), Gateway: at(r.IntN(64))}}}
			reserved := Union(list)
			free, order := 0, map[netip.Addr]bool{}
			for _, s := range reserved.Cut(set.After(at(r.IntN(64)))) {
				for a := s.First; !s.Last.Less(a); a = a.Next() {
					if order[a] {
						t.Fatalf("%s twice in %v without %v", a, set, list)
					}
					order[a] = true
				}
			}
			for i := range 64 {
				a, in := at(i), false
				for _, p := range list {
					in = in || p.Contains(a)
				}
				if reserved.Contains(a) != in {
					t.Fatalf("%s in %v: %t", a, list, !in)
				}
				_, of := set.Find(a)
				if order[a] != (of && !in) {
					t.Fatalf("%s of %v without %v: %t", a, set, list, order[a])
				}
				if of && !in && a != set.Ranges[0].Gateway {
					free++
				}
			}
			if got := reserved.Size(set); got != CountOf(uint64(free)) {
				t.Fatalf("%v without %v: %s, want %d", set, list, got, free)
			}
		}
	}
}

// A reservation can be meant if it is of a pool, and leaves addresses of it.
func TestSlip(t *testing.T) {
	all, err := Complete([]Set{{"a", []Range{rng("10.1.0.0/29", "", "", "")}}, {"b", []Range{rng("fd00::/126", "", "", "")}}})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"10.1.0.2/32": "", "10.1.0.4/31": "", "fd00::2/128": "",
		"10.1.0.1/32":  "10.1.0.1 is the gateway of 10.1.0.0/29, which is never allocated",
		"10.1.0.0/29":  "10.1.0.0/29 is the whole pool ",
		"10.0.0.0/8":   "10.0.0.0/8 is the whole pool ",
		"10.2.0.0/24":  ErrOutside.Error(),
		"fd00:1::/126": ErrOutside.Error(),
	} {
		err := Slip(all, netip.MustParsePrefix(text))
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if err := Slip(nil, netip.MustParsePrefix("10.2.0.0/24")); err != nil {
		t.Errorf("without pools: %v", err)
	}
}

// A key is one that can be written.
func TestPossibleKey(t *testing.T) {
	for key, want := range map[string]string{"a/b": "", "a%2Fb/50%25": "", "default%2": "this one has 1",
		"a/b/c": "this one has 3", "a/": "is empty", "a%2f/b": "%25", "50%/b": "%25"} {
		err := PossibleKey(key, 2)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", key, err)
		}
		if err := PossibleKey(key, 1); err != nil {
			t.Errorf("%s alone: %v", key, err)
		}
	}
}
