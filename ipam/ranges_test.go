package ipam

import (
	"math/big"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func addr(s string) (a netip.Addr) {
	if s != "" {
		a = netip.MustParseAddr(s)
	}
	return a
}

func rng(subnet, start, end, gw string) Range {
	return Range{pfx(subnet), addr(start), addr(end), addr(gw)}
}

func TestDefaults(t *testing.T) {
	for _, tc := range []struct {
		in, want Range
		size     string
	}{
		{rng("10.1.0.0/24", "", "", ""), rng("10.1.0.0/24", "10.1.0.1", "10.1.0.254", "10.1.0.1"), "253"},
		{rng("10.1.0.0/30", "", "", ""), rng("10.1.0.0/30", "10.1.0.1", "10.1.0.2", "10.1.0.1"), "1"},
		{rng("10.1.0.0/16", "", "", ""), rng("10.1.0.0/16", "10.1.0.1", "10.1.255.254", "10.1.0.1"), "65533"},
		{rng("0.0.0.0/0", "", "", ""), rng("0.0.0.0/0", "0.0.0.1", "255.255.255.254", "0.0.0.1"), "4294967293"},
		{rng("10.1.0.0/24", "10.1.0.0", "10.1.0.255", "192.0.2.1"), rng("10.1.0.0/24", "10.1.0.0", "10.1.0.255", "192.0.2.1"),
			"256"},
		{rng("10.1.0.0/24", "10.1.0.9", "10.1.0.9", ""), rng("10.1.0.0/24", "10.1.0.9", "10.1.0.9", "10.1.0.1"), "1"},
		{rng("fd00::/64", "", "", ""), rng("fd00::/64", "fd00::1", "fd00::ffff:ffff:ffff:ffff", "fd00::1"),
			"18446744073709551614"},
		{rng("fd00::/126", "", "", ""), rng("fd00::/126", "fd00::1", "fd00::3", "fd00::1"), "2"},
		{rng("::/0", "", "", ""), rng("::/0", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::1"),
			"340282366920938463463374607431768211454"},
		{rng("10.1.0.0/24", "::ffff:10.1.0.5", "", ""), rng("10.1.0.0/24", "10.1.0.5", "10.1.0.254", "10.1.0.1"), "250"},
		{rng("::ffff:0.0.0.0/96", "", "", ""), rng("0.0.0.0/0", "0.0.0.1", "255.255.255.254", "0.0.0.1"), "4294967293"},
		{rng("::ffff:10.1.0.0/120", "", "", ""), rng("10.1.0.0/24", "10.1.0.1", "10.1.0.254", "10.1.0.1"), "253"},
	} {
		got, err := Complete([]Set{{"ipam", []Range{tc.in}}})
		if err != nil {
			t.Errorf("%s: %v", tc.in.Subnet, err)
			continue
		}
		if got[0].Ranges[0] != tc.want || got[0].Size().String() != tc.size {
			t.Errorf("%s: got %+v, %s; want %+v, %s", tc.in.Subnet, got[0].Ranges[0], got[0].Size(), tc.want, tc.size)
		}
		if got[0].Is4() != tc.want.Subnet.Addr().Is4() {
			t.Errorf("%s: of IPv4: %v", tc.in.Subnet, got[0].Is4())
		}
	}
}

// Counts go on beyond 64 bits.
func TestCounts(t *testing.T) {
	small, great, greater := CountOf(7), Count{1, 0}, Count{1, 7}
	for i, c := range []Count{{}, small, great, greater, {2, 0}} {
		for j, d := range []Count{{}, small, great, greater, {2, 0}} {
			if c.Less(d) != (i < j) {
				t.Errorf("%v < %v is %v", c, d, c.Less(d))
			}
		}
	}
	for from, want := range map[string]string{"10.1.0.250": "10.1.1.4", "fd00::fffe": "fd00::1:8", "fd00::ffff:ffff:ffff:fffe": "fd00:0:0:1::8"} {
		if got := Plus(addr(from), 10); got != addr(want) {
			t.Errorf("%s plus 10 is %v", from, got)
		}
	}
}

// The first address that a set gives is the first that is neither reserved nor a gateway.
func TestFirst(t *testing.T) {
	for _, tc := range []struct {
		in       []Range
		reserved []string
		want     string
	}{
		{[]Range{rng("10.1.0.0/24", "", "", "")}, nil, "10.1.0.2/24 10.1.0.1"},
		{[]Range{rng("10.1.0.0/24", "10.1.0.5", "", "")}, nil, "10.1.0.5/24 10.1.0.1"},
		{[]Range{rng("10.1.0.0/24", "10.1.0.5", "", "10.1.0.5")}, nil, "10.1.0.6/24 10.1.0.5"},
		{[]Range{rng("10.1.0.0/24", "", "", "")}, []string{"10.1.0.0/29"}, "10.1.0.8/24 10.1.0.1"},
		{[]Range{rng("10.1.0.0/24", "10.1.0.1", "10.1.0.1", "")}, nil, ""},
		{[]Range{rng("10.1.0.0/24", "10.1.0.1", "10.1.0.1", ""), rng("10.2.0.0/16", "", "", "")}, nil, "10.2.0.2/16 10.2.0.1"},
		{[]Range{rng("10.1.0.0/24", "", "", "")}, []string{"10.1.0.0/24"}, ""},
		{[]Range{rng("10.1.0.0/24", "", "", "")}, []string{"10.1.0.2/32"}, "10.1.0.3/24 10.1.0.1"},
	} {
		sets, err := Complete([]Set{{"ipam", tc.in}})
		if err != nil {
			t.Fatal(err)
		}
		ip, ok := sets[0].First(Union(prefixes(tc.reserved...)))
		if got := strings.TrimSpace(ip.Address.String() + " " + ip.Gateway.String()); ok != (tc.want != "") || ok && got != tc.want {
			t.Errorf("%v without %v: %s, want %s", tc.in, tc.reserved, got, tc.want)
		}
	}
}

// A network has 4096 ranges at most, in one set or in several.
func TestMostRanges(t *testing.T) {
	of := func(n int) (list []Range) {
		for i := range n {
			list = append(list, Range{Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)})
		}
		return list
	}
	all := of(mostRanges + 1)
	if _, err := Complete([]Set{{"a", all[:mostRanges]}}); err != nil {
		t.Error(err)
	}
	for _, sets := range [][]Set{{{"b", all}}, {{"a", all[:7]}, {"b", all[7:]}}} {
		if _, err := Complete(sets); err == nil || err.Error() != "b: contains range 4097: want at most 4096 ranges" {
			t.Errorf("%v", err)
		}
	}
}

// What a book has is found in the document, or in the directory that it was read from.
func TestPath(t *testing.T) {
	for want, got := range map[string]string{"leases[3]": (&Book{}).Path("leases", 3, "10.1.0.2"), "/d/10.1.0.2": (&Book{From: "/d"}).Path("leases", 3, "10.1.0.2"),
		"/d: sticky 10.1.0.2": (&Book{From: "/d"}).Path("sticky", 3, "10.1.0.2")} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestFamilyOfNothing(t *testing.T) {
	if (Set{}).Is4() {
		t.Error("a set without ranges is of IPv4")
	}
}

// A message names the path of the value, the value, and what would be right.
// clause: K13 P8
func TestRefusals(t *testing.T) {
	at := func(path string, rs ...Range) Set { return Set{path, rs} }
	good := rng("10.9.0.0/24", "", "", "")
	for _, tc := range []struct {
		want string
		sets []Set
	}{
		{"ipam.ranges[0][1].subnet: 10.0.0.5/24 has host bits set; the network is 10.0.0.0/24",
			[]Set{at("ipam.ranges[0]", good, rng("10.0.0.5/24", "", "", ""))}},
		{"ipam.subnet: 10.0.0.0/31 is too small to allocate from: the longest prefix is /30",
			[]Set{at("ipam", rng("10.0.0.0/31", "", "", ""))}},
		{"ipam.subnet: fd00::/127 is too small to allocate from: the longest prefix is /126",
			[]Set{at("ipam", rng("fd00::/127", "", "", ""))}},
		{"ipam.ranges[0][0].subnet: is missing: want a subnet, such as 10.1.0.0/24",
			[]Set{at("ipam.ranges[0]", Range{})}},
		{"ipam.ranges[1]: is an empty list: add a range, or remove the list",
			[]Set{at("ipam.ranges[0]", good), at("ipam.ranges[1]")}},
		{"ipam.rangeStart: 10.1.0.1 is not in 10.0.0.0/24, which is 10.0.0.0-10.0.0.255",
			[]Set{at("ipam", rng("10.0.0.0/24", "10.1.0.1", "", ""))}},
		{"ipam.rangeEnd: fd00::1 is not in 10.0.0.0/24, which is 10.0.0.0-10.0.0.255",
			[]Set{at("ipam", rng("10.0.0.0/24", "", "fd00::1", ""))}},
		{"ipam.rangeEnd: 10.0.0.5 is below the start of the range, 10.0.0.9",
			[]Set{at("ipam", rng("10.0.0.0/24", "10.0.0.9", "10.0.0.5", ""))}},
		{"ipam.gateway: fd00::1 is not of the family of 10.0.0.0/24",
			[]Set{at("ipam", rng("10.0.0.0/24", "", "", "fd00::1"))}},
		{"ipam.gateway: fe80::1%eth0 has a zone; write fe80::1", []Set{at("ipam", rng("fd00::/64", "", "", "fe80::1%eth0"))}},
		{"ipam.ranges[0][1].subnet: fd00::/64 and 10.9.0.0/24 of ipam.ranges[0][0] are of different families: want a separate list for each family",
			[]Set{at("ipam.ranges[0]", good, rng("fd00::/64", "", "", ""))}},
		{"ipam.ranges[0][1]: 10.9.0.9-10.9.0.254 overlaps 10.9.0.1-10.9.0.254 of ipam.ranges[0][0]",
			[]Set{at("ipam.ranges[0]", good, rng("10.9.0.0/24", "10.9.0.9", "", ""))}},
		{"ipam.subnet: is missing: want a subnet, such as 10.1.0.0/24",
			[]Set{at("runtimeConfig.ipRanges[0]", good), at("ipam", Range{RangeStart: addr("10.0.0.1")})}},
		{"ipam.ranges[0][0]: 10.9.0.1-10.9.0.254 overlaps 10.9.0.1-10.9.0.254 of runtimeConfig.ipRanges[0][0]",
			[]Set{at("runtimeConfig.ipRanges[0]", good), at("ipam.ranges[0]", good)}},
	} {
		_, err := Complete(tc.sets)
		if err == nil || err.Error() != tc.want {
			t.Errorf("got  %v\nwant %s", err, tc.want)
		} else if e := spec.AsError(err, 0); e.Code != spec.CodeConfig {
			t.Errorf("%s: code %d", tc.want, e.Code)
		}
	}
}

// FuzzComplete holds whatever is accepted against what a range has to be.
func FuzzComplete(f *testing.F) {
	f.Add("10.1.0.0/24", "10.1.0.5", "10.1.0.9", "10.1.0.1", "10.1.0.64/26")
	f.Add("fd00::/64", "", "fd00::9", "", "fd00::1:0:0:0/80")
	f.Add("::ffff:10.0.0.0/104", "", "", "", "0.0.0.0/0")
	f.Add("::/0", "::", "", "", "fe80::/10")
	f.Fuzz(func(t *testing.T, subnet, start, end, gw, other string) {
		var r, o Range
		for text, into := range map[string]*netip.Addr{start: &r.RangeStart, end: &r.RangeEnd, gw: &r.Gateway} {
			*into, _ = netip.ParseAddr(text)
		}
		r.Subnet, _ = netip.ParsePrefix(subnet)
		o.Subnet, _ = netip.ParsePrefix(other)
		sets, err := Complete([]Set{{"a[0]", []Range{r}}, {"b", []Range{o}}})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "a[0]") && !strings.HasPrefix(err.Error(), "b") {
				t.Errorf("the message names no path: %v", err)
			}
			return
		}
		for _, s := range sets {
			r := s.Ranges[0]
			if !r.Subnet.Contains(r.RangeStart) || !r.Subnet.Contains(r.RangeEnd) || r.RangeEnd.Less(r.RangeStart) ||
				!r.Gateway.IsValid() || s.Size().IsZero() {
				// A lone gateway leaves nothing, which is exhausted and no error.
				if r.RangeStart != r.RangeEnd || r.RangeStart != r.Gateway {
					t.Errorf("accepted %+v", r)
				}
			}
			var total Count
			for _, sp := range s.After(r.RangeStart) {
				total = total.Add(span(sp.First, sp.Last))
			}
			if total != span(r.RangeStart, r.RangeEnd) {
				t.Errorf("%+v: the order has %s addresses of %s", r, total, span(r.RangeStart, r.RangeEnd))
			}
		}
		if a, b := sets[0].Ranges[0], sets[1].Ranges[0]; a.Contains(b.RangeStart) || b.Contains(a.RangeStart) {
			t.Errorf("%s and %s overlap", a, b)
		}
	})
}

// Count does as math/big does.
func FuzzCount(f *testing.F) {
	f.Add(uint64(0), uint64(0), uint64(0), uint64(1))
	f.Add(^uint64(0), ^uint64(0), uint64(542101086242752217), ^uint64(0))
	f.Add(uint64(5), uint64(10_000_000_000_000_000_000), uint64(1), uint64(0))
	f.Fuzz(func(t *testing.T, ahi, alo, bhi, blo uint64) {
		a, b := Count{ahi, alo}, Count{bhi, blo}
		wide := func(c Count) *big.Int {
			n := new(big.Int).SetUint64(c.hi)
			return n.Add(n.Lsh(n, 64), new(big.Int).SetUint64(c.lo))
		}
		mod := new(big.Int).Lsh(big.NewInt(1), 128)
		check := func(got Count, want *big.Int) {
			if want.Mod(want, mod); got.String() != want.String() {
				t.Errorf("%s %s: got %s, want %s", a, b, got, want)
			}
		}
		check(a, wide(a))
		check(a.Add(b), new(big.Int).Add(wide(a), wide(b)))
		check(a.Sub(b), new(big.Int).Sub(wide(a), wide(b)))
	})
}
