package filter

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
)

// What an outside machine sees: the address that was chosen, of either family; that of the link where none was
// chosen for the family; the container's own where it is excepted and not forced.
func TestMasqueradeForceAndSource(t *testing.T) {
	l := newLab(t)
	for _, ns := range []*kernel.NS{l.neighbour, l.beyond, l.b} {
		l.serve(ns, l.name(ns), "tcp", ":80")
		l.serve(ns, l.name(ns), "udp", ":80")
	}
	m := Masquerade{Owner: l.ownerA, From: []netip.Prefix{l.toA, l.toA6},
		Except: []netip.Prefix{contract.Prefix("198.51.100.0/24"), contract.Prefix("2001:db8:1::/64")}}
	step := func(neighbour, neighbour6, beyond, beyond6 string) {
		t.Helper()
		l.ensure(m, l.w)
		contract.Verify(t, l.w, m)
		for _, network := range []string{"tcp", "udp"} {
			l.expect(l.a, network, "192.0.2.2:80", "neighbour "+neighbour)
			l.expect(l.a, network, "[2001:db8::2]:80", "neighbour "+neighbour6)
			l.expect(l.a, network, "198.51.100.2:80", "beyond "+beyond)
			l.expect(l.a, network, "[2001:db8:1::2]:80", "beyond "+beyond6)
			l.expect(l.b, network, "192.0.2.2:80", "neighbour 10.1.2.6")
		}
		contract.Remove(t, l.w, m)
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
	m.SNATTo, m.Except, m.From = nil, nil, []netip.Prefix{netip.PrefixFrom(l.toA.Addr(), 0),
		netip.PrefixFrom(l.toA6.Addr(), 0)}
	step("10.1.2.5", "fd00::5", "10.1.2.5", "fd00::5")
	m.Force = []netip.Prefix{contract.Prefix("198.51.100.0/24"), contract.Prefix("2001:db8:1::/64")}
	step("10.1.2.5", "fd00::5", "198.51.100.1", "2001:db8:1::1")
}

// Multicast keeps its source whatever is forced, and networks that differ in nothing but this do not share a
// chain.
func TestMasqueradeForceLaw(t *testing.T) {
	w := contract.NewWorld(t)
	m := Masquerade{Owner: contract.Owner, From: []netip.Prefix{contract.Prefix("10.1.2.5/24"),
		contract.Prefix("fd00::5/64")},
		Force: []netip.Prefix{contract.Prefix("0.0.0.0/0"),
			contract.Prefix("::/0")}, SNATTo: []netip.Addr{contract.Addr("192.0.2.9"), contract.Addr("2001:db8::9")}}
	shared := func(t testing.TB, family string) string {
		return regexp.MustCompile(`masquerade_` + family + `_[0-9a-f]{12}`).FindString(nftState(t, w))
	}
	nftLaw(t, w, m,
		contract.Break("forced", func(t *testing.T) {
			runNFT(t, w, "flush chain inet fairlead "+shared(t, "ip"))
			runNFT(t, w, "add rule inet fairlead "+shared(t, "ip")+" snat ip to 192.0.2.9")
		}, `"forced`),
		contract.Break("source", func(t *testing.T) { runNFT(t, w, "flush chain inet fairlead "+shared(t, "ip6")) }, `"all else`),
	)
	contract.Ensure(t, w, m)
	for family, order := range map[string][]string{
		"ip":  {"ip daddr 224.0.0.0/4", "snat ip to 192.0.2.9", "ip daddr 10.1.2.0/24", "snat ip to 192.0.2.9"},
		"ip6": {"ip6 daddr ff00::/8", "snat ip6 to 2001:db8::9", "ip6 daddr fd00::/64", "snat ip6 to 2001:db8::9"},
	} {
		rules := runNFT(t, w, "list chain inet fairlead "+shared(t, family))
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
	if n := len(regexp.MustCompile(`chain masquerade_ip_`).FindAllString(nftState(t, w), -1)); n != 2 {
		t.Errorf("%d chains, want 2", n)
	}
	contract.Verify(t, w, m)
	contract.Verify(t, w, plain)
}

// A source address that the host does not have is refused, with those that it has.
func TestHostAddrs(t *testing.T) {
	l := newLab(t)
	ok := HostAddrs{contract.Addr("192.0.2.9"), contract.Addr("2001:db8::9")}
	contract.Verify(t, l.w, ok)
	contract.Ensure(t, l.w, ok)
	bad := HostAddrs{contract.Addr("192.0.2.77"), contract.Addr("192.0.2.1"), contract.Addr("2001:db8::77")}
	_, err := bad.Ensure(t.Context(), l.w)
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
