package filter

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/lawtest"
	"github.com/fairlead-cni/fairlead/kernel"
)

func iptMasq() MasqueradeIPTables {
	return MasqueradeIPTables{Masquerade{Owner: lawtest.Owner, From: []netip.Prefix{lawtest.Prefix("10.1.2.5/24"), lawtest.Prefix("fd00::5/64")}}}
}

func TestMasqueradeIPTablesLaw(t *testing.T) {
	lawtest.EachIPTables(t, func(t *testing.T, v kernel.IPTVariant) {
		for _, full := range []bool{false, true} {
			w := lawtest.NewWorld(t)
			lawtest.SettleOn(t, w, v)
			lawtest.Host(t, w, "iptables-%v -t nat -A POSTROUTING -s 10.9.9.9 -j RETURN", v)
			lawtest.Host(t, w, "ip6tables-%v -t nat -A POSTROUTING -s fd00::99 -j RETURN", v)
			m := iptMasq()
			if full {
				m.Except = []netip.Prefix{lawtest.Prefix("198.51.100.0/24"), lawtest.Prefix("2001:db8:1::/64")}
				m.Force = []netip.Prefix{lawtest.Prefix("198.51.100.7/32"), lawtest.Prefix("::/0")}
				m.SNATTo = []netip.Addr{lawtest.Addr("192.0.2.9"), lawtest.Addr("2001:db8::9")}
			}
			ipt := func(line string) func(*testing.T) {
				return func(t *testing.T) { lawtest.Host(t, w, "iptables-%v -t nat %s", v, line) }
			}
			chain := MasqueradeChain(lawtest.Owner)
			lawtest.Book{State: func(t testing.TB) string { return lawtest.IPTablesState(t, w, v) + lawtest.State(t, w) }}.Hold(t, w, m,
				lawtest.Break("jump", ipt("-D POSTROUTING 2"), "-s 10.1.2.5/32"),
				lawtest.Break("chain", ipt("-F "+chain), "-d 10.1.2.0/24"),
				lawtest.Break("chain6", func(t *testing.T) { lawtest.Host(t, w, "ip6tables-%v -t nat -F %s", v, chain) }, "! -d ff00::/8"),
			)
		}
	})
}

func TestMasqueradeIPTablesPaths(t *testing.T) {
	lawtest.EachIPTables(t, func(t *testing.T, v kernel.IPTVariant) {
		l := newLab(t)
		lawtest.SettleOn(t, l.w, v)
		for _, ns := range []*kernel.NS{l.neighbour, l.beyond, l.b} {
			l.serve(ns, l.name(ns), "tcp", ":80")
			l.serve(ns, l.name(ns), "udp", ":80")
		}
		m := iptMasq()
		m.Except = []netip.Prefix{lawtest.Prefix("198.51.100.0/24"), lawtest.Prefix("2001:db8:1::/64")}
		step := func(neighbour, neighbour6, beyond, beyond6 string) {
			t.Helper()
			l.ensure(m, l.w)
			lawtest.Verify(t, l.w, m)
			for _, network := range []string{"tcp", "udp"} {
				l.expect(l.a, network, "192.0.2.2:80", "neighbour "+neighbour)
				l.expect(l.a, network, "[2001:db8::2]:80", "neighbour "+neighbour6)
				l.expect(l.a, network, "198.51.100.2:80", "beyond "+beyond)
				l.expect(l.a, network, "[2001:db8:1::2]:80", "beyond "+beyond6)
				l.expect(l.a, network, "10.1.2.6:80", "b 10.1.2.5")
				l.expect(l.b, network, "192.0.2.2:80", "neighbour 10.1.2.6")
			}
			lawtest.Remove(t, l.w, m)
		}
		step("192.0.2.1", "2001:db8::1", "10.1.2.5", "fd00::5")
		m.Force = []netip.Prefix{lawtest.Prefix("198.51.100.2/32"), lawtest.Prefix("2001:db8:1::/65")}
		step("192.0.2.1", "2001:db8::1", "198.51.100.1", "2001:db8:1::1")
		m.SNATTo = []netip.Addr{lawtest.Addr("192.0.2.9"), lawtest.Addr("2001:db8::9")}
		step("192.0.2.9", "2001:db8::9", "192.0.2.9", "2001:db8::9")
	})
}

// The second interface of a container on a network shares the chain of the first one. Containers with one address, of
// networks that overlap, have rules of their own.
func TestMasqueradeIPTablesShared(t *testing.T) {
	lawtest.EachIPTables(t, func(t *testing.T, v kernel.IPTVariant) {
		w := lawtest.NewWorld(t)
		lawtest.SettleOn(t, w, v)
		before := lawtest.IPTablesState(t, w, v)
		one, two := iptMasq(), iptMasq()
		two.Owner.IfName, two.From = "eth1", []netip.Prefix{lawtest.Prefix("10.7.2.5/24"), lawtest.Prefix("fd00:7::5/64")}
		lawtest.Ensure(t, w, one)
		lawtest.Ensure(t, w, two)
		lawtest.Verify(t, w, two)
		lawtest.Verify(t, w, one)
		lawtest.Remove(t, w, one)
		lawtest.Verify(t, w, two)
		if s := lawtest.IPTablesState(t, w, v); strings.Contains(s, "-s 10.1.2.5") || strings.Contains(s, "-s fd00::5") {
			t.Errorf("left:\n%s", s)
		}
		next, first := two, two
		next.Owner.ContainerID, first.Owner.Network = "c9", "overlaps"
		lawtest.Ensure(t, w, next)
		lawtest.Ensure(t, w, first)
		lawtest.Remove(t, w, first)
		lawtest.Verify(t, w, two)
		lawtest.Ensure(t, w, first)
		lawtest.Remove(t, w, two)
		lawtest.Verify(t, w, next)
		lawtest.Verify(t, w, first)
		lawtest.Remove(t, w, first)
		lawtest.Verify(t, w, next)
		if s := lawtest.IPTablesState(t, w, v); strings.Contains(s, MasqueradeChain(lawtest.Owner)) {
			t.Errorf("left:\n%s", s)
		}
		lawtest.Remove(t, w, next)
		if after := lawtest.IPTablesState(t, w, v); after != before {
			t.Errorf("left: %s", lawtest.Difference(before, after))
		}
	})
}
