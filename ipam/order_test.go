package ipam

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// walk is every address in the order in which they are tried.
func walk(s Set, last netip.Addr) (order []netip.Addr) {
	for _, sp := range s.After(last) {
		for a := sp.First; !sp.Last.Less(a); a = a.Next() {
			if a != sp.Gateway {
				order = append(order, a)
			}
		}
	}
	return order
}

func TestOrder(t *testing.T) {
	sets, err := Complete([]Set{{"ipam.ranges[0]", []Range{
		rng("10.1.0.0/29", "", "", ""),
		rng("10.2.0.0/24", "10.2.0.8", "10.2.0.10", "10.2.0.9"),
		rng("10.3.0.0/24", "10.3.0.1", "10.3.0.1", ""), // its own gateway, and nothing else
	}}})
	if err != nil {
		t.Fatal(err)
	}
	list := func(texts ...string) (as []netip.Addr) {
		for _, s := range texts {
			as = append(as, addr(s))
		}
		return as
	}
	all := list("10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.2.0.8", "10.2.0.10")
	for last, first := range map[string]int{"": 0, "192.0.2.1": 0, "fd00::1": 0, "10.1.0.1": 0, "10.1.0.4": 3,
		"10.1.0.6": 5, "10.2.0.9": 6, "10.2.0.10": 0, "10.3.0.1": 0} {
		want := slices.Concat(all[first:], all[:first])
		if got := walk(sets[0], addr(last)); !slices.Equal(got, want) {
			t.Errorf("after %q:\ngot  %s\nwant %s", last, got, want)
		}
	}
}

// Whatever was given out last, each address comes up once and the gateways never.
func TestOrderIsComplete(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var in []Range
		for i := range 1 + r.IntN(4) {
			from, n := r.IntN(200), r.IntN(50)
			base := netip.AddrFrom4([4]byte{10, byte(i), 0, 0})
			in = append(in, Range{netip.PrefixFrom(base, 24), Plus(base, uint64(from)), Plus(base, uint64(from+n)),
				Plus(base, uint64(r.IntN(256)))})
		}
		sets, err := Complete([]Set{{"ipam.ranges[0]", in}})
		if err != nil {
			t.Fatal(err)
		}
		s := sets[0]
		last := netip.AddrFrom4([4]byte{10, byte(r.IntN(5)), 0, byte(r.IntN(256))})
		got := walk(s, last)
		if n := CountOf(uint64(len(got))); n != s.Size() {
			t.Errorf("%s after %s: %s addresses of %s", s, last, n, s.Size())
		}
		seen := map[netip.Addr]bool{}
		for _, a := range got {
			if seen[a] {
				t.Errorf("%s after %s: %s comes up twice", s, last, a)
			}
			seen[a] = true
		}
		if _, ok := s.Find(last); ok && seen[last] && got[len(got)-1] != last {
			t.Errorf("%s: %s was last, and does not come last", s, last)
		}
	}
}

// clause: K5 K11 K12
func TestAssign(t *testing.T) {
	sets, err := Complete([]Set{
		{"ipam.ranges[0]", []Range{rng("10.1.0.0/24", "", "", "")}},
		{"ipam.ranges[1]", []Range{rng("fd00::/64", "", "", "")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		ask       []string
		v4, v6    string
		wantError string
	}{
		{ask: nil},
		{ask: []string{"10.1.0.9"}, v4: "10.1.0.9"},
		{ask: []string{"fd00::9", "10.1.0.9"}, v4: "10.1.0.9", v6: "fd00::9"},
		{ask: []string{"10.1.0.9/16", "10.1.0.9"}, v4: "10.1.0.9"},
		{ask: []string{"10.1.0.9", "10.1.0.10"},
			wantError: "requested address 10.1.0.10: ipam.ranges[0] (10.1.0.1-10.1.0.254) gives one address, and 10.1.0.9 is asked for too"},
		{ask: []string{"10.1.0.1"}, wantError: "requested address 10.1.0.1 is the gateway of 10.1.0.0/24"},
		{ask: []string{"10.2.0.1"},
			wantError: "requested address 10.2.0.1 is in no range; there is 10.1.0.1-10.1.0.254, fd00::1-fd00::ffff:ffff:ffff:ffff"},
		{ask: []string{"10.1.0.255"},
			wantError: "requested address 10.1.0.255 is in no range; there is 10.1.0.1-10.1.0.254, fd00::1-fd00::ffff:ffff:ffff:ffff"},
	} {
		var ask []netip.Addr
		for _, s := range tc.ask {
			a, err := ParseRequest("x", s)
			if err != nil {
				t.Fatal(err)
			}
			ask = append(ask, a)
		}
		got, err := Assign(sets, ask)
		switch {
		case tc.wantError != "":
			if err == nil || err.Error() != tc.wantError {
				t.Errorf("%q: got  %v\nwant %s", tc.ask, err, tc.wantError)
			}
		case err != nil:
			t.Errorf("%q: %v", tc.ask, err)
		case got[0] != addr(tc.v4) || got[1] != addr(tc.v6):
			t.Errorf("%q: got %s", tc.ask, got)
		}
	}
}

// An address that no container can have is refused with one of its family that it can.
func TestNoHost(t *testing.T) {
	const example4, example6 = ": want a container's own address, such as 192.0.2.5/24",
		": want a container's own address, such as 2001:db8::5/64"
	for text, want := range map[string]string{
		"0.0.0.0/24":         "is no address, but stands for none" + example4,
		"::/64":              "is no address, but stands for none" + example6,
		"127.0.0.1/8":        "is the host's itself, on every host" + example4,
		"::1/128":            "is the host's itself, on every host" + example6,
		"224.0.0.1/24":       "is a group's (multicast), and no single host's" + example4,
		"255.255.255.255/32": "is for all hosts (broadcast)" + example4,
		"::ffff:10.1.0.5/96": "is an IPv4 address in the clothes of IPv6: write 10.1.0.5 with the length of its IPv4 subnet",
		"10.1.0.0/24": "is the address of the subnet 10.1.0.0/24 itself: want an address of a subnet, such as " +
			"192.0.2.5/24, that is neither its first nor its last",
		"10.1.0.255/24": "is the broadcast address of 10.1.0.0/24: want an address of a subnet, such as 192.0.2.5/24, that is " +
			"neither its first nor its last",
		"10.1.0.3/30": "is the broadcast address of 10.1.0.0/30: want an address of a subnet, such as 192.0.2.5/24, that is " +
			"neither its first nor its last",
		"10.1.0.5/24": "", "10.1.0.0/31": "", "10.1.0.1/31": "", "240.0.0.5/24": "", "fd00::/64": "", "10.1.0.0/32": "",
	} {
		if got := NoHost(netip.MustParsePrefix(text)); got != want {
			t.Errorf("%s %s, want %s", text, got, want)
		}
	}
}

// A container can ask for any address but one that no container can have in the subnet it is of.
func TestRequestable(t *testing.T) {
	sets := []Set{{Ranges: []Range{
		{Subnet: netip.MustParsePrefix("10.1.0.0/24")},
		{Subnet: netip.MustParsePrefix("10.2.0.0/16")},
	}}}
	for text, want := range map[string]string{
		"10.1.0.5":     "",
		"10.2.1.0":     "", // the first address of a subnet of 24 bits, which 10.2.0.0/16 is not
		"10.1.0.0":     "is the address of the subnet 10.1.0.0/24 itself",
		"10.2.255.255": "is the broadcast address of 10.2.0.0/16",
	} {
		err := Requestable("ips[0]", netip.MustParseAddr(text), sets)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Addresses are asked for by runtimeConfig and by args, or by CNI_ARGS if args asks for none. The first that is none, or
// cannot be had, is named with its place.
//
// clause: K11
func TestRequested(t *testing.T) {
	list := func(text string) []string { return strings.Split(text, " ") }
	odd := errors.New("odd")
	for _, tc := range []struct {
		ips, args []string
		env       string
		want      string
		failure   string
	}{
		{list("10.1.0.5 "), list("10.1.0.6/24"), "10.1.0.7", "runtimeConfig.ips[0] 10.1.0.5, args.cni.ips[0] 10.1.0.6", ""},
		{nil, nil, "10.1.0.7,fd00::7", "CNI_ARGS: IP 10.1.0.7, CNI_ARGS: IP fd00::7", ""},
		{nil, nil, "", "", ""},
		{nil, list("10.1.0.6"), "x", "args.cni.ips[0] 10.1.0.6", ""},
		{nil, list("10.1.0.6 10.1.0.7"), "x", "args.cni.ips[0] 10.1.0.6, args.cni.ips[1] 10.1.0.7", ""},
		{nil, nil, "::ffff:10.1.0.7", "CNI_ARGS: IP 10.1.0.7", ""},
		{list("10.1.0.5 x"), nil, "10.1.0.7", "", "runtimeConfig.ips[1]: requested address \"x\""},
		{nil, nil, "10.1.0.5/x", "", "CNI_ARGS: IP: requested address \"10.1.0.5/x\""},
		{nil, nil, "fe80::1%eth0", "", "CNI_ARGS: IP: requested address \"fe80::1%eth0\""},
		{nil, list("224.0.0.1"), "", "", "args.cni.ips[0]: requested address 224.0.0.1 is a group's"},
		{nil, list("10.1.0.66 10.1.0.5"), "", "", "odd"},
	} {
		var checked []string
		asked, err := Requested(tc.ips, tc.args, tc.env, func(path string, a netip.Addr) error {
			checked = append(checked, path+" "+a.String())
			if a == addr("10.1.0.66") {
				return odd
			}
			return nil
		})
		if tc.failure != "" {
			if err == nil || !strings.HasPrefix(err.Error(), tc.failure) || asked != nil {
				t.Errorf("%+v: %v, %v", tc, asked, err)
			}
			continue
		}
		if err != nil || strings.Join(checked, ", ") != tc.want || len(asked) != len(checked) {
			t.Errorf("%+v: %q, %v, %v", tc, checked, asked, err)
		}
		for i, a := range asked {
			if !strings.HasSuffix(checked[i], " "+a.String()) {
				t.Errorf("%+v: asked for %v", tc, asked)
			}
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, s := range []string{"10.1.0.5", "10.1.0.5/24", "fd00::5/64", "::ffff:10.0.0.1", "10.1.0.5/33", "fe80::1%eth0",
		"010.0.0.1", "", "/", "1.2.3.4/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseRequest("x", s)
		if err != nil {
			return
		}
		if again, err := ParseRequest("x", a.String()); err != nil || again != a || a.Zone() != "" || a.Is4In6() {
			t.Errorf("%q is %s, which is %s, %v", s, a, again, err)
		}
	})
}
