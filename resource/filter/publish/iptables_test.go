package publish_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/spec"
)

// The chains that are for all stay when an attachment goes, as the reference leaves them; so the state before the
// first Ensure has them.
func TestPublishIPTablesLaw(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		w := contract.NewWorld(t)
		contract.ChooseVariant(t, w, v)
		other := filtertest.PortsByIPTables(publish.Mapping{Protocol: "tcp", HostPort: 1, ContainerPort: 1})
		other.Owner.ContainerID, other.To4, other.To6 = "other", contract.Prefix("10.1.2.77/24"), contract.Prefix("fd00::77/64")
		contract.Ensure(t, w, other)
		p := filtertest.PortsByIPTables(publish.Mapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
			publish.Mapping{Protocol: "udp", HostPort: 53, ContainerPort: 5353},
			publish.Mapping{Protocol: "sctp", HostPort: 132, ContainerPort: 5132},
			publish.Mapping{Protocol: "sctp", HostPort: 2905, HostPortEnd: 2907, ContainerPort: 2905},
			publish.Mapping{Protocol: "tcp", HostIP: contract.Addr("192.0.2.1"), HostPort: 90, ContainerPort: 80},
			publish.Mapping{Protocol: "tcp", HostPort: 9000, HostPortEnd: 9010, ContainerPort: 9000},
			publish.Mapping{Protocol: "tcp", HostPort: 9100, HostPortEnd: 9102, ContainerPort: 100},
			publish.Mapping{Protocol: "tcp", HostPort: 9200, ContainerPort: 80,
				AllowFrom: []netip.Prefix{contract.Prefix("192.0.2.0/24"), contract.Prefix("2001:db8::/32")}})
		p.Conditions4 = []string{"-s", "0.0.0.0/1", "! -i lo9"}
		ipt := func(line string) func(*testing.T) {
			return func(t *testing.T) { contract.Host(t, w, "iptables-%v -t nat %s", v, line) }
		}
		ipt6 := func(line string) func(*testing.T) {
			return func(t *testing.T) { contract.Host(t, w, "ip6tables-%v -t nat %s", v, line) }
		}
		chain := publish.ContainerChain(contract.Owner)
		state := func(t testing.TB) string { return contract.IPTablesState(t, w, v) + contract.State(t, w) }
		contract.Terms{State: state}.Test(t, w, p,
			contract.Break("dnat", ipt("-D "+chain+" -p tcp --dport 8080 -j DNAT --to-destination 10.1.2.5:80"),
				"--dport 8080 -j DNAT"),
			contract.Break("dnat6", ipt6("-D "+chain+" -p udp --dport 53 -j DNAT --to-destination [fd00::5]:5353"),
				"--dport 53 -j DNAT"),
			contract.Break("dnat of sctp", ipt("-D "+chain+
				" -p sctp --dport 132 -j DNAT --to-destination 10.1.2.5:5132"),
				"--dport 132 -j DNAT"),
			contract.Break("mark", ipt("-F "+chain), "-j CNI-HOSTPORT-SETMARK"),
			contract.Break("entry", ipt("-D "+publish.ChainDNAT+" 2"), "-m multiport --dports "),
			contract.Break("hook", ipt("-F PREROUTING"), "PREROUTING"),
			contract.Break("hook6", ipt6("-F OUTPUT"), "OUTPUT"),
			contract.Break("masquerade", ipt("-F POSTROUTING"), "POSTROUTING"),
			contract.Break("too much", ipt("-A "+chain+" -p tcp --dport 1234 -j DNAT --to-destination 10.9.9.9:1"),
				"no port mapping asks for"),
		)
	})
}

func TestPublishIPTablesPaths(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		for _, call := range []string{"0", "1"} {
			t.Run("bridge-nf-call-iptables="+call, func(t *testing.T) {
				l := filtertest.NewLab(t)
				contract.ChooseVariant(t, l.W, v)
				if _, err := procsys.Set(l.W.Host, procsys.Setting{Key: "net/bridge/bridge-nf-call-iptables",
					Value:    call,
					Optional: true},
					procsys.Setting{Key: "net/bridge/bridge-nf-call-ip6tables", Value: call,
						Optional: true}); err != nil {
					t.Fatal(err)
				}
				p := filtertest.PortsByIPTables(publish.Mapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
					publish.Mapping{Protocol: "udp", HostPort: 8080, ContainerPort: 80},
					publish.Mapping{Protocol: "tcp", HostIP: contract.Addr("192.0.2.9"), HostPort: 90,
						ContainerPort: 80},
					publish.Mapping{Protocol: "tcp", HostIP: contract.Addr("2001:db8::9"), HostPort: 90,
						ContainerPort: 80},
					publish.Mapping{Protocol: "tcp", HostPort: 70, HostPortEnd: 90, ContainerPort: 70,
						HostIP: contract.Addr("192.0.2.1")},
					publish.Mapping{Protocol: "tcp", HostPort: 700, HostPortEnd: 702, ContainerPort: 79},
					publish.Mapping{Protocol: "tcp", HostPort: 800, ContainerPort: 80,
						AllowFrom: []netip.Prefix{contract.Prefix("192.0.2.3/32"), contract.Prefix("2001:db8::2/128")}})
				l.Ensure(p, l.W)
				for _, network := range []string{"tcp", "udp"} {
					l.Serve(l.A, "a", network, ":80")
					for range 2 {
						l.Expect(l.Neighbour, network, "192.0.2.1:8080", "a 192.0.2.2")
						l.Expect(l.Neighbour, network, "[2001:db8::1]:8080", "a 2001:db8::2")
						l.Expect(l.W.Host, network, "192.0.2.1:8080", "a 192.0.2.1")
						l.Expect(l.W.Host, network, "[2001:db8::1]:8080", "a 2001:db8::1")
						l.Expect(l.W.Host, network, "127.0.0.1:8080", "a 10.1.2.1")
						l.Expect(l.A, network, "192.0.2.1:8080", "a 10.1.2.1")
						l.Expect(l.A, network, "[2001:db8::1]:8080", "a fd00::1")
						l.Expect(l.B, network, "192.0.2.1:8080", "a 10.1.2.1")
						l.Expect(l.B, network, "[fd00::1]:8080", "a fd00::1")
					}
				}
				l.Expect(l.Neighbour, "tcp", "192.0.2.9:90", "a 192.0.2.2")
				l.Expect(l.Neighbour, "tcp", "[2001:db8::9]:90", "a 2001:db8::2")
				l.Expect(l.Neighbour, "tcp", "[2001:db8::1]:90", "")
				l.Expect(l.Neighbour, "tcp", "192.0.2.1:80", "a 192.0.2.2")
				l.Expect(l.Neighbour, "tcp", "192.0.2.1:701", "a 192.0.2.2")
				l.Expect(l.Neighbour, "tcp", "192.0.2.1:800", "")
				l.Expect(l.Neighbour, "tcp", "[2001:db8::1]:800", "a 2001:db8::2")
				l.Expect(l.W.Host, "tcp", "192.0.2.1:800", "a 192.0.2.1")
				contract.Verify(t, l.W, p)
				contract.Remove(t, l.W, p)
				l.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", "")
				l.Expect(l.W.Host, "tcp", "127.0.0.1:8080", "")
				l.Expect(l.Neighbour, "udp", "192.0.2.1:8080", "") // a flow that conntrack knew
			})
		}
	})
}

// CVE-2020-8558 holds for this backend as well.
func TestLoopbackStaysInsideWithIPTables(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		l := filtertest.NewLab(t)
		contract.ChooseVariant(t, l.W, v)
		p := filtertest.PortsByIPTables(publish.Mapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
		l.Ensure(p, l.W)
		if got := contract.Sysctl(t, l.W.Host, "net/ipv4/conf/br0/route_localnet"); got != "1" {
			t.Fatalf("route_localnet is %s", got)
		}
		l.Serve(l.W.Host, "host", "tcp", "127.0.0.1:9999")
		l.In(l.B, "sysctl -qw net.ipv4.conf.all.route_localnet=1", "ip addr flush dev lo",
			"ip rule add pref 0 lookup 99",
			"ip route add 127.0.0.0/8 via 10.1.2.1 table 99")
		l.Expect(l.B, "tcp", "127.0.0.1:9999", "")
		filtertest.NFT(t, l.W, "flush chain inet fairlead guard") // that the test would notice
		l.Expect(l.B, "tcp", "127.0.0.1:9999", "host 10.1.2.6")
		if err := p.Verify(t.Context(), l.W); err == nil || !strings.Contains(err.Error(), "127/8 from outside") {
			t.Errorf("verify says %v", err)
		}
		l.Ensure(p, l.W)
		l.Expect(l.B, "tcp", "127.0.0.1:9999", "")
	})
}

// A port that a living container has by either backend is refused to others; one that a dead one has is taken over.
func TestPublishIPTablesConflicts(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		l := filtertest.NewLab(t)
		contract.ChooseVariant(t, l.W, v)
		port := publish.Mapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}
		a := filtertest.PortsByIPTables(port)
		l.Ensure(a, l.W)
		b := filtertest.PortsByIPTables(port)
		b.Owner, b.To4, b.To6 = l.OwnerB, l.ToB, l.ToB6
		before := contract.IPTablesState(t, l.W, v)
		refused := func(who string, err error) {
			t.Helper()
			if e := spec.AsError(err, 0); e == nil || e.Code != spec.CodeConfig || !strings.Contains(e.Msg, "8080") ||
				!strings.Contains(e.Msg, who) {
				t.Errorf("%v", err)
			}
		}
		_, err := b.Ensure(t.Context(), l.WorldOf(l.B))
		refused("net/c1", err)
		_, err = b.Ports.Ensure(t.Context(), l.WorldOf(l.B))
		refused("net/c1", err)
		if after := contract.IPTablesState(t, l.W, v); after != before {
			t.Errorf("a refused one has left %s", contract.Difference(before, after))
		}
		elsewhere := b
		elsewhere.Mappings = []publish.Mapping{{Protocol: "tcp", HostPort: 8080, ContainerPort: 80,
			HostIP: contract.Addr("192.0.2.9")}}
		_, err = elsewhere.Ensure(t.Context(), l.WorldOf(l.B))
		refused("net/c1", err)
		elsewhere.Mappings = []publish.Mapping{{Protocol: "udp", HostPort: 8080, ContainerPort: 80},
			{Protocol: "tcp", HostPort: 8081, ContainerPort: 80}}
		l.Ensure(elsewhere, l.WorldOf(l.B))
		contract.Remove(t, l.W, elsewhere)

		contract.Remove(t, l.W, a)
		l.Ensure(a.Ports, l.W)
		_, err = b.Ensure(t.Context(), l.WorldOf(l.B))
		refused("net/c1", err)
		contract.Remove(t, l.W, a.Ports)

		// The container dies, and nobody says so.
		l.Ensure(a, l.W)
		l.In(l.W.Host, "ip link del va")
		l.Ensure(b, l.WorldOf(l.B))
		l.Serve(l.B, "b", "tcp", ":80")
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", "b 192.0.2.2")
		contract.Remove(t, l.W, a)
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", "b 192.0.2.2")
		contract.Verify(t, l.WorldOf(l.B), b)
	})
}

// Two interfaces of a container on one network have their rules in one chain: what goes with one leaves the other.
func TestPublishIPTablesTwice(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		for _, first := range []bool{true, false} {
			w := contract.NewWorld(t)
			contract.ChooseVariant(t, w, v)
			clean := filtertest.PortsByIPTables(publish.Mapping{Protocol: "tcp", HostPort: 1, ContainerPort: 1})
			clean.Owner.ContainerID = "shared"
			contract.Ensure(t, w, clean)
			contract.Remove(t, w, clean)
			before := contract.IPTablesState(t, w, v)
			one := filtertest.PortsByIPTables(publish.Mapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
				publish.Mapping{Protocol: "tcp", HostPort: 8081, ContainerPort: 80})
			two := filtertest.PortsByIPTables(publish.Mapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
				publish.Mapping{Protocol: "udp", HostPort: 53, ContainerPort: 53})
			two.Owner.IfName, two.To4, two.To6 = "eth1", contract.Prefix("10.1.2.9/24"), contract.Prefix("fd00::9/64")
			contract.Ensure(t, w, one)
			contract.Ensure(t, w, two)
			contract.Verify(t, w, one)
			contract.Verify(t, w, two)
			if !first {
				one, two = two, one
			}
			contract.Remove(t, w, one)
			contract.Verify(t, w, two)
			if s := contract.IPTablesState(t, w, v); strings.Contains(s, one.To4.Addr().String()) ||
				strings.Contains(s, one.To6.Addr().String()) {
				t.Errorf("left:\n%s", s)
			}
			contract.Remove(t, w, two)
			if after := contract.IPTablesState(t, w, v); after != before {
				t.Errorf("left: %s", contract.Difference(before, after))
			}
		}
	})
}

func TestPublishIPTablesBadInput(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		w := contract.NewWorld(t)
		contract.ChooseVariant(t, w, v)
		port := publish.Mapping{Protocol: "tcp", HostPort: 1, ContainerPort: 1}
		p := filtertest.PortsByIPTables(port) // leaves the chains that are for all
		contract.Ensure(t, w, p)
		contract.Remove(t, w, p)
		before := contract.IPTablesState(t, w, v)
		for _, c := range []struct {
			what string
			p    func(*publish.PortsIPTables)
			say  string
		}{
			{"nft's words", func(p *publish.PortsIPTables) { p.Conditions4 = []string{"ip saddr 10.0.0.1"} },
				"conditionsV4"},
			{"a target", func(p *publish.PortsIPTables) { p.Conditions6 = []string{"-s", "fd00::1", "-j", "ACCEPT"} }, `"-j"`},
			{"no option", func(p *publish.PortsIPTables) { p.Conditions4 = []string{"--no-such-thing", "x"} }, `conditionsV4: "--no-such-thing x"`},
			{"another family", func(p *publish.PortsIPTables) { p.Conditions6 = []string{"-s", "10.0.0.1"} },
				"10.0.0.1"},
			{"no chain", func(p *publish.PortsIPTables) { p.SetMarkChain = "KUBE-MARK-MASQ" }, `externalSetMarkChain: "KUBE-MARK-MASQ"`},
			{"two lines", func(p *publish.PortsIPTables) { p.Conditions4 = []string{"-m comment --comment \"x\n-A INPUT"} },
				"conditionsV4"},
		} {
			p := filtertest.PortsByIPTables(port)
			c.p(&p)
			if changed, err := p.Ensure(t.Context(), w); err == nil || changed ||
				!strings.Contains(err.Error(), c.say) {
				t.Errorf("%s: changed %v, %v", c.what, changed, err)
			} else {
				t.Log(err)
			}
			if after := contract.IPTablesState(t, w, v); after != before {
				t.Errorf("%s has left %s", c.what, contract.Difference(before, after))
			}
		}
		w = contract.NewWorld(t)
		contract.ChooseVariant(t, w, v)
		contract.Host(t, w, "iptables-%v -t nat -N KUBE-MARK-MASQ", v)
		p = filtertest.PortsByIPTables(port)
		p.SetMarkChain, p.To6 = "KUBE-MARK-MASQ", netip.Prefix{}
		contract.Ensure(t, w, p)
		contract.Verify(t, w, p)
		if s := contract.IPTablesState(t, w, v); !strings.Contains(s, "-j KUBE-MARK-MASQ") ||
			strings.Contains(s, "CNI-HOSTPORT-SETMARK") {
			t.Errorf("%s", s)
		}
		contract.Remove(t, w, p)
	})
}

// What the reference published for a container that died, by the results cache, is nobody's; nor is what somebody
// published for an address that IPAM has given away again. Either backend removes it.
func TestPublishTakesOverFromTheDead(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		l := filtertest.NewLab(t)
		contract.ChooseVariant(t, l.W, v)
		l.Serve(l.B, "b", "tcp", ":80")
		port := publish.Mapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}
		stale := filtertest.PortsByIPTables(port)
		b := filtertest.PortsByIPTables(port)
		b.Owner, b.To4, b.To6 = l.OwnerB, l.ToB, l.ToB6
		cached := "/var/lib/cni/results/net-c1-eth0"
		if err := os.MkdirAll(filepath.Dir(cached), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(cached) })
		chosen := fmt.Sprintf(`"web0","mac":"%v"`, identity.MAC("host", spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}))
		for name, r := range map[string]plan.Remover{`"veth0"`: b, chosen: b.Ports} {
			os.Remove(cached)
			link, _, _ := strings.Cut(strings.Trim(name, `"`), `"`)
			l.Ensure(stale, l.W)
			// the reference remembers nothing
			if err := l.W.Store.Delete(publish.IPTablesRecord, stale.Owner); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Ensure(t.Context(), l.WorldOf(l.B)); err == nil || !strings.Contains(err.Error(), "net/c1") {
				t.Errorf("%v, of whom the cache knows nothing: %v", r, err)
			}
			contract.Host(t, l.W, "ip link add %s type veth peer name veth1", link)
			if err := os.WriteFile(cached, []byte(`{"containerId":"c1","networkName":"net","ifName":"eth0","result":{"interfaces":[{"name":"br0"},{"name":`+name+`},{"name":"eth0","sandbox":"/x"}]}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Ensure(t.Context(), l.WorldOf(l.B)); err == nil || !strings.Contains(err.Error(), "net/c1") {
				t.Errorf("%v, of a living container: %v", r, err)
			}
			contract.Host(t, l.W, "ip link del %s", link)
			l.Ensure(r, l.WorldOf(l.B))
			l.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", "b 192.0.2.2")
			if s := contract.IPTablesState(t, l.W, v); strings.Contains(s, publish.ContainerChain(stale.Owner)) {
				t.Errorf("left:\n%s", s)
			}
			contract.Remove(t, l.W, r)
		}
	})
}
