package v6

import (
	"encoding/hex"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/miekg/dns"
)

// The identifier is the owner's and no other's, the same each time, and outlives a change of what it is made of.
func TestIdentifiers(t *testing.T) {
	one, two := owner("one"), owner("two")
	if a, b := DUID(one.Owner), DUID(one.Owner); !slices.Equal(a, b) || len(a) != 18 || a[1] != 4 {
		t.Errorf("%x and %x", a, b)
	}
	if slices.Equal(DUID(one.Owner), DUID(two.Owner)) || iaid(one.Owner) == iaid(two.Owner) {
		t.Error("two owners have one identifier")
	}
	kept := &dhcp.Lease{State: map[string]string{duidState: "00030001aabbccddeeff"}}
	if got := option(message(dhcpv6.MessageTypeRenew, one, kept),
		optClientID); hex.EncodeToString(got) != kept.State[duidState] {
		t.Errorf("%x", got)
	}
	one.Options = map[uint16][]byte{1: {0, 2, 1, 2}, 16: {0, 0, 0, 9}}
	if got := option(message(dhcpv6.MessageTypeRelease, one, nil), optClientID); hex.EncodeToString(got) != "00020102" {
		t.Errorf("%x", got)
	}
	if m := message(dhcpv6.MessageTypeSolicit, one, nil); len(option(m, 16)) != 4 {
		t.Error("what is asked for is not sent")
	}
	if _, err := netip.ParseAddr("::"); err != nil || len(DUID(spec.Owner{})) != 18 {
		t.Error("an owner without names")
	}
}

func TestTimes(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name                         string
		t1, t2, preferred, valid     time.Duration
		wantT1, wantT2, wantLifetime time.Duration
	}{
		{"the server's", 10 * s, 20 * s, 30 * s, 40 * s, 10 * s, 20 * s, 40 * s},
		{"left to the client", 0, 0, 30 * s, 40 * s, 15 * s, 24 * s, 40 * s},
		{"T1 alone", 28 * s, 0, 30 * s, 40 * s, 28 * s, 28 * s, 40 * s},
		{"T2 alone", 0, 5 * s, 30 * s, 40 * s, 5 * s, 5 * s, 40 * s},
		{"after the end", 100 * s, 200 * s, 30 * s, 40 * s, 40 * s, 40 * s, 40 * s},
		{"never preferred", 0, 0, 0, 40 * s, 20 * s, 32 * s, 40 * s},
		{"without end", 0, 0, 0xffffffff * s, 0xffffffff * s, dhcp.Forever, dhcp.Forever, dhcp.Forever},
		{"without renewal", 0xffffffff * s, 0xffffffff * s, 30 * s, 40 * s, 40 * s, 40 * s, 40 * s},
	} {
		m := message(dhcpv6.MessageTypeRequest, owner("one"), nil)
		associations(m, owner("one"), nil, true, true)
		r := reply(m, "fd00:1::1")
		na := r.Options.OneIANA()
		na.T1, na.T2 = c.t1, c.t2
		na.Options.OneAddress().PreferredLifetime, na.Options.OneAddress().ValidLifetime = c.preferred, c.valid
		r, err := parse(r.ToBytes(), m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := lease(r, dhcp.Link{}, owner("one"), nil, true)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if got.T1 != c.wantT1 || got.T2 != c.wantT2 || got.Valid != c.wantLifetime {
			t.Errorf("%s: %v, %v, %v, want %v, %v, %v", c.name, got.T1, got.T2, got.Valid, c.wantT1, c.wantT2, c.wantLifetime)
		}
	}
}

func TestParseAdvert(t *testing.T) {
	router := netip.MustParseAddr("fe80::1")
	a := &advert{router: router, managed: true, other: true, preference: 1, lifetime: 30 * time.Minute, mtu: 1400,
		prefixes: []advertPrefix{{netip.MustParsePrefix("fd00:1::/64"), true, 30 * time.Minute, time.Hour},
			{netip.MustParsePrefix("fd00:2::/48"), false, 30 * time.Minute, time.Hour}},
		dns: []netip.Addr{netip.MustParseAddr("fd00::53")}, search: []string{"a.example"}}
	if got, err := parseAdvert(a.bytes(), router, 255); err != nil || !reflect.DeepEqual(got, a) {
		t.Errorf("%+v, %v\nwant %+v", got, err, a)
	}
	for name, f := range map[string]func() ([]byte, netip.Addr, int){
		"from beyond a router": func() ([]byte, netip.Addr, int) { return a.bytes(), router, 254 },
		"from far away":        func() ([]byte, netip.Addr, int) { return a.bytes(), netip.MustParseAddr("fd00::1"), 255 },
		"short":                func() ([]byte, netip.Addr, int) { return a.bytes()[:15], router, 255 },
		"cut":                  func() ([]byte, netip.Addr, int) { b := a.bytes(); return b[:len(b)-1], router, 255 },
		"an empty option":      func() ([]byte, netip.Addr, int) { return append(a.bytes(), 3, 0), router, 255 },
		"another type":         func() ([]byte, netip.Addr, int) { b := a.bytes(); b[0]++; return b, router, 255 },
	} {
		if got, err := parseAdvert(f()); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if b := best([]*advert{{preference: 1}, {lifetime: 1, preference: -1}, {lifetime: 1},
		{lifetime: 1, router: router}}); b == nil || b.preference != 0 || b.router.IsValid() {
		t.Errorf("best is %+v", b)
	}
}

func TestNames(t *testing.T) {
	for in, want := range map[string]string{
		"\x01a\x07example\x00\x01b\x00": "a.example b",
		"\x01a\x00\x00\x00\x00":         "a",
		"\x01a\x00\x01a\x00":            "a",
		"\x01a\x07example":              "",
		"\x01a\xc0\x00":                 "",
		"\x03a;b\x00\x01b\x00":          "b",
		"\x03a.b\x00":                   "",
		"":                              "",
	} {
		if got := strings.Join(names([]byte(in)), " "); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	long := strings.Repeat("\x3f"+strings.Repeat("a", 63), 5) + "\x00"
	if got := names([]byte(long)); len(got) != 0 {
		t.Errorf("%q", got)
	}
	if got := string(label("box." + strings.Repeat("b", 80))); got != "\x03box\x3f"+strings.Repeat("b", 63) {
		t.Errorf("%q", got)
	}
}

// FuzzAnswer feeds answers to the parser: whatever it takes is something that a link can have.
func FuzzAnswer(f *testing.F) {
	a := owner("one")
	a.Delegate = 56
	m := message(dhcpv6.MessageTypeRequest, a, nil)
	m.TransactionID = dhcpv6.TransactionID{1, 2, 3}
	put(m, optClientID, []byte{0, 3, 0, 1, 2, 0, 0, 0, 0, 1})
	associations(m, a, nil, true, true)
	r := reply(m, "fd00:1::1")
	pd := &dhcpv6.OptIAPD{IaId: iaid(a.Owner)}
	pd.Options.Add(&dhcpv6.OptIAPrefix{PreferredLifetime: 1e10, ValidLifetime: 2e10,
		Prefix: &net.IPNet{IP: net.ParseIP("fd00:100::"), Mask: net.CIDRMask(56, 128)}})
	r.AddOption(pd)
	f.Add(r.ToBytes())
	put(r, optDNS, net.ParseIP("fd00::53"))
	put(r, optSearch, []byte("\x01a\x00"))
	put(r, optNTP, append([]byte{0, 1, 0, 16}, net.ParseIP("fd00::1")...))
	f.Add(r.ToBytes())
	f.Add([]byte{7, 1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parse(b, m)
		if err != nil {
			return
		}
		l, err := lease(r, dhcp.Link{Name: "eth0"}, a, nil, true)
		if err != nil {
			_ = err.Error()
			return
		}
		if len(l.Addresses) == 0 || len(l.Delegated) == 0 || len(l.Addresses) > most || l.Valid <= 0 || l.T1 > l.T2 ||
			l.T2 > l.Valid || l.T1 <= 0 {
			t.Errorf("lease is %+v", l)
		}
		for _, x := range append(l.Addresses, l.Delegated...) {
			if !x.Prefix.IsValid() || x.Valid <= 0 || x.Preferred > x.Valid || x.Prefix.Addr().IsMulticast() ||
				x.Prefix.Addr().Is4In6() {
				t.Errorf("%+v", x)
			}
		}
	})
}

// FuzzAdvert feeds router advertisements to the parser.
func FuzzAdvert(f *testing.F) {
	a := &advert{lifetime: time.Hour, mtu: 1400,
		prefixes: []advertPrefix{{prefix: netip.MustParsePrefix("fd00:1::/64"), auto: true}},
		dns:      []netip.Addr{netip.MustParseAddr("fd00::53")}, search: []string{"a.example"}}
	f.Add(a.bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAdvert(b, netip.MustParseAddr("fe80::1"), 255)
		if err != nil {
			return
		}
		for _, p := range a.prefixes {
			if !p.prefix.IsValid() || p.prefix != p.prefix.Masked() || p.prefix.Addr().IsMulticast() {
				t.Errorf("%+v", p)
			}
		}
		if len(a.prefixes) > most || len(a.dns) > most || len(a.search) > most || a.mtu != 0 &&
			(a.mtu < 1280 || a.mtu > 65535) {
			t.Errorf("%+v", a)
		}
		for i := range a.prefixes { // as all are that are written
			a.prefixes[i].valid, a.prefixes[i].preferred = 3600*time.Second, 1800*time.Second
		}
		again, err := parseAdvert(a.bytes(), a.router, 255)
		if err != nil || !reflect.DeepEqual(a, again) {
			t.Errorf("%x is %+v, and is written as %+v, %v", b, a, again, err)
		}
	})
}

// FuzzNames compares domain names with how miekg/dns reads them.
func FuzzNames(f *testing.F) {
	f.Add([]byte("\x01a\x07example\x00\x01b\x00\x00"))
	f.Add([]byte("\x01a\xc0\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var want []string
		for at := 0; at < len(b) && len(want) < most; {
			if compressed(b[at:]) {
				break
			}
			name, next, err := dns.UnpackDomainName(b, at)
			if err != nil {
				break
			}
			name = strings.TrimSuffix(name, ".")
			if name != "" && !slices.ContainsFunc(strings.Split(name, "."), strange) && !slices.Contains(want, name) {
				want = append(want, name)
			}
			at = next
		}
		if got := names(b); !slices.Equal(got, want) {
			t.Errorf("%q has the names %q; miekg/dns reads %q", b, got, want)
		}
	})
}

// compressed reports whether the name at the beginning of b ends in a pointer to another one.
func compressed(b []byte) bool {
	for len(b) > 0 && b[0] > 0 && b[0] < 64 {
		b = b[min(1+int(b[0]), len(b)):]
	}
	return len(b) > 0 && b[0] >= 64
}
