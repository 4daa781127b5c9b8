package masquerade_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
)

func TestMasqueradeIPTablesLaw(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		for _, full := range []bool{false, true} {
			w := contract.NewWorld(t)
			contract.ChooseVariant(t, w, v)
			contract.Host(t, w, "iptables-%v -t nat -A POSTROUTING -s 10.9.9.9 -j RETURN", v)
			contract.Host(t, w, "ip6tables-%v -t nat -A POSTROUTING -s fd00::99 -j RETURN", v)
			m := filtertest.SourcesByIPTables()
			if full {
				m.Except = []netip.Prefix{contract.Prefix("198.51.100.0/24"), contract.Prefix("2001:db8:1::/64")}
				m.Force = []netip.Prefix{contract.Prefix("198.51.100.7/32"), contract.Prefix("::/0")}
				m.SNATTo = []netip.Addr{contract.Addr("192.0.2.9"), contract.Addr("2001:db8::9")}
			}
			ipt := func(line string) func(*testing.T) {
				return func(t *testing.T) { contract.Host(t, w, "iptables-%v -t nat %s", v, line) }
			}
			chain := masquerade.ContainerChain(contract.Owner)
			contract.Terms{State: func(t testing.TB) string {
				return contract.IPTablesState(t, w, v) +
					contract.State(t, w)
			}}.Test(t, w, m,
				contract.Break("jump", ipt("-D POSTROUTING 2"), "-s 10.1.2.5/32"),
				contract.Break("chain", ipt("-F "+chain), "-d 10.1.2.0/24"),
				contract.Break("chain6", func(t *testing.T) {
					contract.Host(t, w, "ip6tables-%v -t nat -F %s", v,
						chain)
				},
					"! -d ff00::/8"),
			)
		}
	})
}

func TestMasqueradeIPTablesPaths(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		l := filtertest.NewLab(t)
		contract.ChooseVariant(t, l.W, v)
		for _, ns := range []*kernel.NS{l.Neighbour, l.Remote, l.B} {
			l.Serve(ns, l.NameOf(ns), "tcp", ":80")
			l.Serve(ns, l.NameOf(ns), "udp", ":80")
		}
		m := filtertest.SourcesByIPTables()
		m.Except = []netip.Prefix{contract.Prefix("198.51.100.0/24"), contract.Prefix("2001:db8:1::/64")}
		step := func(neighbour, neighbour6, beyond, beyond6 string) {
			t.Helper()
			l.Ensure(m, l.W)
			contract.Verify(t, l.W, m)
			for _, network := range []string{"tcp", "udp"} {
				l.Expect(l.A, network, "192.0.2.2:80", "neighbour "+neighbour)
				l.Expect(l.A, network, "[2001:db8::2]:80", "neighbour "+neighbour6)
				l.Expect(l.A, network, "198.51.100.2:80", "beyond "+beyond)
				l.Expect(l.A, network, "[2001:db8:1::2]:80", "beyond "+beyond6)
				l.Expect(l.A, network, "10.1.2.6:80", "b 10.1.2.5")
				l.Expect(l.B, network, "192.0.2.2:80", "neighbour 10.1.2.6")
			}
			contract.Remove(t, l.W, m)
		}
		step("192.0.2.1", "2001:db8::1", "10.1.2.5", "fd00::5")
		m.Force = []netip.Prefix{contract.Prefix("198.51.100.2/32"), contract.Prefix("2001:db8:1::/65")}
		step("192.0.2.1", "2001:db8::1", "198.51.100.1", "2001:db8:1::1")
		m.SNATTo = []netip.Addr{contract.Addr("192.0.2.9"), contract.Addr("2001:db8::9")}
		step("192.0.2.9", "2001:db8::9", "192.0.2.9", "2001:db8::9")
	})
}

// The second interface of a container on a network shares the chain of the first one. Containers with one address, of
// networks that overlap, have rules of their own.
func TestMasqueradeIPTablesShared(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		w := contract.NewWorld(t)
		contract.ChooseVariant(t, w, v)
		before := contract.IPTablesState(t, w, v)
		one, two := filtertest.SourcesByIPTables(), filtertest.SourcesByIPTables()
		two.Owner.IfName, two.From = "eth1", []netip.Prefix{contract.Prefix("10.7.2.5/24"),
			contract.Prefix("fd00:7::5/64")}
		contract.Ensure(t, w, one)
		contract.Ensure(t, w, two)
		contract.Verify(t, w, two)
		contract.Verify(t, w, one)
		contract.Remove(t, w, one)
		contract.Verify(t, w, two)
		if s := contract.IPTablesState(t, w, v); strings.Contains(s, "-s 10.1.2.5") ||
			strings.Contains(s, "-s fd00::5") {
			t.Errorf("left:\n%s", s)
		}
		next, first := two, two
		next.Owner.ContainerID, first.Owner.Network = "c9", "overlaps"
		contract.Ensure(t, w, next)
		contract.Ensure(t, w, first)
		contract.Remove(t, w, first)
		contract.Verify(t, w, two)
		contract.Ensure(t, w, first)
		contract.Remove(t, w, two)
		contract.Verify(t, w, next)
		contract.Verify(t, w, first)
		contract.Remove(t, w, first)
		contract.Verify(t, w, next)
		if s := contract.IPTablesState(t, w, v); strings.Contains(s, masquerade.ContainerChain(contract.Owner)) {
			t.Errorf("left:\n%s", s)
		}
		contract.Remove(t, w, next)
		if after := contract.IPTablesState(t, w, v); after != before {
			t.Errorf("left: %s", contract.Difference(before, after))
		}
	})
}

// A subnet that comes with a later container is kept from masquerading in the chains of those before it, until its last
// container goes. An exception of the configuration stays.
func TestMasqueradeIPTablesSubnets(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		w := contract.NewWorld(t)
		contract.ChooseVariant(t, w, v)
		of := func(id string, subnet int) masquerade.SourcesIPTables {
			m := filtertest.SourcesByIPTables()
			m.Owner.ContainerID = id
			m.From = []netip.Prefix{contract.Prefix(fmt.Sprintf("10.%d.2.5/24", subnet)),
				contract.Prefix(fmt.Sprintf("fd00:%d::5/64", subnet))}
			return m
		}
		one, seven, five, other := of("c1", 1), of("c7", 7), of("c5", 5), of("c8", 7)
		one.Except = []netip.Prefix{contract.Prefix("10.5.2.0/24"), contract.Prefix("192.0.2.0/24")}
		one.Force = []netip.Prefix{contract.Prefix("198.51.100.0/24")}
		contract.Ensure(t, w, one)
		alone := contract.IPTablesState(t, w, v)
		for _, m := range []masquerade.SourcesIPTables{seven, five, other} {
			contract.Ensure(t, w, m)
		}
		for _, m := range []masquerade.SourcesIPTables{one, seven, five, other} {
			contract.Verify(t, w, m)
			if changed, err := m.Ensure(t.Context(), w); changed || err != nil {
				t.Errorf("%v again: changed %v, %v", m, changed, err)
			}
		}

		contract.Remove(t, w, seven)
		contract.Verify(t, w, one)
		if s := contract.IPTablesState(t, w, v); !strings.Contains(s, "-d 10.7.2.0/24 -m comment --comment \"subnet of ") {
			t.Errorf("another container has the subnet, which is gone:\n%s", s)
		}
		contract.Host(t, w, "iptables-%v -t nat -D %s 6", v, masquerade.ContainerChain(one.Owner))
		if err := one.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "-d 10.7.2.0/24") {
			t.Errorf("the rule was deleted: %v", err)
		}
		contract.Ensure(t, w, one)
		contract.Remove(t, w, other)
		contract.Remove(t, w, five)
		if after := contract.IPTablesState(t, w, v); after != alone {
			t.Errorf("left: %s", contract.Difference(alone, after))
		}
	})
}
