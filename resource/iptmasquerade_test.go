package resource

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel"
)

func iptMasq() MasqueradeIPTables {
	return MasqueradeIPTables{Masquerade{Owner: owner, From: []netip.Prefix{pfx("10.1.2.5/24"), pfx("fd00::5/64")}}}
}

func TestMasqueradeIPTablesLaw(t *testing.T) {
	eachVariant(t, func(t *testing.T, v kernel.IPTVariant) {
		for _, full := range []bool{false, true} {
			w := newWorld(t)
			settleOn(t, w, v)
			host(t, w, "iptables-%v -t nat -A POSTROUTING -s 10.9.9.9 -j RETURN", v)
			host(t, w, "ip6tables-%v -t nat -A POSTROUTING -s fd00::99 -j RETURN", v)
			m := iptMasq()
			if full {
				m.Except = []netip.Prefix{pfx("198.51.100.0/24"), pfx("2001:db8:1::/64")}
				m.Force = []netip.Prefix{pfx("198.51.100.7/32"), pfx("::/0")}
				m.SNATTo = []netip.Addr{addr("192.0.2.9"), addr("2001:db8::9")}
			}
			ipt := func(line string) func(*testing.T) {
				return func(t *testing.T) { host(t, w, "iptables-%v -t nat %s", v, line) }
			}
			chain := masqueradeChain(owner)
			lawBook{state: func(t testing.TB) string { return natState(t, w, v) + linkState(t, w) }}.hold(t, w, m,
				breakBy("jump", ipt("-D POSTROUTING 2"), "-s 10.1.2.5/32"),
				breakBy("chain", ipt("-F "+chain), "-d 10.1.2.0/24"),
				breakBy("chain6", func(t *testing.T) { host(t, w, "ip6tables-%v -t nat -F %s", v, chain) }, "! -d ff00::/8"),
			)
		}
	})
}

func TestMasqueradeIPTablesPaths(t *testing.T) {
	eachVariant(t, func(t *testing.T, v kernel.IPTVariant) {
		l := newLab(t)
		settleOn(t, l.w, v)
		for _, ns := range []*kernel.NS{l.neighbour, l.beyond, l.b} {
			l.serve(ns, l.name(ns), "tcp", ":80")
			l.serve(ns, l.name(ns), "udp", ":80")
		}
		m := iptMasq()
		m.Except = []netip.Prefix{pfx("198.51.100.0/24"), pfx("2001:db8:1::/64")}
		step := func(neighbour, neighbour6, beyond, beyond6 string) {
			t.Helper()
			l.ensure(m, l.w)
			verify(t, l.w, m)
			for _, network := range []string{"tcp", "udp"} {
				l.expect(l.a, network, "192.0.2.2:80", "neighbour "+neighbour)
				l.expect(l.a, network, "[2001:db8::2]:80", "neighbour "+neighbour6)
				l.expect(l.a, network, "198.51.100.2:80", "beyond "+beyond)
				l.expect(l.a, network, "[2001:db8:1::2]:80", "beyond "+beyond6)
				l.expect(l.a, network, "10.1.2.6:80", "b 10.1.2.5")
				l.expect(l.b, network, "192.0.2.2:80", "neighbour 10.1.2.6")
			}
			removeIt(t, l.w, m)
		}
		step("192.0.2.1", "2001:db8::1", "10.1.2.5", "fd00::5")
		m.Force = []netip.Prefix{pfx("198.51.100.2/32"), pfx("2001:db8:1::/65")}
		step("192.0.2.1", "2001:db8::1", "198.51.100.1", "2001:db8:1::1")
		m.SNATTo = []netip.Addr{addr("192.0.2.9"), addr("2001:db8::9")}
		step("192.0.2.9", "2001:db8::9", "192.0.2.9", "2001:db8::9")
	})
}

// The second interface of a container on a network shares the chain of the first one. Containers with one address, of
// networks that overlap, have rules of their own.
func TestMasqueradeIPTablesShared(t *testing.T) {
	eachVariant(t, func(t *testing.T, v kernel.IPTVariant) {
		w := newWorld(t)
		settleOn(t, w, v)
		before := natState(t, w, v)
		one, two := iptMasq(), iptMasq()
		two.Owner.IfName, two.From = "eth1", []netip.Prefix{pfx("10.7.2.5/24"), pfx("fd00:7::5/64")}
		ensure(t, w, one)
		ensure(t, w, two)
		verify(t, w, two)
		verify(t, w, one)
		removeIt(t, w, one)
		verify(t, w, two)
		if s := natState(t, w, v); strings.Contains(s, "-s 10.1.2.5") || strings.Contains(s, "-s fd00::5") {
			t.Errorf("left:\n%s", s)
		}
		next, first := two, two
		next.Owner.ContainerID, first.Owner.Network = "c9", "overlaps"
		ensure(t, w, next)
		ensure(t, w, first)
		removeIt(t, w, first)
		verify(t, w, two)
		ensure(t, w, first)
		removeIt(t, w, two)
		verify(t, w, next)
		verify(t, w, first)
		removeIt(t, w, first)
		verify(t, w, next)
		if s := natState(t, w, v); strings.Contains(s, masqueradeChain(owner)) {
			t.Errorf("left:\n%s", s)
		}
		removeIt(t, w, next)
		if after := natState(t, w, v); after != before {
			t.Errorf("left: %s", difference(before, after))
		}
	})
}
