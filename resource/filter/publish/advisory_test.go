package publish_test

import (
	"fmt"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
)

// A publisher is a backend that publishes ports of a, and what an attack needs to know of it.
type publisher struct {
	name string
	lab  func(t *testing.T) *filtertest.Lab
	of   func(l *filtertest.Lab, ports ...publish.Mapping) plan.Remover
	run  func(l *filtertest.Lab, v6 bool, line string) // nft(8), or iptables(8) for the table nat of a family
	nft  bool
}

// eachPublisher runs fn for each backend, on a host of its own.
func eachPublisher(t *testing.T, fn func(t *testing.T, b publisher)) {
	list := []publisher{{"nftables", filtertest.NewLab,
		func(l *filtertest.Lab, ports ...publish.Mapping) plan.Remover {
			return filtertest.PortsOfA(l, ports...)
		},
		func(l *filtertest.Lab, _ bool, line string) { filtertest.NFT(l, l.W, line) }, true}}
	for _, v := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		list = append(list, publisher{"iptables-" + fmt.Sprint(v),
			func(t *testing.T) *filtertest.Lab {
				l := filtertest.NewLab(t)
				contract.ChooseVariant(t, l.W, v)
				return l
			},
			func(l *filtertest.Lab, ports ...publish.Mapping) plan.Remover {
				p := filtertest.PortsByIPTables(ports...)
				p.Ports = filtertest.PortsOfA(l, ports...)
				return p
			},
			func(l *filtertest.Lab, v6 bool, line string) {
				program := "iptables"
				if v6 {
					program = "ip6tables"
				}
				l.In(l.W.Host, fmt.Sprintf("%s-%v -t nat %s", program, v, line))
			}, false})
	}
	for _, b := range list {
		t.Run(b.name, func(t *testing.T) { fn(t, b) })
	}
}

// both runs a line for each family.
func (b publisher) both(l *filtertest.Lab, line string) {
	b.run(l, false, line)
	b.run(l, true, line)
}

// CVE-2025-67499: a published port caught everything that went to a port of that number, also what only passed through
// to other hosts and other containers.
func TestAdvisoryCVE202567499(t *testing.T) {
	eachPublisher(t, func(t *testing.T, b publisher) {
		l := b.lab(t)
		for _, network := range []string{"tcp", "udp"} {
			l.Serve(l.A, "a", network, ":53")
			l.Serve(l.B, "b", network, ":53")
			l.Serve(l.Remote, "beyond", network, ":53")
		}
		p := b.of(l, publish.Mapping{Protocol: "tcp", HostPort: 53, ContainerPort: 53},
			publish.Mapping{Protocol: "udp", HostPort: 53, ContainerPort: 53})
		l.Ensure(p, l.W)
		through := func(b, beyond string) {
			t.Helper()
			for _, network := range []string{"tcp", "udp"} {
				l.Expect(l.Neighbour, network, "192.0.2.1:53", "a 192.0.2.2")
				l.Expect(l.Neighbour, network, "[2001:db8::1]:53", "a 2001:db8::2")
				l.Expect(l.Neighbour, network, "10.1.2.6:53", b+" 192.0.2.2")
				l.Expect(l.Neighbour, network, "[fd00::6]:53", b+" 2001:db8::2")
				l.Expect(l.Neighbour, network, "198.51.100.2:53", beyond+" 192.0.2.2")
				l.Expect(l.Neighbour, network, "[2001:db8:1::2]:53", beyond+" 2001:db8::2")
			}
		}
		// Without the question for a local destination all of it ends up in a.
		if b.nft {
			b.run(l, false, "flush chain inet fairlead prerouting; add rule inet fairlead prerouting jump publish")
		} else {
			b.both(l, "-F PREROUTING")
			b.both(l, "-A PREROUTING -j "+publish.ChainDNAT)
		}
		through("a", "a")
		if !b.nft {
			b.both(l, "-F PREROUTING")
		}
		l.Ensure(p, l.W)
		l.In(l.W.Host, "conntrack -F")
		through("b", "beyond")
		l.Expect(l.W.Host, "tcp", "198.51.100.2:53", "beyond 198.51.100.1")
		contract.Remove(t, l.W, p)
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:53", "")
	})
}

// CVE-2019-9946: published ports were put in front of what others translate, Services of Kubernetes say, and took
// their traffic.
func TestAdvisoryCVE20199946(t *testing.T) {
	eachPublisher(t, func(t *testing.T, b publisher) {
		l := b.lab(t)
		l.Serve(l.A, "a", "tcp", ":80")
		l.Serve(l.B, "b", "tcp", ":80")
		service := func() { // of somebody else, who leads the port to b
			if b.nft {
				b.run(l, false, `add table ip services; add chain ip services pre { type nat hook prerouting priority dstnat; };
					add rule ip services pre ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.1.2.6:80`)
				b.run(l, true, `add table ip6 services; add chain ip6 services pre { type nat hook prerouting priority dstnat; };
					add rule ip6 services pre ip6 daddr 2001:db8::1 tcp dport 8080 dnat to [fd00::6]:80`)
				return
			}
			b.run(l, false, "-A PREROUTING -d 192.0.2.1 -p tcp --dport 8080 -j DNAT --to-destination 10.1.2.6:80")
			b.run(l, true, "-A PREROUTING -d 2001:db8::1 -p tcp --dport 8080 -j DNAT --to-destination [fd00::6]:80")
		}
		asked := func(who string) {
			t.Helper()
			l.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", who+" 192.0.2.2")
			l.Expect(l.Neighbour, "tcp", "[2001:db8::1]:8080", who+" 2001:db8::2")
		}
		p := b.of(l, filtertest.TCP("", 8080))
		l.Ensure(p, l.W)
		asked("a")
		contract.Remove(t, l.W, p)
		if !b.nft { // nothing of ours is left for all to stand before the service
			b.both(l, "-F PREROUTING")
		}
		service()
		l.Ensure(p, l.W)
		// In front of the others, we would take it.
		if b.nft {
			b.run(l, false, `add chain inet fairlead early { type nat hook prerouting priority dstnat - 1; };
				add rule inet fairlead early fib daddr type local jump publish`)
		} else {
			b.both(l, "-I PREROUTING 1 -m addrtype --dst-type LOCAL -j "+publish.ChainDNAT)
		}
		asked("a")
		if b.nft {
			b.run(l, false, "flush chain inet fairlead early; delete chain inet fairlead early")
		} else {
			b.both(l, "-D PREROUTING 1")
		}
		asked("b")
	})
}

// CVE-2020-8558: with route_localnet on, which publishing at 127.0.0.1 takes, neighbours on the link reached what
// listens on 127.0.0.1 of this host.
func TestAdvisoryCVE20208558(t *testing.T) {
	eachPublisher(t, func(t *testing.T, b publisher) {
		l := b.lab(t)
		p := b.of(l, publish.Mapping{Protocol: "tcp", HostIP: contract.Addr("127.0.0.1"), HostPort: 8080,
			ContainerPort: 80})
		l.Ensure(p, l.W)
		if got := contract.Sysctl(t, l.W.Host, "net/ipv4/conf/br0/route_localnet"); got != "1" {
			t.Fatalf("route_localnet is %s", got)
		}
		l.Serve(l.A, "a", "tcp", ":80")
		for _, network := range []string{"tcp", "udp"} {
			l.Serve(l.W.Host, "host", network, "127.0.0.1:9999")
		}
		l.In(l.B, "sysctl -qw net.ipv4.conf.all.route_localnet=1", "ip addr flush dev lo",
			"ip rule add pref 0 lookup 99",
			"ip route add 127.0.0.0/8 via 10.1.2.1 table 99")
		filtertest.NFT(t, l.W, "flush chain inet fairlead guard")
		l.Expect(l.B, "tcp", "127.0.0.1:9999", "host 10.1.2.6")
		l.Expect(l.B, "udp", "127.0.0.1:9999", "host 10.1.2.6")
		l.Ensure(p, l.W)
		l.Expect(l.B, "tcp", "127.0.0.1:9999", "")
		l.Expect(l.B, "udp", "127.0.0.1:9999", "")
		l.Expect(l.B, "tcp", "127.0.0.1:8080", "")
		l.Expect(l.W.Host, "tcp", "127.0.0.1:8080", "a 10.1.2.1")
		l.Expect(l.W.Host, "tcp", "127.0.0.1:9999", "host 127.0.0.1")
	})
}
