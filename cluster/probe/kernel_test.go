package probe

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// newHosts are hosts 1 and 2, and a router with a link to each.
func newHosts(t *testing.T) (hosts [2]*kernel.NS, router *kernel.NS) {
	router = contract.OpenNS(t)
	nstest.RunIn(t, router.Path, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	for i := range hosts {
		hosts[i] = contract.OpenNS(t)
		n := i + 1
		nstest.RunIn(t, hosts[i].Path, "sh", "-ec", fmt.Sprintf(`ip link set lo up
			ip link add up0 type veth peer name port%[1]d
			ip link set port%[1]d netns %[2]s
			ip link set up0 up
			ip addr add 192.0.%[1]d.1/24 dev up0; ip addr add 2001:db8:%[1]d::1/64 dev up0 nodad
			ip addr add 10.244.%[1]d.1/32 dev lo; ip addr add fd00:%[1]d::1/128 dev lo nodad
			ip route add default via 192.0.%[1]d.254; ip -6 route add default via 2001:db8:%[1]d::254`, n, router.Path))
		nstest.RunIn(t, router.Path, "sh", "-ec", fmt.Sprintf(`ip link set port%[1]d up
			ip addr add 192.0.%[1]d.254/24 dev port%[1]d; ip addr add 2001:db8:%[1]d::254/64 dev port%[1]d nodad
			ip route add 10.244.%[1]d.0/24 via 192.0.%[1]d.1; ip -6 route add fd00:%[1]d::/64 via 2001:db8:%[1]d::1`, n))
	}
	return hosts, router
}

// A finding is what a prober said of the other host.
type finding struct {
	path agentstatus.Path
	mtu  int
}

func (f finding) String() string {
	said := []string{"agents " + string(f.path.Agents)}
	for _, in := range f.path.Inside {
		said = append(said, fmt.Sprintf("%s %s %s", in.Family, in.Small, in.Full))
		if in.UDP == agentstatus.LostThere {
			said = append(said, "no UDP")
		}
	}
	return fmt.Sprint(strings.Join(said, ", "), ", MTU ", f.mtu)
}

// probeBoth runs a prober on both hosts until each has ended a test, and returns what they found.
func probeBoth(t *testing.T, hosts [2]*kernel.NS) (found [2]finding) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	results, ended := [2]chan finding{}, make(chan bool)
	for i, ns := range hosts {
		results[i] = make(chan finding, 1)
		p := New(ns, 8473, func(node string, path agentstatus.Path, mtu int) {
			select {
			case results[i] <- finding{path, mtu}:
			default: // a second test, while the other host's first one goes on
			}
		})
		own := func(n int) []netip.Addr {
			return []netip.Addr{contract.Addr(fmt.Sprintf("10.244.%d.1", n)), contract.Addr(fmt.Sprintf("fd00:%d::1", n))}
		}
		me, other := i+1, 2-i
		p.Set(own(me), []Peer{{Node: "other", Local: contract.Addr(fmt.Sprintf("192.0.%d.1", me)),
			Endpoint: contract.Addr(fmt.Sprintf("192.0.%d.1", other)), Addrs: own(other), MTU: 1500}})
		go func() {
			p.Run(ctx)
			if err := p.Err(); err != nil {
				t.Error(err)
			}
			ended <- true
		}()
	}
	for i := range results {
		select {
		case found[i] = <-results[i]:
		case <-nstest.Context(t).Done():
			t.Fatal("no test ended")
		}
	}
	stop()
	for range hosts {
		<-ended
	}
	return found
}

// What the real kernel lets through is what the probers say.
func TestPaths(t *testing.T) {
	hosts, router := newHosts(t)
	const whole = "agents passed, IPv4 passed passed, IPv6 passed passed, MTU 0"
	for _, c := range []struct{ name, rules, link, one, two string }{
		{"whole", "", "", whole, whole},
		{"echoes of host 1 are dropped",
			"add rule inet t f ip saddr 10.244.1.1 drop; add rule inet t f ip6 saddr fd00:1::1 drop", "",
			"agents passed, IPv4 lost-there lost-there, no UDP, IPv6 lost-there lost-there, no UDP, MTU 0",
			"agents passed, IPv4 lost-back lost-back, IPv6 lost-back lost-back, MTU 0"},
		{"datagrams of host 1 are dropped", "add rule inet t f ip saddr 192.0.1.1 udp dport 8473 drop", "",
			"agents lost-there, IPv4 passed passed, IPv6 passed passed, MTU 0",
			"agents lost, IPv4 passed passed, IPv6 passed passed, MTU 0"},
		{"a shorter MTU, of which the router says nothing",
			"add chain inet t o { type filter hook output priority 0; }; add rule inet t o meta l4proto { icmp, icmpv6 } drop; " +
				"insert rule inet t o icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept", "mtu 1400",
			"agents passed, IPv4 passed lost-there, IPv6 passed lost-there, MTU 1400",
			"agents passed, IPv4 passed lost-there, IPv6 passed lost-there, MTU 1400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			nstest.RunIn(t, router.Path, "nft", "add table inet t; add chain inet t f { type filter hook forward priority 0; }; "+
				c.rules)
			if c.link != "" {
				nstest.RunIn(t, router.Path, "sh", "-c", "ip link set port2 "+c.link)
			}
			found := probeBoth(t, hosts)
			if got := found[0].String(); got != c.one {
				t.Errorf("host 1: %s; want %s", got, c.one)
			}
			if got := found[1].String(); got != c.two {
				t.Errorf("host 2: %s; want %s", got, c.two)
			}
			nstest.RunIn(t, router.Path, "nft", "flush ruleset")
		})
	}
}

// However many peers there are, there are six sockets and seven goroutines; they end with the prober. What another
// program has is an error, until it is free.
func TestSockets(t *testing.T) {
	hosts, _ := newHosts(t)
	taken := func() net.PacketConn {
		var c net.PacketConn
		err := hosts[0].Do(func() (err error) {
			c, err = net.ListenPacket("udp", "192.0.1.1:8473")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	other := taken()
	before := runtime.NumGoroutine()
	tested := make(chan string)
	ctx, stop := context.WithCancel(t.Context())
	p := New(hosts[0], 8473, func(node string, _ agentstatus.Path, _ int) {
		select {
		case tested <- node:
		case <-ctx.Done():
		}
	})
	ended := make(chan bool)
	go func() {
		p.Run(ctx)
		close(ended)
	}()
	own := []netip.Addr{contract.Addr("10.244.1.1"), contract.Addr("fd00:1::1")}
	var peers []Peer
	for i := range 1000 {
		peers = append(peers, Peer{Node: fmt.Sprint("n", i), Local: contract.Addr([]string{"192.0.1.1", "2001:db8:1::1"}[i%2]),
			Endpoint: []netip.Addr{endpoint(i + 512), inner(i)[1]}[i%2], Addrs: inner(i), MTU: 1500})
	}
	p.Set(own, peers)
	<-tested
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "listen at UDP 192.0.1.1:8473: address already in use") {
		t.Errorf("another program has the port: %v", err)
	}
	other.Close()
	p.Set(own, peers)
	for p.Err() != nil {
		<-tested
	}
	if n := runtime.NumGoroutine() - before; n > 8 {
		t.Errorf("%d goroutines", n)
	}
	stop()
	<-ended
	taken().Close() // the sockets are closed
}
