package plugin_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/kernel/rtnl"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// TestAdvisoryForgedReply: a container with CAP_NET_RAW, or a host of the LAN, sends a datagram to itself in the name
// of a victim that a policy keeps it from, so that conntrack takes for a reply what it then sends the victim. With TCP
// it makes the host believe that the victim has begun a connection that both sides open at once.
func TestAdvisoryForgedReply(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables-nft", "iptables-legacy"} {
		for _, policy := range []string{"same-bridge", "isolated", "strict"} {
			t.Run(backend+"/"+policy, func(t *testing.T) {
				t.Parallel()
				s, conf := newSite(t), backend
				if backend, variant, ok := strings.Cut(backend, "-"); ok {
					for _, p := range []string{"iptables", "ip6tables"} {
						s.sh("host", p+"-"+variant+" -P FORWARD ACCEPT")
					}
					conf = backend
				}
				s.sh("host", "sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0")
				fw := fmt.Sprintf(`"type":"firewall","backend":%q,"ingressPolicy":`, conf)
				s.network("a", fw+`"same-bridge"`)
				s.network("b", fw+`"`+policy+`"`)
				s.network("c")
				s.network("d", fw+`"open"`)
				for _, name := range []string{"a1", "b1", "c1", "d1", "outside"} {
					if name != "outside" {
						s.add(name)
					}
					s.listen(name)
					// What comes back of a forged SYN is not to be refused.
					s.sh(name, "nft 'add table inet mute; add chain inet mute out { type filter hook output priority 0; }; add rule inet mute out tcp flags & rst == rst drop'")
				}
				attacks := [][2]string{{"a1", "b1"}}
				if policy == "strict" {
					attacks = append(attacks, [2]string{"c1", "b1"}, [2]string{"outside", "b1"}, [2]string{"b1", "d1"})
				}
				for _, filter := range []string{"0", "2"} {
					s.rpFilter(filter)
					for _, pair := range attacks {
						s.forge("rp_filter "+filter, pair[0], pair[1], false)
					}
				}
				// What holds it: without, all of them get through.
				if conf == "nftables" {
					s.sh("host", "nft flush chain inet fairlead sources")
				} else {
					s.sh("host", "for i in iptables ip6tables; do $i-"+backend[len("iptables-"):]+" -F CNI-ISOLATION-SOURCE; done")
				}
				if policy == "strict" { // whose subnet rp_filter does not find a way back to, by our routing rules
					s.rpFilter("0")
				}
				for _, pair := range attacks {
					s.forge("without the check", pair[0], pair[1], true)
				}
				s.add("b2")
				s.add("d2")
				for _, pair := range attacks {
					s.forge("with the check again", pair[0], pair[1], false)
				}
			})
		}
	}
}

func (s *site) rpFilter(v string) {
	s.Helper()
	s.sh("host", "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo "+v+" > $f; done")
}

// listen keeps the datagrams to port 53.
func (s *site) listen(name string) {
	s.Helper()
	s.hear(name, func() (net.PacketConn, error) { return net.ListenPacket("udp", ":53") })
}

// hear keeps the datagrams of a socket in a place.
func (s *site) hear(name string, open func() (net.PacketConn, error)) {
	s.Helper()
	came := make(chan string, 64)
	s.datagrams[name] = came
	if err := s.ns[name].Do(func() error {
		c, err := open()
		if err != nil {
			return err
		}
		s.Cleanup(func() { c.Close() })
		go func() {
			buf := make([]byte, 64)
			for {
				n, _, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				came <- string(buf[:n])
			}
		}()
		return nil
	}); err != nil {
		s.Fatal(err)
	}
}

// forge has one attack another of each family with UDP and TCP.
func (s *site) forge(what, from, victim string, succeeds bool) {
	s.Helper()
	s.forgeBy(what, from, victim, s.gateway(from), succeeds)
}

// forgeBy is forge with the packet in the victim's name sent to a link-layer address.
func (s *site) forgeBy(what, from, victim string, by net.HardwareAddr, succeeds bool) {
	s.Helper()
	for v, proto := range []string{"udp4", "udp6"} {
		want := ""
		if succeeds {
			want = victim
		}
		me, it := netip.MustParseAddr(s.addr[from][v]), netip.MustParseAddr(s.addr[victim][v])
		if got := s.udp(from, victim, v, s.patience(succeeds), func(local uint16) {
			s.frame(from, by, datagram(it, me, unix.IPPROTO_UDP, transport(53, local, unix.IPPROTO_UDP, forged)))
		}); got != succeeds {
			s.Errorf("%s: %s to %s in the name of %s: what it sends then comes there: %v, want %v", what, proto, from,
				victim,
				got, succeeds)
		}
		if from != "c1" && from != "outside" {
			want = "" // conntrack takes the victim's SYN-ACK for invalid, and the policy keeps it from the attacker
		}
		if got := s.simultaneous(from, me, it, by, s.patience(want != "")); got != want {
			s.Errorf("%s: tcp from %s to %s: %q, want %q", what, from, victim, got, want)
		}
	}
}

// patience is how long an answer is waited for: one that must not come, a quarter of a second.
func (s *site) patience(comes bool) time.Duration {
	if comes {
		return nstest.Patience(s)
	}
	return 250 * time.Millisecond
}

// udp sends a datagram to port 53 after before has done what it wants with the local port, and reports whether it
// comes.
func (s *site) udp(from, to string, v int, patience time.Duration, before func(local uint16)) bool {
	s.Helper()
	c := s.dialUDP(from, v, netip.AddrPortFrom(netip.MustParseAddr(s.addr[to][v]), 53))
	defer c.Close()
	before(uint16(c.LocalAddr().(*net.UDPAddr).Port))
	text := c.LocalAddr().String()
	c.Write([]byte(text))
	end := time.After(patience)
	for {
		select {
		case came := <-s.datagrams[to]:
			if came == text {
				return true
			}
		case <-end:
			return false
		}
	}
}

// dialUDP has a place send from a port that no other place of the site sends from: a second one with the same port and
// destination would be masqueraded with another port, which nobody here knows.
func (s *site) dialUDP(from string, v int, to netip.AddrPort) (c *net.UDPConn) {
	s.Helper()
	s.port++
	local := &net.UDPAddr{IP: net.ParseIP(s.addr[from][v]), Port: s.port}
	if err := s.ns[from].Do(func() (err error) {
		c, err = net.DialUDP("udp", local, net.UDPAddrFromAddrPort(to))
		return err
	}); err != nil {
		s.Fatal(err)
	}
	return c
}

const forged = "forged"

// simultaneous has the host see a SYN of the victim's, and then connects to the victim's port.
func (s *site) simultaneous(from string, me, to netip.Addr, by net.HardwareAddr, patience time.Duration) (answer string) {
	s.Helper()
	var l net.Listener // whose port is to be the one that is connected from
	if err := s.ns[from].Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(me, 0).String())
		return err
	}); err != nil {
		s.Fatal(err)
	}
	local := l.Addr().(*net.TCPAddr)
	l.Close()
	s.frame(from, by, datagram(to, me, unix.IPPROTO_TCP, transport(80, uint16(local.Port), unix.IPPROTO_TCP, "")))
	d := net.Dialer{Timeout: patience, LocalAddr: local}
	var c net.Conn
	if err := s.ns[from].Do(func() (err error) {
		c, err = d.Dial("tcp", netip.AddrPortFrom(to, 80).String())
		return err
	}); err != nil {
		return ""
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	buf := make([]byte, 64)
	n, _ := c.Read(buf)
	return string(buf[:n])
}

// transport is a datagram, or a SYN, without its checksum.
func transport(from, to uint16, proto byte, text string) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
	if proto == unix.IPPROTO_UDP {
		return append(append(binary.BigEndian.AppendUint16(b, uint16(8+len(text))), 0, 0), text...)
	}
	return append(b, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0x20, 0, 0, 0, 0, 0)
}

// datagram puts the header of IP before one of a transport protocol.
func datagram(src, dst netip.Addr, proto byte, b []byte) []byte {
	at := 6
	if proto == unix.IPPROTO_TCP {
		at = 16
	}
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{0, 0, byte(len(b) >> 8), byte(len(b)), 0, 0, 0, proto},
		b)
	binary.BigEndian.PutUint16(b[at:], sum(pseudo))
	if src.Is6() {
		return slices.Concat([]byte{0x60, 0, 0, 0, byte(len(b) >> 8), byte(len(b)), proto, 64}, src.AsSlice(),
			dst.AsSlice(),
			b)
	}
	head := slices.Concat([]byte{0x45, 0, 0, byte(20 + len(b)), 0, 1, 0, 0, 64, proto, 0, 0}, src.AsSlice(),
		dst.AsSlice())
	binary.BigEndian.PutUint16(head[10:], sum(head))
	return append(head, b...)
}

func sum(b []byte) uint16 {
	var n uint32
	for i, x := range b {
		n += uint32(x) << (8 * (1 - i%2))
	}
	for n > 0xffff {
		n = n>>16 + n&0xffff
	}
	return ^uint16(n)
}

// gateway is the address of the host's link that a place's eth0 has for its router.
func (s *site) gateway(from string) net.HardwareAddr {
	s.Helper()
	in, err := rtnl.LinkByName(s.ns[from], "eth0")
	if err != nil {
		s.Fatal(err)
	}
	l, err := rtnl.LinkByIndex(s.ns["host"], in.Peer)
	if err == nil && l.Master != 0 {
		l, err = rtnl.LinkByIndex(s.ns["host"], l.Master)
	}
	if err != nil {
		s.Fatal(err)
	}
	return l.MAC
}

// frame sends a packet to a link-layer address by eth0.
func (s *site) frame(from string, to net.HardwareAddr, packet []byte) {
	s.Helper()
	proto := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		proto = unix.ETH_P_IPV6
	}
	s.raw(from, to, proto, packet)
}

// raw sends a frame by eth0.
func (s *site) raw(from string, to net.HardwareAddr, proto uint16, packet []byte) {
	s.Helper()
	s.rawBy(from, "eth0", to, proto, packet)
}

func (s *site) rawBy(from, link string, to net.HardwareAddr, proto uint16, packet []byte) {
	s.Helper()
	ns := s.ns[from]
	l, err := rtnl.LinkByName(ns, link)
	if err != nil {
		s.Fatal(err)
	}
	if err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		sa := &unix.SockaddrLinklayer{Protocol: proto<<8 | proto>>8, Ifindex: l.Index, Halen: 6}
		copy(sa.Addr[:], to)
		return unix.Sendto(fd, packet, 0, sa)
	}); err != nil {
		s.Fatal(err)
	}
}

// TestSourcesPass is what the question in whose name a connection begins must let pass: containers with two networks,
// whose replies leave by the other one; a bridge without an address of the host's, even with the subnet of another
// network; several uplinks, of which the reply takes another one; and a link that another plugin made.
func TestSourcesPass(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		for _, bridged := range []string{"0", "1"} {
			t.Run(backend+"/br_netfilter="+bridged, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				s.sh("host", "iptables-nft -P FORWARD ACCEPT; ip6tables-nft -P FORWARD ACCEPT; sysctl -qw net.bridge.bridge-nf-call-iptables="+bridged+" net.bridge.bridge-nf-call-ip6tables="+bridged)
				fw := fmt.Sprintf(`"type":"firewall","backend":%q,"ingressPolicy":"same-bridge"`, backend)
				s.network("a", fw)
				s.network("b", fw)
				plain := s.network("p", fw)
				plain.chain.plugins[0] = `"type":"bridge","bridge":"br-p","ipam":{"type":"host-local","ranges":[[{"subnet":"10.81.0.0/24","rangeStart":"10.81.0.100"}],[{"subnet":"fd00:81::/64","rangeStart":"fd00:81::100"}]]}`
				ptp := s.network("q", fw)
				ptp.chain.plugins[0] = `"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.81.0.0/24","rangeStart":"10.81.0.200"}],[{"subnet":"fd00:81::/64","rangeStart":"fd00:81::200"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`
				for _, name := range []string{"a1", "b1", "p1", "p2", "q1"} {
					s.add(name)
				}
				// The container has network a by eth0, with its default route, and b by eth1.
				by, second := *s.runners["b"], attachment{id: "a1", netns: s.containers["a1"].netns}
				by.ifName = "eth1"
				by.must("add", by.add(&second))
				t.Cleanup(func() { by.must("del", by.del(&second)) })
				// The host hears of 192.0.2.77 by another uplink than the one that it would answer by.
				s.sh("host", "ip link add wan2 type veth peer name eth1 netns "+
					strings.TrimPrefix(s.ns["outside"].Path, "/run/netns/")+
					"; ip addr add 198.51.100.1/24 dev wan2; ip link set wan2 up")
				s.sh("outside", "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth1.rp_filter=0; ip addr add 198.51.100.2/24 dev eth1; ip link set eth1 up; ip route add 10.82.0.0/24 via 198.51.100.1 src 192.0.2.2")
				for _, filter := range []string{"0", "2"} {
					s.rpFilter(filter)
					for v := range 2 {
						at := func(addr string) string { return net.JoinHostPort(addr, "80") }
						s.expect("the second network, answered by the first", "outside",
							at([]string{second.text("IP4"), second.text("IP6")}[v]), "a1")
						s.expect("on a bridge without an address of the host", "p1", at(s.addr["p2"][v]), "p2")
						s.expect("by one uplink in, by another out", "outside", at(s.addr["b1"][v]), "b1")
						s.expect("to the outside", "b1", at(s.addr["outside"][v]), "outside")
						s.expect("a link of its own", "q1", at(s.addr["outside"][v]), "outside")
						s.expect("a link of its own, from outside", "outside", at(s.addr["q1"][v]), "q1")
						s.expect("a link of its own, from the host", "host", at(s.addr["q1"][v]), "q1")
						s.expect("the host by its gateway's address", "host", at(s.addr["b1"][v]), "b1")
					}
				}
				for _, name := range []string{"a1", "b1", "p1", "q1"} {
					r := s.runners[name[:1]]
					r.must("check "+name, r.check(s.containers[name]))
				}
			})
		}
	}
}

// TestPolicyLeavesIPTables: the rules of a policy go with the last attachment that was made with it.
func TestPolicyLeavesIPTables(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, policy := range []string{"open", "strict"} {
			t.Run(variant+"/"+policy, func(t *testing.T) {
				s := newSite(t)
				s.sh("host", "iptables-"+variant+" -P FORWARD ACCEPT; ip6tables-"+variant+" -P FORWARD ACCEPT")
				fw := fmt.Sprintf(`"type":"firewall","backend":"iptables","ingressPolicy":%q`, policy)
				r := s.network("a", fw)
				ptp := s.network("q", fw)
				ptp.chain.plugins[0] = `"type":"ptp",` + hostLocal
				one, two, three := &attachment{id: "1", netns: nstest.NewNS(t)}, &attachment{id: "2",
					netns: nstest.NewNS(t)}, &attachment{id: "3", netns: nstest.NewNS(t)}
				r.must("add", r.add(one))
				r.must("add", r.add(two))
				ptp.must("add", ptp.add(three))
				r.must("del", r.del(one))
				r.must("check", r.check(two))
				ptp.must("del", ptp.del(three))
				// The list of the second has lost its plugin firewall.
				r.chain.plugins = r.chain.plugins[:1]
				r.must("del", r.del(two))
				if got := s.saved(); strings.Contains(got, "br-a") || strings.Contains(got, "veth") {
					t.Errorf("left:\n%s", got)
				}
			})
		}
	}
}
