package publish_test

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/spec"
)

// eachBridgeCall runs fn where br_netfilter passes frames on a bridge through the rules of IP, and where it does not.
func eachBridgeCall(t *testing.T, fn func(*testing.T, *filtertest.Lab)) {
	for _, call := range []string{"0", "1"} {
		t.Run("bridge-nf-call-iptables="+call, func(t *testing.T) {
			l := filtertest.NewLab(t)
			_, err := procsys.Set(l.W.Host, procsys.Setting{Key: "net/bridge/bridge-nf-call-iptables", Value: call,
				Optional: true},
				procsys.Setting{Key: "net/bridge/bridge-nf-call-ip6tables", Value: call, Optional: true})
			if err != nil {
				t.Fatal(err)
			}
			fn(t, l)
		})
	}
}

// Whoever asks for a published port is answered, and the container sees who asks wherever its answer
// would find the way back without help. Where br_netfilter is at work, frames between containers pass our
// rules on the bridge.
//
// clause: K1
func TestPublishedPaths(t *testing.T) {
	eachBridgeCall(t, func(t *testing.T, l *filtertest.Lab) {
		publishedPaths(l)
	})
}

func publishedPaths(l *filtertest.Lab) {
	p := filtertest.PortsOfA(l,
		publish.Mapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
		publish.Mapping{Protocol: "udp", HostPort: 8080, ContainerPort: 80},
		publish.Mapping{Protocol: "sctp", HostPort: 8080, ContainerPort: 80},
		publish.Mapping{Protocol: "tcp", HostIP: contract.Addr("192.0.2.9"), HostPort: 90, ContainerPort: 80},
		publish.Mapping{Protocol: "tcp", HostIP: contract.Addr("2001:db8::9"), HostPort: 90, ContainerPort: 80},
		publish.Mapping{Protocol: "tcp", HostIP: contract.Addr("127.0.0.1"), HostPort: 91, ContainerPort: 80},
		publish.Mapping{Protocol: "udp", HostIP: contract.Addr("::ffff:192.0.2.9"), HostPort: 92, ContainerPort: 80},
	)
	l.Ensure(p, l.W)
	for _, network := range []string{"tcp", "udp"} {
		l.Serve(l.A, "a", network, ":80")
	}
	for _, network := range []string{"tcp", "udp"} {
		for range 2 { // a redirect that the first time may bring must not mislead the second time
			l.Expect(l.Neighbour, network, "192.0.2.1:8080", "a 192.0.2.2")
			l.Expect(l.Neighbour, network, "192.0.2.9:8080", "a 192.0.2.2")
			l.Expect(l.Neighbour, network, "[2001:db8::1]:8080", "a 2001:db8::2")
			l.Expect(l.W.Host, network, "192.0.2.1:8080", "a 192.0.2.1")
			l.Expect(l.W.Host, network, "[2001:db8::1]:8080", "a 2001:db8::1")
			l.Expect(l.W.Host, network, "127.0.0.1:8080", "a 10.1.2.1")
			l.Expect(l.W.Host, network, "127.1.2.3:8080", "a 10.1.2.1")
			l.Expect(l.A, network, "192.0.2.1:8080", "a 10.1.2.1")
			l.Expect(l.A, network, "10.1.2.1:8080", "a 10.1.2.1")
			l.Expect(l.A, network, "[2001:db8::1]:8080", "a fd00::1")
			l.Expect(l.B, network, "192.0.2.1:8080", "a 10.1.2.1")
			l.Expect(l.B, network, "10.1.2.1:8080", "a 10.1.2.1")
			l.Expect(l.B, network, "[fd00::1]:8080", "a fd00::1")
			l.Expect(l.B, network, "10.1.2.5:80", "a 10.1.2.6") // straight, and not translated at all
		}
	}
	for _, dst := range []string{"192.0.2.1:8080", "[2001:db8::1]:8080"} {
		if err := l.SctpInit(l.Neighbour, l.A, netip.MustParseAddrPort(dst), 80); err != nil {
			l.Errorf("sctp %s: %v", dst, err)
		}
	}
	l.Expect(l.Neighbour, "tcp", "192.0.2.9:90", "a 192.0.2.2")
	l.Expect(l.Neighbour, "tcp", "[2001:db8::9]:90", "a 2001:db8::2")
	l.Expect(l.Neighbour, "udp", "192.0.2.9:92", "a 192.0.2.2")
	l.Expect(l.Neighbour, "tcp", "192.0.2.1:90", "")
	l.Expect(l.Neighbour, "tcp", "[2001:db8::1]:90", "")
	l.Expect(l.W.Host, "tcp", "127.0.0.1:91", "a 10.1.2.1")
	l.Expect(l.Neighbour, "tcp", "192.0.2.1:91", "")
	if err := p.Verify(l.Context(), l.W); err != nil {
		l.Error(err)
	}
	if err := errors.Join(p.Remove(l.Context(), l.W), l.W.Finish()); err != nil {
		l.Fatal(err)
	}
	l.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", "")
	l.Expect(l.W.Host, "tcp", "127.0.0.1:8080", "")
}

func TestPublishMasqAll(t *testing.T) {
	l := filtertest.NewLab(t)
	p := filtertest.PortsOfA(l, publish.Mapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	p.MasqAll = true
	l.Ensure(p, l.W)
	l.Serve(l.A, "a", "tcp", ":80")
	l.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", "a 10.1.2.1")
	l.Expect(l.Neighbour, "tcp", "[2001:db8::1]:8080", "a fd00::1")
	l.Expect(l.Neighbour, "tcp", "10.1.2.5:80", "a 192.0.2.2") // not published, so not masqueraded
}

// CVE-2025-67499: a published port must not catch what is for others and only passes through.
func TestPublishedPortLeavesOthersAlone(t *testing.T) {
	l := filtertest.NewLab(t)
	for _, network := range []string{"tcp", "udp"} {
		l.Serve(l.A, "a", network, ":53")
		l.Serve(l.B, "b", network, ":53")
		l.Serve(l.Remote, "beyond", network, ":53")
	}
	for name, hosts := range map[string][]netip.Addr{"any address": {{}},
		"one address": {contract.Addr("192.0.2.1"), contract.Addr("2001:db8::1")}} {
		l.Run(name, func(t *testing.T) {
			in := *l
			m := &in
			m.T = t
			var p publish.Ports
			for _, h := range hosts {
				p = filtertest.PortsOfA(m, append(p.Mappings,
					publish.Mapping{Protocol: "tcp", HostIP: h, HostPort: 53, ContainerPort: 53},
					publish.Mapping{Protocol: "udp", HostIP: h, HostPort: 53, ContainerPort: 53})...)
			}
			m.Ensure(p, l.W)
			for _, network := range []string{"tcp", "udp"} {
				m.Expect(l.Neighbour, network, "192.0.2.1:53", "a 192.0.2.2")
				m.Expect(l.Neighbour, network, "[2001:db8::1]:53", "a 2001:db8::2")
				m.Expect(l.Neighbour, network, "10.1.2.6:53", "b 192.0.2.2")
				m.Expect(l.Neighbour, network, "[fd00::6]:53", "b 2001:db8::2")
				m.Expect(l.Neighbour, network, "198.51.100.2:53", "beyond 192.0.2.2")
				m.Expect(l.Neighbour, network, "[2001:db8:1::2]:53", "beyond 2001:db8::2")
				m.Expect(l.B, network, "198.51.100.2:53", "beyond 10.1.2.6")
				m.Expect(l.W.Host, network, "198.51.100.2:53", "beyond 198.51.100.1")
				m.Expect(l.W.Host, network, "[2001:db8:1::2]:53", "beyond 2001:db8:1::1")
			}
			if err := errors.Join(p.Remove(m.Context(), l.W), l.W.Finish()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// CVE-2019-9946: translation by others, Services say, comes before ours.
func TestPublishComesAfterOthers(t *testing.T) {
	l := filtertest.NewLab(t)
	l.Ensure(filtertest.PortsOfA(l, publish.Mapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}), l.W)
	l.Serve(l.A, "a", "tcp", ":80")
	l.Serve(l.B, "b", "tcp", ":80")
	l.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", "a 192.0.2.2")
	filtertest.NFT(t, l.W, `add table ip services; add chain ip services pre { type nat hook prerouting priority dstnat; };
		add rule ip services pre ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.1.2.6:80`)
	l.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", "b 192.0.2.2")
}

// CVE-2020-8558: route_localnet must not let neighbours in to what listens on 127.0.0.1.
func TestLoopbackStaysInside(t *testing.T) {
	l := filtertest.NewLab(t)
	l.Ensure(filtertest.PortsOfA(l, publish.Mapping{Protocol: "tcp", HostIP: contract.Addr("127.0.0.1"), HostPort: 8080,
		ContainerPort: 80}), l.W)
	if got := contract.Sysctl(t, l.W.Host, "net/ipv4/conf/br0/route_localnet"); got != "1" {
		t.Fatalf("route_localnet is %s", got)
	}
	l.Serve(l.A, "a", "tcp", ":80")
	l.Serve(l.W.Host, "host", "tcp", "127.0.0.1:9999")
	l.Expect(l.W.Host, "tcp", "127.0.0.1:8080", "a 10.1.2.1")

	// b is a neighbour who wants in.
	l.In(l.B, "sysctl -qw net.ipv4.conf.all.route_localnet=1", "ip addr flush dev lo", "ip rule add pref 0 lookup 99",
		"ip route add 127.0.0.0/8 via 10.1.2.1 table 99")
	l.Expect(l.B, "tcp", "127.0.0.1:9999", "")
	l.Expect(l.B, "tcp", "127.0.0.1:8080", "")
	filtertest.NFT(t, l.W, "flush chain inet fairlead guard") // that the test would notice
	l.Expect(l.B, "tcp", "127.0.0.1:9999", "host 10.1.2.6")
	// The next attachment on this host closes it again.
	l.Ensure(masquerade.Sources{Owner: l.OwnerB, From: []netip.Prefix{l.ToB}}, l.W)
	l.Expect(l.B, "tcp", "127.0.0.1:9999", "")
}

// Nor may a neighbour pass for this host where accept_local would let him.
func TestLoopbackIsNotSpoofed(t *testing.T) {
	l := filtertest.NewLab(t)
	l.Ensure(filtertest.PortsOfA(l, publish.Mapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}), l.W)
	l.In(l.W.Host, "sysctl -qw net.ipv4.conf.br0.accept_local=1 net.ipv4.conf.br0.rp_filter=0 net.ipv4.conf.all.rp_filter=0")
	l.In(l.B, "sysctl -qw net.ipv4.conf.all.route_localnet=1")
	var in net.PacketConn
	if err := l.W.Host.Do(func() (err error) {
		in,
			err = net.ListenPacket("udp4", "10.1.2.1:9998")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	arrives := func(want bool) {
		t.Helper()
		err := l.B.Do(func() error {
			out, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)},
				&net.UDPAddr{IP: net.IPv4(10, 1, 2, 1), Port: 9998})
			if err != nil {
				return err
			}
			defer out.Close()
			_, err = out.Write([]byte("it is me"))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		in.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		_, from, err := in.ReadFrom(make([]byte, 64))
		if got := err == nil && filtertest.HostOf(from) == "127.0.0.1"; got != want {
			t.Errorf("arrived %v (%v), want %v", got, err, want)
		}
	}
	arrives(false)
	filtertest.NFT(t, l.W, "flush chain inet fairlead guard") // that the test would notice
	arrives(true)
}

// The chain user is asked first, and stays as it is whatever happens around it.
func TestUserChain(t *testing.T) {
	l := filtertest.NewLab(t)
	l.Ensure(filtertest.PortsOfA(l, publish.Mapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
		publish.Mapping{Protocol: "tcp", HostPort: 8081, ContainerPort: 80}), l.W)
	l.Serve(l.A, "a", "tcp", ":80")
	filtertest.NFT(t, l.W, "add rule inet fairlead user ip saddr 192.0.2.2 tcp dport 8081 drop")
	l.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", "a 192.0.2.2")
	l.Expect(l.Neighbour, "tcp", "192.0.2.1:8081", "")
	l.Expect(l.W.Host, "tcp", "192.0.2.1:8081", "a 192.0.2.1")
	filtertest.NFT(t, l.W, "flush chain inet fairlead prerouting")
	l.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", "")
	l.Ensure(masquerade.Sources{Owner: l.OwnerB, From: []netip.Prefix{l.ToB}}, l.W)
	l.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", "a 192.0.2.2")
	l.Expect(l.Neighbour, "tcp", "192.0.2.1:8081", "")
	if got := filtertest.NFT(t, l.W, "list chain inet fairlead user"); !strings.Contains(got, "tcp dport 8081 drop") {
		t.Errorf("the administrator's rule is gone:\n%s", got)
	}
}

// Conditions hold for their own attachment and for no other one.
func TestConditionsOnPackets(t *testing.T) {
	l := filtertest.NewLab(t)
	l.Serve(l.A, "a", "tcp", ":80")
	l.Serve(l.B, "b", "tcp", ":80")
	port := func(n uint16) publish.Mapping {
		return publish.Mapping{Protocol: "tcp", HostPort: n, ContainerPort: 80}
	}
	p := filtertest.PortsOfA(l, port(8080))
	b := publish.Ports{Owner: l.OwnerB, To4: l.ToB, Mappings: []publish.Mapping{port(8081)}}
	for i, c := range []struct {
		conditions []string
		in         bool // is the neighbour at 192.0.2.1 let in
	}{
		{[]string{"ip", "saddr", "192.0.2.0/24"}, true},
		{[]string{"ip saddr != 192.0.2.0/24"}, false},
		{[]string{"ip saddr { 203.0.113.1, 192.0.2.2 }"}, true},
		{[]string{"ip saddr != { 203.0.113.1, 192.0.2.2 }"}, false},
		{[]string{"ip", "daddr", "192.0.2.9"}, false},
		{[]string{"iifname", `"wan"`}, true},
		{[]string{"iifname != wan*"}, false},
		{[]string{"meta mark 0x2"}, false},
		{[]string{"meta mark & 0xff != 0x2"}, true},
		{[]string{"tcp sport 1024-65535"}, true},
		{[]string{"th sport != 1024-65535"}, false},
		{[]string{"udp sport 1024-65535"}, false},
		{[]string{"meta l4proto { tcp, udp }", "iif wan"}, true},
		{[]string{"-s", "192.0.2.0/24"}, true},
		{[]string{"!", "-s", "192.0.2.0/24"}, false},
		{[]string{"!-s", "192.0.2.0/24"}, false},
		{[]string{"-s", "203.0.113.1,192.0.2.2", "-i", "w+"}, true},
		{[]string{"--destination", "192.0.2.9"}, false},
		{[]string{"-m", "mark", "!", "--mark", "0x2/0xff"}, true},
		{[]string{"-p", "tcp", "-m", "tcp", "--sport", "1024:65535"}, true},
	} {
		l.Run(strconv.Itoa(i)+" "+strings.Join(c.conditions, " "), func(t *testing.T) {
			in := *l
			m := &in
			m.T = t
			p.Conditions4 = c.conditions
			m.Ensure(p, l.W)
			m.Ensure(b, l.WorldOf(l.B))
			want := ""
			if c.in {
				want = "a 192.0.2.2"
			}
			m.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", want)
			m.Expect(l.Neighbour, "tcp", "[2001:db8::1]:8080", "a 2001:db8::2")
			m.Expect(l.Neighbour, "tcp", "192.0.2.1:8081", "b 192.0.2.2")
			if err := p.Verify(m.Context(), l.W); err != nil {
				t.Error(err)
			}
			if err := errors.Join(p.Remove(m.Context(), l.W), l.W.Finish()); err != nil {
				t.Error(err)
			}
			m.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", "")
		})
	}
	l.Run("one port under two conditions", func(t *testing.T) {
		m := *l
		m.T = t
		p.Conditions4, p.To6 = []string{"ip daddr 192.0.2.9"}, netip.Prefix{}
		b := publish.Ports{Owner: l.OwnerB, To4: l.ToB, Mappings: []publish.Mapping{port(8080)},
			Conditions4: []string{"ip daddr 192.0.2.1"}}
		m.Ensure(p, l.W)
		m.Ensure(b, l.WorldOf(l.B))
		m.Expect(l.Neighbour, "tcp", "192.0.2.9:8080", "a 192.0.2.2")
		m.Expect(l.Neighbour, "tcp", "192.0.2.1:8080", "b 192.0.2.2")
	})
}

// clause: K13
func TestConditionsNotUnderstood(t *testing.T) {
	l := contract.NewWorld(t)
	for _, c := range []struct {
		conditions []string
		token      string
	}{
		{[]string{"ip", "saddr", "example.org"}, `"example.org"`},
		{[]string{"ip6", "saddr", "fd00::1"}, `"ip6 saddr"`},
		{[]string{"ip", "saddr", "fd00::1"}, `"fd00::1"`},
		{[]string{"ip", "ttl", "1"}, `"ip ttl"`},
		{[]string{"ct", "state", "new"}, `"ct"`},
		{[]string{"ip", "saddr", "{", "10.0.0.1"}, `""`},
		{[]string{"tcp", "sport", "70000"}, `"70000"`},
		{[]string{"iifname", "a/b"}, `"a/b"`},
		{[]string{"-m", "owner"}, `"-m owner"`},
		{[]string{"-j", "ACCEPT"}, `"-j"`},
		{[]string{"-s"}, `""`},
		{[]string{"ip saddr 10.0.0.1; drop"}, `"10.0.0.1;"`},
	} {
		p := publish.Ports{Owner: contract.Owner, To4: contract.Prefix("10.1.2.5/24"),
			Mappings: []publish.Mapping{{Protocol: "tcp", HostPort: 1, ContainerPort: 1}}, Conditions4: c.conditions}
		_, err := p.Ensure(t.Context(), l)
		if e := spec.AsError(err, 0); e == nil || e.Code != spec.CodeUnsupported || !strings.Contains(e.Msg, c.token) ||
			!strings.Contains(e.Msg, "understood are") {
			t.Errorf("%q: %v", c.conditions, err)
		}
	}
	if s := filtertest.State(t, l); s != "" {
		t.Errorf("an error left:\n%s", s)
	}
}
