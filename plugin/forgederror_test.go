package plugin_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// errorSite is a site with networks of each policy: i and j are isolated, s is strict, t is same-bridge, o is open, and
// n has no plugin firewall. Of each a container i1, …, publishes port 7000 and up for its port 5353, where nobody
// listens; i2 and s2 publish none. All are masqueraded, or none.
func errorSite(t *testing.T, backend, bridged string, masquerade bool) *site {
	s := newSite(t)
	s.sh("host", "iptables-nft -P FORWARD ACCEPT; ip6tables-nft -P FORWARD ACCEPT; "+
		"sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0 "+
		"net.bridge.bridge-nf-call-iptables="+bridged+" net.bridge.bridge-nf-call-ip6tables="+bridged)
	s.unlimited("outside")
	for i, policy := range []string{"i isolated", "j isolated", "s strict", "t same-bridge", "o open", "n "} {
		name, policy, _ := strings.Cut(policy, " ")
		var more []string
		if policy != "" {
			more = append(more, fmt.Sprintf(`"type":"firewall","backend":%q,"ingressPolicy":%q`, backend, policy))
		}
		r := s.network(name, append([]string{fmt.Sprintf(`"type":"portmap","runtimeConfig":{"portMappings":[`+
			`{"hostPort":%d,"containerPort":5353,"protocol":"udp"}]}`, 7000+i)}, more...)...)
		if masquerade {
			r.chain.plugins[0] += fmt.Sprintf(`,"ipMasq":true,"ipMasqBackend":%q`, backend)
		}
		s.add(name + "1")
		s.unlimited(name + "1")
		if name == "i" || name == "s" {
			r.chain.plugins = append(r.chain.plugins[:1:1], more...)
			s.add(name + "2")
			s.unlimited(name + "2")
		}
	}
	return s
}

// unlimited has a place send each error that there is to send.
func (s *site) unlimited(name string) {
	s.Helper()
	s.sh(name, "sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0")
}

// errorRuns runs a test at sites with both backends, with and without br_netfilter and masquerading. A run has one of
// each backend.
func errorRuns(t *testing.T, test func(t *testing.T, s *site)) {
	for i, backend := range []string{"nftables", "iptables"} {
		for _, bridged := range nstest.Some(t, 2, []string{"0", "1"}) {
			masquerade := (i == 1) == (bridged == "1")
			t.Run(fmt.Sprintf("%s/br_netfilter=%s/ipMasq=%v", backend, bridged, masquerade), func(t *testing.T) {
				t.Parallel()
				test(t, errorSite(t, backend, bridged, masquerade))
			})
		}
	}
}

// TestAdvisoryForgedError: a container sends an ICMP error about a connection that is none of its own to an end of the
// connection, which ends then, or whose packets become smaller.
func TestAdvisoryForgedError(t *testing.T) {
	errorRuns(t, func(_ *testing.T, s *site) {
		for _, pair := range [][2]string{{"i1", "i2"}, {"j1", "i1"}, {"t1", "i1"}, {"s1", "i1"}, {"i1", "s1"},
			{"o1", "s1"}, {"i1", "t1"}, {"s1", "o1"}} {
			s.forgeError(pair[0], pair[1], false)
			s.pathMTU(pair[0], pair[1], false)
		}
		// What they may begin connections with, they may send errors to.
		for _, pair := range [][2]string{{"o1", "i1"}, {"i1", "o1"}, {"s2", "s1"}, {"outside", "i1"}} {
			s.forgeError(pair[0], pair[1], true)
			s.pathMTU(pair[0], pair[1], true)
		}
	})
}

// forgeError has one send another errors about what that sends outside, and expects that they come or do not.
func (s *site) forgeError(from, victim string, comes bool) {
	s.Helper()
	s.errorAbout(from, victim, [2]string{otherHost, "2001:db8::99"}, comes)
}

// An errorForm is how an error is sent, and what part of a packet it is about.
type errorForm struct{ inFragments, aboutFragment bool }

func errorForms() []errorForm {
	return []errorForm{{}, {inFragments: true}, {aboutFragment: true}, {true, true}}
}

// errorAbout has one send another errors about what that sends to an address: that there is no such port, and that the
// packet is too big. Each is sent whole and in fragments, about a whole packet and about its first fragment. It is about
// the packet as the victim sent it, and as the host sends it on with an address of its own.
func (s *site) errorAbout(from, victim string, about [2]string, comes bool) {
	s.Helper()
	for v := range 2 {
		me, to := netip.MustParseAddr(s.addr[from][v]), netip.MustParseAddr(about[v])
		_, host, _ := strings.Cut(s.sh("host", "ip -o route get "+about[v]), " src ")
		sources := []netip.Addr{netip.MustParseAddr(s.addr[victim][v]), netip.MustParseAddr(strings.Fields(host)[0])}
		try := func(want string, mtus []uint16, forms ...errorForm) {
			s.Helper()
			got := s.afterSending(victim, v, netip.AddrPortFrom(to, 9), s.patience(comes), func(local netip.AddrPort) {
				for _, src := range sources {
					sent := datagram(src, to, unix.IPPROTO_UDP, transport(local.Port(), 9, unix.IPPROTO_UDP, forged))
					for _, mtu := range mtus {
						for _, form := range forms {
							s.sendError(from, me, src, mtu, sent, form)
						}
					}
				}
			})
			if got != want {
				s.Errorf("IPv%d: errors with MTU %v, %+v, from %s about what %s sends to %v: %q, want %q", 4+2*v, mtus,
					forms, from, victim, to, got, want)
			}
		}
		if !comes {
			try("", []uint16{0, 1280}, errorForms()...)
			continue
		}
		for _, form := range errorForms() {
			try("refused", []uint16{0}, form)
			try("smaller", []uint16{1280}, form)
		}
	}
}

// sendError has one send an error about a packet, in a form.
func (s *site) sendError(from string, src, dst netip.Addr, mtu uint16, about []byte, form errorForm) {
	s.Helper()
	if form.aboutFragment {
		about = inTwo(about)[0]
	}
	frames := [][]byte{icmpError(src, dst, mtu, about)}
	if form.inFragments {
		frames = inTwo(frames[0])
	}
	for _, frame := range frames {
		s.frame(from, s.gateway(from), frame)
	}
}

// pathMTU has one send another errors about an echo reply, which the kernel believes without a socket: that it is too big
// for the path. Each is about the whole reply or a fragment of it, of a reply that nobody sent, and of one to a ping from
// outside. The victim is to believe all, or none.
func (s *site) pathMTU(from, victim string, believed bool) {
	s.Helper()
	for v := range 2 {
		me, it := netip.MustParseAddr(s.addr[from][v]), netip.MustParseAddr(s.addr[victim][v])
		other := netip.MustParseAddr([]string{otherHost, "2001:db8::99"}[v])
		types := [2][2]byte{{8, 0}, {128, 129}}[v]
		ping := func(src, dst netip.Addr, is byte) []byte {
			return icmp(src, dst, append([]byte{is, 0, 0, 0, 0, 7, 0, 1}, make([]byte, 8)...))
		}
		reply := ping(it, other, types[1])
		abouts := [][]byte{reply, inTwo(reply)[0]}
		if it.Is4() { // of IPv6, the kernel does not look for the protocol of a later fragment
			abouts = append(abouts, inTwo(reply)[1])
		}
		for _, pinged := range []bool{false, true} {
			if pinged {
				s.frame("outside", s.gateway("outside"), ping(other, it, types[0]))
			}
			for i, about := range abouts {
				send := func() { s.frame(from, s.gateway(from), icmpError(me, it, 1280, about)) }
				send()
				if !believed && i < len(abouts)-1 {
					continue
				}
				if got := s.hasPathMTU(victim, other, s.patience(believed), send); got != believed {
					s.Errorf("IPv%d: errors from %s about what %s sends, %d of its parts, pinged: %v: a smaller path is believed: %v",
						4+2*v, from, victim, i+1, pinged, got)
				}
				s.sh(victim, "ip route flush cache; ip -6 route flush cache")
			}
		}
	}
}

// hasPathMTU reports whether a place believes that packets to an address have to be smaller. What says so is sent again and
// again: a busy machine loses packets.
func (s *site) hasPathMTU(name string, to netip.Addr, patience time.Duration, send func()) bool {
	s.Helper()
	for end := time.Now().Add(patience); ; send() {
		if strings.Contains(s.sh(name, "ip route get "+to.String()), "mtu 1280") {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// afterSending sends a datagram, does something, and says which error comes back.
func (s *site) afterSending(from string, v int, to netip.AddrPort, patience time.Duration,
	after func(local netip.AddrPort)) string {
	s.Helper()
	c := s.dialUDP(from, v, to)
	defer c.Close()
	local := c.LocalAddr().(*net.UDPAddr).AddrPort()
	var err error
	for end := time.Now().Add(patience); ; { // a busy machine loses packets, so all are sent again
		c.Write([]byte(forged))
		if after != nil {
			after(netip.AddrPortFrom(local.Addr().Unmap(), local.Port()))
		}
		again := time.Now().Add(time.Second)
		if again.After(end) {
			again = end
		}
		c.SetReadDeadline(again)
		_, err = c.Read(make([]byte, 64))
		if !errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(end) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, unix.EHOSTUNREACH):
		return "unreachable"
	case errors.Is(err, unix.EACCES):
		return "prohibited"
	case errors.Is(err, unix.EMSGSIZE):
		return "smaller"
	}
	return ""
}

// icmpError is an error about a datagram: there is no such port, or, with an MTU, the datagram is larger.
func icmpError(src, dst netip.Addr, mtu uint16, about []byte) []byte {
	types := [2][2]byte{{3, 3}, {3, 4}}
	if src.Is6() {
		types = [2][2]byte{{1, 4}, {2, 0}}
	}
	is := types[min(mtu, 1)]
	return icmp(src, dst, append([]byte{is[0], is[1], 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, about...))
}

// icmp puts the checksum into a message of ICMP, and the header of IP before it.
func icmp(src, dst netip.Addr, b []byte) []byte {
	if src.Is4() {
		binary.BigEndian.PutUint16(b[2:], sum(b))
		head := slices.Concat([]byte{0x45, 0, 0, byte(20 + len(b)), 0, 1, 0, 0, 64, unix.IPPROTO_ICMP, 0, 0},
			src.AsSlice(), dst.AsSlice())
		binary.BigEndian.PutUint16(head[10:], sum(head))
		return append(head, b...)
	}
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{0, 0, 0, byte(len(b)), 0, 0, 0, unix.IPPROTO_ICMPV6}, b)
	binary.BigEndian.PutUint16(b[2:], sum(pseudo))
	return slices.Concat([]byte{0x60, 0, 0, 0, 0, byte(len(b)), unix.IPPROTO_ICMPV6, 64}, src.AsSlice(), dst.AsSlice(), b)
}

// TestErrorsPass: the errors of the LAN, of containers that route, of containers with two networks that send by the
// other one, and of those behind published ports and Services.
func TestErrorsPass(t *testing.T) {
	errorRuns(t, func(t *testing.T, s *site) {
		for _, r := range []string{"o1 10.190", "i1 10.191", "s1 10.192"} { // where nothing is behind them
			name, net, _ := strings.Cut(r, " ")
			six := "fd00:" + strings.TrimPrefix(net, "10.")
			s.sh(name, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; ip route add blackhole "+net+
				".0.0/16; ip -6 route add blackhole "+six+"::/64")
			s.sh("host", "ip route add "+net+".0.0/16 via "+s.addr[name][0]+"; ip -6 route add "+six+"::/64 via "+
				s.addr[name][1])
		}
		s.sh("host", "nft 'add table inet svc; add chain inet svc pre { type nat hook prerouting priority dstnat; }; "+
			"add rule inet svc pre ip daddr 10.96.0.1 udp dport 53 dnat ip to "+s.addr["i1"][0]+":5353; "+
			"add rule inet svc pre ip6 daddr fd00:96::1 udp dport 53 dnat ip6 to ["+s.addr["i1"][1]+"]:5353'")
		by, second := *s.runners["i"], attachment{id: "t1", netns: s.containers["t1"].netns}
		by.ifName = "eth1"
		by.must("add", by.add(&second))
		t.Cleanup(func() { by.must("del", by.del(&second)) })
		for _, filter := range []string{"0", "2"} {
			s.rpFilter(filter)
			for _, victim := range []string{"i1", "s1", "t1", "o1"} {
				s.forgeError("outside", victim, true) // as routers of the LAN send them
			}
			s.errorAbout("o1", "i1", [2]string{"10.190.0.5", "fd00:190::5"}, true)
			s.errorAbout("i1", "outside", [2]string{"10.191.0.5", "fd00:191::5"}, true)
			s.errorAbout("s1", "s2", [2]string{"10.192.0.5", "fd00:192::5"}, true)
			for v := range 2 {
				pick := func(four, six string) netip.Addr { return netip.MustParseAddr([]string{four, six}[v]) }
				host := pick("192.0.2.1", "2001:db8::1")
				expect := func(what, from string, to netip.Addr, port uint16, want string) {
					t.Helper()
					if got := s.afterSending(from, v, netip.AddrPortFrom(to, port), 30*time.Second, nil); got != want {
						t.Errorf("%s: from %s to %v port %d: %q, want %q", what, from, to, port, got, want)
					}
				}
				for _, from := range []string{"i1", "s1", "t1", "o1"} {
					expect("the LAN's", from, netip.MustParseAddr(s.addr["outside"][v]), 9, "refused")
				}
				expect("by the other link of two", "outside", pick(second.text("IP4"), second.text("IP6")), 9, "refused")
				expect("within an isolated network, published", "i2", host, 7000, "refused")
				expect("between isolated networks, published", "j1", host, 7000, "refused")
				expect("from a strict network, published", "s1", host, 7000, "refused")
				expect("into a strict network, published", "i1", host, 7002, "refused")
				expect("without a policy, published", "n1", host, 7002, "refused")
				expect("from outside, published", "outside", host, 7000, "refused")
				for _, from := range []string{"i2", "j1", "s1", "t1", "o1", "n1"} {
					expect("a Service's", from, pick("10.96.0.1", "fd00:96::1"), 53, "refused")
				}
			}
		}
	})
}
