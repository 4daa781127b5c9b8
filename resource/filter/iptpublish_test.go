package filter

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel/xtables"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

func iptPublish(ports ...PortMapping) PublishIPTables {
	return PublishIPTables{MarkBit: 13, Publish: Publish{Owner: contract.Owner, To4: contract.Prefix("10.1.2.5/24"),
		To6: contract.Prefix("fd00::5/64"), SNAT: true, Ports: ports}}
}

// The chains that are for all stay when an attachment goes, as the reference leaves them; so the state before the
// first Ensure has them.
func TestPublishIPTablesLaw(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		w := contract.NewWorld(t)
		contract.SettleOn(t, w, v)
		other := iptPublish(PortMapping{Protocol: "tcp", HostPort: 1, ContainerPort: 1})
		other.Owner.ContainerID, other.To4, other.To6 = "other", contract.Prefix("10.1.2.77/24"), contract.Prefix("fd00::77/64")
		contract.Ensure(t, w, other)
		p := iptPublish(PortMapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
			PortMapping{Protocol: "udp", HostPort: 53, ContainerPort: 5353},
			PortMapping{Protocol: "sctp", HostPort: 132, ContainerPort: 5132},
			PortMapping{Protocol: "sctp", HostPort: 2905, HostPortEnd: 2907, ContainerPort: 2905},
			PortMapping{Protocol: "tcp", HostIP: contract.Addr("192.0.2.1"), HostPort: 90, ContainerPort: 80},
			PortMapping{Protocol: "tcp", HostPort: 9000, HostPortEnd: 9010, ContainerPort: 9000},
			PortMapping{Protocol: "tcp", HostPort: 9100, HostPortEnd: 9102, ContainerPort: 100},
			PortMapping{Protocol: "tcp", HostPort: 9200, ContainerPort: 80,
				AllowFrom: []netip.Prefix{contract.Prefix("192.0.2.0/24"), contract.Prefix("2001:db8::/32")}})
		p.Conditions4 = []string{"-s", "0.0.0.0/1", "! -i lo9"}
		ipt := func(line string) func(*testing.T) {
			return func(t *testing.T) { contract.Host(t, w, "iptables-%v -t nat %s", v, line) }
		}
		ipt6 := func(line string) func(*testing.T) {
			return func(t *testing.T) { contract.Host(t, w, "ip6tables-%v -t nat %s", v, line) }
		}
		chain := DNATChain(contract.Owner)
		state := func(t testing.TB) string { return contract.IPTablesState(t, w, v) + contract.State(t, w) }
		contract.Terms{State: state}.Test(t, w, p,
			contract.Break("dnat", ipt("-D "+chain+" -p tcp --dport 8080 -j DNAT --to-destination 10.1.2.5:80"),
				"--dport 8080 -j DNAT"),
			contract.Break("dnat6", ipt6("-D "+chain+" -p udp --dport 53 -j DNAT --to-destination [fd00::5]:5353"),
				"--dport 53 -j DNAT"),
			contract.Break("dnat of sctp", ipt("-D "+chain+" -p sctp --dport 132 -j DNAT --to-destination 10.1.2.5:5132"),
				"--dport 132 -j DNAT"),
			contract.Break("mark", ipt("-F "+chain), "-j CNI-HOSTPORT-SETMARK"),
			contract.Break("entry", ipt("-D "+HostportDNAT+" 2"), "-m multiport --dports "),
			contract.Break("hook", ipt("-F PREROUTING"), "PREROUTING"),
			contract.Break("hook6", ipt6("-F OUTPUT"), "OUTPUT"),
			contract.Break("masquerade", ipt("-F POSTROUTING"), "POSTROUTING"),
			contract.Break("too much", ipt("-A "+chain+" -p tcp --dport 1234 -j DNAT --to-destination 10.9.9.9:1"),
				"nobody asked for"),
		)
	})
}

func TestPublishIPTablesPaths(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		for _, call := range []string{"0", "1"} {
			t.Run("bridge-nf-call-iptables="+call, func(t *testing.T) {
				l := newLab(t)
				contract.SettleOn(t, l.w, v)
				if _, err := procsys.Set(l.w.Host, procsys.Setting{Key: "net/bridge/bridge-nf-call-iptables", Value: call,
					Optional: true},
					procsys.Setting{Key: "net/bridge/bridge-nf-call-ip6tables", Value: call, Optional: true}); err != nil {
					t.Fatal(err)
				}
				p := iptPublish(PortMapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
					PortMapping{Protocol: "udp", HostPort: 8080, ContainerPort: 80},
					PortMapping{Protocol: "tcp", HostIP: contract.Addr("192.0.2.9"), HostPort: 90, ContainerPort: 80},
					PortMapping{Protocol: "tcp", HostIP: contract.Addr("2001:db8::9"), HostPort: 90, ContainerPort: 80},
					PortMapping{Protocol: "tcp", HostPort: 70, HostPortEnd: 90, ContainerPort: 70, HostIP: contract.Addr("192.0.2.1")},
					PortMapping{Protocol: "tcp", HostPort: 700, HostPortEnd: 702, ContainerPort: 79},
					PortMapping{Protocol: "tcp", HostPort: 800, ContainerPort: 80,
						AllowFrom: []netip.Prefix{contract.Prefix("192.0.2.3/32"), contract.Prefix("2001:db8::2/128")}})
				l.ensure(p, l.w)
				for _, network := range []string{"tcp", "udp"} {
					l.serve(l.a, "a", network, ":80")
					for range 2 {
						l.expect(l.neighbour, network, "192.0.2.1:8080", "a 192.0.2.2")
						l.expect(l.neighbour, network, "[2001:db8::1]:8080", "a 2001:db8::2")
						l.expect(l.w.Host, network, "192.0.2.1:8080", "a 192.0.2.1")
						l.expect(l.w.Host, network, "[2001:db8::1]:8080", "a 2001:db8::1")
						l.expect(l.w.Host, network, "127.0.0.1:8080", "a 10.1.2.1")
						l.expect(l.a, network, "192.0.2.1:8080", "a 10.1.2.1")
						l.expect(l.a, network, "[2001:db8::1]:8080", "a fd00::1")
						l.expect(l.b, network, "192.0.2.1:8080", "a 10.1.2.1")
						l.expect(l.b, network, "[fd00::1]:8080", "a fd00::1")
					}
				}
				l.expect(l.neighbour, "tcp", "192.0.2.9:90", "a 192.0.2.2")
				l.expect(l.neighbour, "tcp", "[2001:db8::9]:90", "a 2001:db8::2")
				l.expect(l.neighbour, "tcp", "[2001:db8::1]:90", "")
				l.expect(l.neighbour, "tcp", "192.0.2.1:80", "a 192.0.2.2")
				l.expect(l.neighbour, "tcp", "192.0.2.1:701", "a 192.0.2.2")
				l.expect(l.neighbour, "tcp", "192.0.2.1:800", "")
				l.expect(l.neighbour, "tcp", "[2001:db8::1]:800", "a 2001:db8::2")
				l.expect(l.w.Host, "tcp", "192.0.2.1:800", "a 192.0.2.1")
				contract.Verify(t, l.w, p)
				contract.Remove(t, l.w, p)
				l.expect(l.neighbour, "tcp", "192.0.2.1:8080", "")
				l.expect(l.w.Host, "tcp", "127.0.0.1:8080", "")
				l.expect(l.neighbour, "udp", "192.0.2.1:8080", "") // a flow that conntrack knew
			})
		}
	})
}

// CVE-2020-8558 holds for this backend as well.
func TestLoopbackStaysInsideWithIPTables(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		l := newLab(t)
		contract.SettleOn(t, l.w, v)
		p := iptPublish(PortMapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
		l.ensure(p, l.w)
		if got := contract.Sysctl(t, l.w.Host, "net/ipv4/conf/br0/route_localnet"); got != "1" {
			t.Fatalf("route_localnet is %s", got)
		}
		l.serve(l.w.Host, "host", "tcp", "127.0.0.1:9999")
		l.in(l.b, "sysctl -qw net.ipv4.conf.all.route_localnet=1", "ip addr flush dev lo", "ip rule add pref 0 lookup 99",
			"ip route add 127.0.0.0/8 via 10.1.2.1 table 99")
		l.expect(l.b, "tcp", "127.0.0.1:9999", "")
		runNFT(t, l.w, "flush chain inet fairlead guard") // that the test would notice
		l.expect(l.b, "tcp", "127.0.0.1:9999", "host 10.1.2.6")
		if err := p.Verify(t.Context(), l.w); err == nil || !strings.Contains(err.Error(), "127/8 from outside") {
			t.Errorf("verify says %v", err)
		}
		l.ensure(p, l.w)
		l.expect(l.b, "tcp", "127.0.0.1:9999", "")
	})
}

// A port that a living container has by either backend is refused to others; one that a dead one has is taken over.
func TestPublishIPTablesConflicts(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		l := newLab(t)
		contract.SettleOn(t, l.w, v)
		port := PortMapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}
		a := iptPublish(port)
		l.ensure(a, l.w)
		b := iptPublish(port)
		b.Owner, b.To4, b.To6 = l.ownerB, l.toB, l.b6
		before := contract.IPTablesState(t, l.w, v)
		refused := func(who string, err error) {
			t.Helper()
			if e := spec.AsError(err, 0); e == nil || e.Code != spec.CodeConfig || !strings.Contains(e.Msg, "8080") ||
				!strings.Contains(e.Msg, who) {
				t.Errorf("%v", err)
			}
		}
		_, err := b.Ensure(t.Context(), l.world(l.b))
		refused("net/c1", err)
		_, err = b.Publish.Ensure(t.Context(), l.world(l.b))
		refused("net/c1", err)
		if after := contract.IPTablesState(t, l.w, v); after != before {
			t.Errorf("a refused one has left %s", contract.Difference(before, after))
		}
		elsewhere := b
		elsewhere.Ports = []PortMapping{{Protocol: "tcp", HostPort: 8080, ContainerPort: 80,
			HostIP: contract.Addr("192.0.2.9")}}
		_, err = elsewhere.Ensure(t.Context(), l.world(l.b))
		refused("net/c1", err)
		elsewhere.Ports = []PortMapping{{Protocol: "udp", HostPort: 8080, ContainerPort: 80},
			{Protocol: "tcp", HostPort: 8081, ContainerPort: 80}}
		l.ensure(elsewhere, l.world(l.b))
		contract.Remove(t, l.w, elsewhere)

		contract.Remove(t, l.w, a)
		l.ensure(a.Publish, l.w)
		_, err = b.Ensure(t.Context(), l.world(l.b))
		refused("net/c1", err)
		contract.Remove(t, l.w, a.Publish)

		// The container dies, and nobody says so.
		l.ensure(a, l.w)
		l.in(l.w.Host, "ip link del va")
		l.ensure(b, l.world(l.b))
		l.serve(l.b, "b", "tcp", ":80")
		l.expect(l.neighbour, "tcp", "192.0.2.1:8080", "b 192.0.2.2")
		contract.Remove(t, l.w, a)
		l.expect(l.neighbour, "tcp", "192.0.2.1:8080", "b 192.0.2.2")
		contract.Verify(t, l.world(l.b), b)
	})
}

// Two interfaces of a container on one network have their rules in one chain: what goes with one leaves the other.
func TestPublishIPTablesTwice(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		for _, first := range []bool{true, false} {
			w := contract.NewWorld(t)
			contract.SettleOn(t, w, v)
			clean := iptPublish(PortMapping{Protocol: "tcp", HostPort: 1, ContainerPort: 1})
			clean.Owner.ContainerID = "shared"
			contract.Ensure(t, w, clean)
			contract.Remove(t, w, clean)
			before := contract.IPTablesState(t, w, v)
			one := iptPublish(PortMapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
				PortMapping{Protocol: "tcp", HostPort: 8081, ContainerPort: 80})
			two := iptPublish(PortMapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
				PortMapping{Protocol: "udp", HostPort: 53, ContainerPort: 53})
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
		contract.SettleOn(t, w, v)
		port := PortMapping{Protocol: "tcp", HostPort: 1, ContainerPort: 1}
		p := iptPublish(port) // leaves the chains that are for all
		contract.Ensure(t, w, p)
		contract.Remove(t, w, p)
		before := contract.IPTablesState(t, w, v)
		for _, c := range []struct {
			what string
			p    func(*PublishIPTables)
			say  string
		}{
			{"nft's words", func(p *PublishIPTables) { p.Conditions4 = []string{"ip saddr 10.0.0.1"} }, "conditionsV4"},
			{"a target", func(p *PublishIPTables) { p.Conditions6 = []string{"-s", "fd00::1", "-j", "ACCEPT"} }, `"-j"`},
			{"no option", func(p *PublishIPTables) { p.Conditions4 = []string{"--no-such-thing", "x"} }, `conditionsV4: "--no-such-thing x"`},
			{"another family", func(p *PublishIPTables) { p.Conditions6 = []string{"-s", "10.0.0.1"} }, "10.0.0.1"},
			{"no chain", func(p *PublishIPTables) { p.SetMarkChain = "KUBE-MARK-MASQ" }, `externalSetMarkChain: "KUBE-MARK-MASQ"`},
			{"two lines", func(p *PublishIPTables) { p.Conditions4 = []string{"-m comment --comment \"x\n-A INPUT"} },
				"conditionsV4"},
		} {
			p := iptPublish(port)
			c.p(&p)
			if changed, err := p.Ensure(t.Context(), w); err == nil || changed || !strings.Contains(err.Error(), c.say) {
				t.Errorf("%s: changed %v, %v", c.what, changed, err)
			} else {
				t.Log(err)
			}
			if after := contract.IPTablesState(t, w, v); after != before {
				t.Errorf("%s has left %s", c.what, contract.Difference(before, after))
			}
		}
		w = contract.NewWorld(t)
		contract.SettleOn(t, w, v)
		contract.Host(t, w, "iptables-%v -t nat -N KUBE-MARK-MASQ", v)
		p = iptPublish(port)
		p.SetMarkChain, p.To6 = "KUBE-MARK-MASQ", netip.Prefix{}
		contract.Ensure(t, w, p)
		contract.Verify(t, w, p)
		if s := contract.IPTablesState(t, w, v); !strings.Contains(s, "-j KUBE-MARK-MASQ") ||
			strings.Contains(s, hostportSetMark) {
			t.Errorf("%s", s)
		}
		contract.Remove(t, w, p)
	})
}

// What the reference published for a container that died, by the results cache, is nobody's; nor is what somebody
// published for an address that IPAM has given away again. Either backend removes it.
func TestPublishTakesOverFromTheDead(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		l := newLab(t)
		contract.SettleOn(t, l.w, v)
		l.serve(l.b, "b", "tcp", ":80")
		port := PortMapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}
		stale := iptPublish(port)
		b := iptPublish(port)
		b.Owner, b.To4, b.To6 = l.ownerB, l.toB, l.b6
		cached := "/var/lib/cni/results/net-c1-eth0"
		if err := os.MkdirAll(filepath.Dir(cached), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(cached) })
		chosen := fmt.Sprintf(`"web0","mac":"%v"`, identity.MAC("host", spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}))
		for name, r := range map[string]plan.Remover{`"veth0"`: b, chosen: b.Publish} {
			os.Remove(cached)
			link, _, _ := strings.Cut(strings.Trim(name, `"`), `"`)
			l.ensure(stale, l.w)
			if err := l.w.Store.Delete(IPTPublishedRecord, stale.Owner); err != nil { // the reference remembers nothing
				t.Fatal(err)
			}
			if _, err := r.Ensure(t.Context(), l.world(l.b)); err == nil || !strings.Contains(err.Error(), "net/c1") {
				t.Errorf("%v, of whom the cache knows nothing: %v", r, err)
			}
			contract.Host(t, l.w, "ip link add %s type veth peer name veth1", link)
			if err := os.WriteFile(cached, []byte(`{"containerId":"c1","networkName":"net","ifName":"eth0","result":{"interfaces":[{"name":"br0"},{"name":`+name+`},{"name":"eth0","sandbox":"/x"}]}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Ensure(t.Context(), l.world(l.b)); err == nil || !strings.Contains(err.Error(), "net/c1") {
				t.Errorf("%v, of a living container: %v", r, err)
			}
			contract.Host(t, l.w, "ip link del %s", link)
			l.ensure(r, l.world(l.b))
			l.expect(l.neighbour, "tcp", "192.0.2.1:8080", "b 192.0.2.2")
			if s := contract.IPTablesState(t, l.w, v); strings.Contains(s, DNATChain(stale.Owner)) {
				t.Errorf("left:\n%s", s)
			}
			contract.Remove(t, l.w, r)
		}
	})
}

// A host without the program says which package has it and which key asked.
func TestIPTablesIsMissing(t *testing.T) {
	w := contract.NewWorld(t)
	need := IPTables{Backend: "ipMasqBackend", Table: "nat"}
	contract.Verify(t, w, need)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
	}
	t.Setenv("PATH", "/nowhere")
	if _, err := need.Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), "package iptables") || !strings.Contains(err.Error(), `ipMasqBackend: "iptables"`) {
		t.Errorf("%v", err)
	}
}
