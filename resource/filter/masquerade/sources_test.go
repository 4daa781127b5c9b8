package masquerade_test

import (
	"errors"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
)

func TestMasqueradeLaw(t *testing.T) {
	w := contract.NewWorld(t)
	m := masquerade.Sources{Owner: contract.Owner, From: []netip.Prefix{contract.Prefix("10.1.2.5/24"),
		contract.Prefix("fd00::5/64")}, Except: []netip.Prefix{contract.Prefix("192.0.2.0/24"), contract.Prefix("2001:db8::/32")}}
	shared := func(t testing.TB, family string) string {
		return regexp.MustCompile(`masquerade_` + family + `_[0-9a-f]{12}`).FindString(filtertest.State(t, w))
	}
	filtertest.Test(t, w, m,
		contract.Break("element", func(t *testing.T) {
			filtertest.NFT(t, w,
				"delete element inet fairlead "+shared(t, "ip")+" { 10.1.2.5 }")
		},
			"{ 10.1.2.5 } is missing"),
		contract.Break("element6", func(t *testing.T) {
			filtertest.NFT(t, w,
				"delete element inet fairlead "+shared(t, "ip6")+" { fd00::5 }")
		},
			"{ fd00::5 } is missing"),
		contract.Break("tag", func(t *testing.T) {
			s := shared(t, "ip")
			filtertest.NFT(t, w, "delete element inet fairlead "+s+" { 10.1.2.5 }; add element inet fairlead "+s+
				" { 10.1.2.5 comment \"mine\" }")
		}, `belongs to "mine"`),
		contract.Break("line", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead masquerading") }, `nft rule inet fairlead masquerading "a network`),
		contract.Break("owners", func(t *testing.T) { filtertest.NFT(t, w, "flush set inet fairlead owners") },
			"is not in owners"),
		contract.Break("chain", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead "+shared(t, "ip")) }, `"its own network`),
		contract.Break("chain6", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead "+shared(t, "ip6")) }, `"multicast`),
		contract.Break("foreign rule", func(t *testing.T) {
			filtertest.NFT(t, w,
				"insert rule inet fairlead postrouting accept")
		},
			"of another program"),
		contract.Break("flush table", func(t *testing.T) { filtertest.NFT(t, w, "flush table inet fairlead") }, `nft rule inet fairlead postrouting "out of a network`),
		contract.Break("delete table", func(t *testing.T) { filtertest.NFT(t, w, "delete table inet fairlead") },
			"nft table inet fairlead is missing"),
	)
}

// What an outside machine sees: the address that was chosen, of either family; that of the link where none was
// chosen for the family; the container's own where it is excepted and not forced.
func TestMasqueradeForceAndSource(t *testing.T) {
	l := filtertest.NewLab(t)
	for _, ns := range []*kernel.NS{l.Neighbour, l.Remote, l.B} {
		l.Serve(ns, l.NameOf(ns), "tcp", ":80")
		l.Serve(ns, l.NameOf(ns), "udp", ":80")
	}
	m := masquerade.Sources{Owner: l.OwnerA, From: []netip.Prefix{l.ToA, l.ToA6},
		Except: []netip.Prefix{contract.Prefix("198.51.100.0/24"), contract.Prefix("2001:db8:1::/64")}}
	step := func(neighbour, neighbour6, beyond, beyond6 string) {
		t.Helper()
		l.Ensure(m, l.W)
		contract.Verify(t, l.W, m)
		for _, network := range []string{"tcp", "udp"} {
			l.Expect(l.A, network, "192.0.2.2:80", "neighbour "+neighbour)
			l.Expect(l.A, network, "[2001:db8::2]:80", "neighbour "+neighbour6)
			l.Expect(l.A, network, "198.51.100.2:80", "beyond "+beyond)
			l.Expect(l.A, network, "[2001:db8:1::2]:80", "beyond "+beyond6)
			l.Expect(l.B, network, "192.0.2.2:80", "neighbour 10.1.2.6")
		}
		contract.Remove(t, l.W, m)
	}
	step("192.0.2.1", "2001:db8::1", "10.1.2.5", "fd00::5")
	m.Force = []netip.Prefix{contract.Prefix("198.51.100.2/32"), contract.Prefix("2001:db8:1::/65")}
	step("192.0.2.1", "2001:db8::1", "198.51.100.1", "2001:db8:1::1")
	m.SNATTo = []netip.Addr{contract.Addr("192.0.2.9"), contract.Addr("2001:db8::9")}
	step("192.0.2.9", "2001:db8::9", "192.0.2.9", "2001:db8::9")
	m.Force = nil
	step("192.0.2.9", "2001:db8::9", "10.1.2.5", "fd00::5")
	m.SNATTo = m.SNATTo[:1]
	step("192.0.2.9", "2001:db8::1", "10.1.2.5", "fd00::5")
	// All is the network's own, but for what is forced.
	m.SNATTo, m.Except, m.From = nil, nil, []netip.Prefix{netip.PrefixFrom(l.ToA.Addr(), 0),
		netip.PrefixFrom(l.ToA6.Addr(), 0)}
	step("10.1.2.5", "fd00::5", "10.1.2.5", "fd00::5")
	m.Force = []netip.Prefix{contract.Prefix("198.51.100.0/24"), contract.Prefix("2001:db8:1::/64")}
	step("10.1.2.5", "fd00::5", "198.51.100.1", "2001:db8:1::1")
}

// Multicast keeps its source whatever is forced, and networks that differ in nothing but this do not share a
// chain.
func TestMasqueradeForceLaw(t *testing.T) {
	w := contract.NewWorld(t)
	m := masquerade.Sources{Owner: contract.Owner, From: []netip.Prefix{contract.Prefix("10.1.2.5/24"),
		contract.Prefix("fd00::5/64")},
		Force: []netip.Prefix{contract.Prefix("0.0.0.0/0"),
			contract.Prefix("::/0")}, SNATTo: []netip.Addr{contract.Addr("192.0.2.9"), contract.Addr("2001:db8::9")}}
	shared := func(t testing.TB, family string) string {
		return regexp.MustCompile(`masquerade_` + family + `_[0-9a-f]{12}`).FindString(filtertest.State(t, w))
	}
	filtertest.Test(t, w, m,
		contract.Break("forced", func(t *testing.T) {
			filtertest.NFT(t, w, "flush chain inet fairlead "+shared(t, "ip"))
			filtertest.NFT(t, w, "add rule inet fairlead "+shared(t, "ip")+" snat ip to 192.0.2.9")
		}, `"forced`),
		contract.Break("source", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead "+shared(t, "ip6")) }, `"all else`),
	)
	contract.Ensure(t, w, m)
	for family, order := range map[string][]string{
		"ip":  {"ip daddr 224.0.0.0/4", "snat ip to 192.0.2.9", "ip daddr 10.1.2.0/24", "snat ip to 192.0.2.9"},
		"ip6": {"ip6 daddr ff00::/8", "snat ip6 to 2001:db8::9", "ip6 daddr fd00::/64", "snat ip6 to 2001:db8::9"},
	} {
		rules := filtertest.NFT(t, w, "list chain inet fairlead "+shared(t, family))
		for _, want := range order {
			_, rest, ok := strings.Cut(rules, want)
			if !ok {
				t.Fatalf("%s does not follow:\n%s", want, rules)
			}
			rules = rest
		}
	}
	plain := m
	plain.Owner.ContainerID, plain.SNATTo = "c2", nil
	plain.From = []netip.Prefix{contract.Prefix("10.1.2.6/24")}
	contract.Ensure(t, w, plain)
	if n := len(regexp.MustCompile(`chain masquerade_ip_`).FindAllString(filtertest.State(t, w), -1)); n != 2 {
		t.Errorf("%d chains, want 2", n)
	}
	contract.Verify(t, w, m)
	contract.Verify(t, w, plain)
}

// A source address that the host does not have is refused, with those that it has.
func TestHostAddrs(t *testing.T) {
	l := filtertest.NewLab(t)
	ok := masquerade.HostAddrs{contract.Addr("192.0.2.9"), contract.Addr("2001:db8::9")}
	contract.Verify(t, l.W, ok)
	contract.Ensure(t, l.W, plan.Required(ok))
	bad := masquerade.HostAddrs{contract.Addr("192.0.2.77"), contract.Addr("192.0.2.1"), contract.Addr("2001:db8::77")}
	err := bad.Verify(t.Context(), l.W)
	if err == nil {
		t.Fatal("no error")
	}
	for _, word := range []string{"snatTo: 192.0.2.77: ", "192.0.2.9 (wan)", "198.51.100.1 (wan2)",
		"snatTo: 2001:db8::77: ", "2001:db8::9 (lo)"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
	if strings.Contains(err.Error(), "127.0.0.1") || strings.Contains(err.Error(), "fe80") ||
		strings.Contains(err.Error(), "192.0.2.1:") {
		t.Errorf("%v", err)
	}
}

func TestMasqueradePaths(t *testing.T) {
	l := filtertest.NewLab(t)
	m := masquerade.Sources{Owner: l.OwnerA, From: []netip.Prefix{l.ToA, l.ToA6},
		Except: []netip.Prefix{contract.Prefix("198.51.100.0/24"), contract.Prefix("2001:db8:1::/64")}}
	l.Ensure(m, l.W)
	for _, ns := range []*kernel.NS{l.Neighbour, l.Remote, l.B} {
		l.Serve(ns, l.NameOf(ns), "tcp", ":80")
	}
	l.Expect(l.A, "tcp", "192.0.2.2:80", "neighbour 192.0.2.1")
	l.Expect(l.A, "tcp", "[2001:db8::2]:80", "neighbour 2001:db8::1")
	l.Expect(l.A, "tcp", "198.51.100.2:80", "beyond 10.1.2.5")
	l.Expect(l.A, "tcp", "[2001:db8:1::2]:80", "beyond fd00::5")
	l.Expect(l.A, "tcp", "10.1.2.6:80", "b 10.1.2.5")
	l.Expect(l.B, "tcp", "192.0.2.2:80", "neighbour 10.1.2.6")
	if err := errors.Join(m.Remove(l.Context(), l.W), l.W.Finish()); err != nil {
		t.Fatal(err)
	}
	l.Expect(l.A, "tcp", "192.0.2.2:80", "neighbour 10.1.2.5")
}
