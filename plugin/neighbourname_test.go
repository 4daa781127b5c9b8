package plugin_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

const (
	publishedUDP = `"type":"portmap","snat":%v,"runtimeConfig":{"portMappings":[` +
		`{"hostPort":7000,"containerPort":5353,"protocol":"udp"},{"hostPort":7000,"containerPort":8081},{"hostPort":8080,"containerPort":80}]}`
	otherHost = "192.0.2.77"
)

// isolatedSite is a site whose network a is isolated: a1 publishes port 7000, and a2 is its neighbor there.
func isolatedSite(t *testing.T, backend, bridged string, snat bool) *site {
	s := newSite(t)
	s.sh("host", "iptables-nft -P FORWARD ACCEPT; ip6tables-nft -P FORWARD ACCEPT")
	s.sh("host", "sysctl -qw net.bridge.bridge-nf-call-iptables="+bridged+" net.bridge.bridge-nf-call-ip6tables="+bridged+
		" net.netfilter.nf_conntrack_tcp_be_liberal=1")
	fw := fmt.Sprintf(`"type":"firewall","backend":%q,"ingressPolicy":"isolated"`, backend)
	r := s.network("a", fmt.Sprintf(publishedUDP, snat), fw)
	s.add("a1")
	r.chain.plugins = append(r.chain.plugins[:1:1], fw)
	s.add("a2")
	s.listen("a2")
	for _, name := range []string{"a1", "a2"} { // what comes back of a forged SYN is not to be refused
		s.sh(name, "nft 'add table inet mute; add chain inet mute out { type filter hook output priority 0; }; "+
			"add rule inet mute out tcp flags & rst == rst drop'")
	}
	return s
}

// TestAdvisoryNeighbourName: a container of an isolated network sends a packet in its neighbor's name, to a host outside
// or to its own published port, so that conntrack takes for a reply what it then sends its neighbor. It sends the
// packet as it is, with a tag of VLAN 0, and with two.
func TestAdvisoryNeighbourName(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		for _, bridged := range []string{"0", "1"} {
			for _, snat := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/br_netfilter=%s/snat=%v", backend, bridged, snat), func(t *testing.T) {
					t.Parallel()
					s := isolatedSite(t, backend, bridged, snat)
					for tags := 2; tags >= 0; tags-- {
						s.inNeighboursName("rp_filter 0", tags, "")
					}
					for _, filter := range []string{"1", "2"} {
						s.rpFilter(filter)
						s.inNeighboursName("rp_filter "+filter, 0, "")
					}
					s.sh("host", "nft flush set bridge fairlead guarded_ports || true")
					s.rpFilter("0")
					want := "outside published tcp"
					if bridged == "1" && !snat { // the bridge sends nothing back by the port that it came by
						want = "outside"
					}
					s.inNeighboursName("without the check", 0, want)
				})
			}
		}
	}
}

// inNeighboursName has a1 attack a2 in both ways, and expects those to succeed that want names.
func (s *site) inNeighboursName(what string, tags int, want string) {
	s.Helper()
	for v, proto := range []string{"udp4", "udp6"} {
		me, it := netip.MustParseAddr(s.addr["a1"][v]), netip.MustParseAddr(s.addr["a2"][v])
		outside := netip.MustParseAddr([]string{otherHost, "2001:db8::99"}[v])
		host := netip.MustParseAddr([]string{"192.0.2.1", "2001:db8::1"}[v])
		gateway := netip.MustParseAddr([]string{"10.81.0.1", "fd00:81::1"}[v])
		send := func(src, dst netip.Addr, from, to uint16, text string, tags int) {
			s.tagged("a1", s.gateway("a1"), tags, datagram(src, dst, unix.IPPROTO_UDP, transport(from, to,
				unix.IPPROTO_UDP, text)))
		}
		for _, attack := range []string{"outside", "published"} {
			text, wanted := fmt.Sprint(attack, tags, what), strings.Contains(want, attack)
			came := s.attack(wanted, func() bool {
				if attack == "outside" {
					send(it, outside, 53, 9, forged, tags)
					send(outside, it, 9, 53, text, 0)
				} else {
					send(it, host, 53, 7000, forged, tags)
					send(me, it, 5353, 53, text, 0)
					send(me, gateway, 5353, 53, text, 0)
				}
				return s.came("a2", text, 250*time.Millisecond)
			})
			if came != wanted {
				s.Errorf("%s: %s in the neighbor's name, %d tags of VLAN 0, %s: what one sends then comes there: %v",
					what, proto, tags, attack, came)
			}
		}
		// TCP, where conntrack does not look at the window
		local, got, wanted := netip.AddrPortFrom(me, 8081), "", strings.Contains(want, "tcp")
		came := s.attack(wanted, func() bool {
			s.tagged("a1", s.gateway("a1"), tags, datagram(it, host, unix.IPPROTO_TCP, transport(80, 7000, unix.IPPROTO_TCP,
				"")))
			got = s.fromPort("a1", local, netip.AddrPortFrom(it, 80), gateway) +
				s.fromPort("a1", local, netip.AddrPortFrom(gateway, 80), netip.Addr{})
			return got != ""
		})
		if came != wanted {
			s.Errorf("%s: tcp in the neighbor's name, %d tags, answers %q", what, tags, got)
		}
	}
}

// attack tries an attack on a host that has seen no connection yet. One that is to succeed is tried until it does, because a
// busy machine is slow, and loses packets.
func (s *site) attack(wanted bool, try func() bool) (came bool) {
	s.Helper()
	for end := nstest.Deadline(s); ; {
		s.sh("host", "conntrack -F 2>&1; conntrack -F -f ipv6 2>&1")
		if try() {
			return true
		}
		if !wanted || time.Now().After(end) {
			return false
		}
	}
}

// came reports whether a datagram comes to a place that listens.
func (s *site) came(to, text string, patience time.Duration) bool {
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

// fromPort connects from a port, by a router if there is one.
func (s *site) fromPort(from string, local, to netip.AddrPort, by netip.Addr) string {
	s.Helper()
	if by.IsValid() {
		s.sh(from, fmt.Sprintf("ip route replace %v via %v", to.Addr(), by))
		defer s.sh(from, fmt.Sprintf("ip route del %v", to.Addr()))
	}
	d := net.Dialer{Timeout: 250 * time.Millisecond, LocalAddr: net.TCPAddrFromAddrPort(local)}
	var c net.Conn
	if err := s.ns[from].Do(func() (err error) { c, err = d.Dial("tcp", to.String()); return err }); err != nil {
		return ""
	}
	defer c.Close()
	c.(*net.TCPConn).SetLinger(0)
	c.SetDeadline(time.Now().Add(250 * time.Millisecond))
	buf := make([]byte, 64)
	n, _ := c.Read(buf)
	return string(buf[:n])
}

// TestAdvisoryNextAddress: a container of an isolated network sends packets with an address that is free, and the next
// container gets the address.
func TestAdvisoryNextAddress(t *testing.T) {
	for _, snat := range []bool{false, true} {
		t.Run(fmt.Sprintf("snat=%v", snat), func(t *testing.T) {
			t.Parallel()
			s := isolatedSite(t, "nftables", "0", snat)
			next := [2]netip.Addr{netip.MustParseAddr("10.81.0.4"), netip.MustParseAddr("fd00:81::4")}
			hosts := [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
			others := [2]netip.Addr{netip.MustParseAddr(otherHost), netip.MustParseAddr("2001:db8::99")}
			gateways := [2]netip.Addr{netip.MustParseAddr("10.81.0.1"), netip.MustParseAddr("fd00:81::1")}
			send := func(src, dst netip.Addr, from, to uint16, text string) {
				s.frame("a1", s.gateway("a1"), datagram(src, dst, unix.IPPROTO_UDP, transport(from, to,
					unix.IPPROTO_UDP, text)))
			}
			for v := range 2 {
				send(next[v], others[v], 53, 9, forged)
				send(next[v], hosts[v], 53, 7000, forged)
			}
			s.add("a3")
			if got := s.addr["a3"]; got != [2]string{next[0].String(), next[1].String()} {
				t.Fatalf("the next container has %v", got)
			}
			s.listen("a3")
			for v := range 2 {
				me := netip.MustParseAddr(s.addr["a1"][v])
				send(others[v], next[v], 9, 53, "outside")
				send(me, next[v], 5353, 53, "published")
				send(me, gateways[v], 5353, 53, "published")
				for _, attack := range []string{"outside", "published"} {
					if s.came("a3", attack, 250*time.Millisecond) {
						t.Errorf("IPv%d: %s with the next container's address: what one sends then comes there", 4+2*v, attack)
					}
				}
			}
		})
	}
}

// TestNeighbourNamePasses is what containers of an isolated network send with addresses that are not their attachment's
// own, and what they send to all.
func TestNeighbourNamePasses(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		for _, bridged := range []string{"0", "1"} {
			t.Run(backend+"/br_netfilter="+bridged, func(t *testing.T) {
				t.Parallel()
				s := isolatedSite(t, backend, bridged, true)
				twice := attachment{id: "a2", netns: s.containers["a2"].netns}
				second := *s.runners["a"]
				second.ifName = "eth1"
				second.must("add", second.add(&twice))
				t.Cleanup(func() { second.must("del", second.del(&twice)) })
				s.nested("a1")
				s.sh("a1", "ip addr add 10.99.0.1/32 dev lo; ip -6 addr add fd00:99::1/128 dev lo nodad")
				s.sh("host", "ip route add 10.99.0.1 via "+s.addr["a1"][0]+"; ip -6 route add fd00:99::1 via "+s.addr["a1"][1])
				vips := [2]string{"10.81.0.200", "fd00:81::200"}
				vip := func(do, where string) {
					s.sh(where, "ip addr "+do+" "+vips[0]+"/32 dev eth0; ip -6 addr "+do+" "+vips[1]+"/128 dev eth0 nodad")
				}
				s.hearAll()
				for _, filter := range []string{"0", "1", "2"} {
					s.rpFilter(filter)
					for v := range 2 {
						first := [2]string{twice.text("IP4"), twice.text("IP6")}
						s.answered("its own address", "a1", s.addr["a1"][v], v)
						s.answered("by the first link with the second's address", "a2", first[v], v)
						s.answered("by the second link with the first's address", "a2", s.addr["a2"][v], v)
						s.answered("an address that it routes for", "a1", []string{"10.99.0.1", "fd00:99::1"}[v], v)
						s.answered("nested", "nested", s.addr["nested"][v], v)
						s.expect("its own published port", "a1", net.JoinHostPort([]string{"192.0.2.1", "2001:db8::1"}[v], "8080"), "a1")
					}
					for _, holder := range []string{"a1", "a2"} {
						vip("add", holder)
						for v := range 2 {
							s.sh("host", "ip neigh flush dev br-a")
							s.answered("an address that moves", holder, vips[v], v)
						}
						vip("del", holder)
					}
					s.toAll("rp_filter " + filter)
				}
				second.must("check", second.check(&twice))
				for _, name := range []string{"a1", "a2"} {
					s.runners["a"].must("check "+name, s.runners["a"].check(s.containers[name]))
				}
			})
		}
	}
}

// nested has a container route for a namespace behind it.
func (s *site) nested(behind string) {
	s.Helper()
	inner := nstest.NewNS(s)
	s.open("nested", inner)
	s.addr["nested"] = [2]string{"10.98.0.2", "fd00:98::2"}
	s.sh(behind, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; ip link add inner type veth peer name eth0 netns "+
		filepath.Base(inner)+"; ip addr add 10.98.0.1/24 dev inner; ip addr add fd00:98::1/64 dev inner nodad; ip link set inner up")
	s.sh("nested", "ip addr add 10.98.0.2/24 dev eth0; ip addr add fd00:98::2/64 dev eth0 nodad; ip link set eth0 up; "+
		"ip route add default via 10.98.0.1; ip route add default via fd00:98::1")
	s.sh("host", "ip route add 10.98.0.0/24 via "+s.addr[behind][0]+"; ip -6 route add fd00:98::/64 via "+s.addr[behind][1])
}

// answered expects that a connection from an address reaches the outside, and that the answer comes back.
func (s *site) answered(what, from, local string, v int) {
	s.Helper()
	d := net.Dialer{Timeout: 30 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
	var c net.Conn
	err := s.ns[from].Do(func() (err error) {
		c, err = d.Dial("tcp", net.JoinHostPort(s.addr["outside"][v], "80"))
		return err
	})
	if err != nil {
		s.Errorf("%s: from %s: %v", what, from, err)
		return
	}
	defer c.Close()
	if b, err := io.ReadAll(c); string(b) != "outside" {
		s.Errorf("%s: from %s: %q (%v)", what, from, b, err)
	}
}

const discovery = "without an address"

// hearAll has the host hear what comes to its DHCP server and to a group.
func (s *site) hearAll() {
	s.Helper()
	s.ns["dhcp"], s.ns["group"] = s.ns["host"], s.ns["host"]
	s.hear("dhcp", func() (net.PacketConn, error) { return net.ListenPacket("udp4", ":67") })
	s.hear("group", func() (net.PacketConn, error) {
		link, err := net.InterfaceByName("br-a")
		if err != nil {
			return nil, err
		}
		return net.ListenMulticastUDP("udp4", link, &net.UDPAddr{IP: net.IPv4(239, 1, 1, 1), Port: 5000})
	})
}

// toAll expects that the host gets what a container sends to everybody.
func (s *site) toAll(what string) {
	s.Helper()
	me, nobody := netip.MustParseAddr(s.addr["a1"][0]), netip.IPv4Unspecified()
	everybody, group := netip.AddrFrom4([4]byte{255, 255, 255, 255}), netip.AddrFrom4([4]byte{239, 1, 1, 1})
	broadcast := net.HardwareAddr{255, 255, 255, 255, 255, 255}
	s.frame("a1", broadcast, datagram(nobody, everybody, unix.IPPROTO_UDP, transport(68, 67, unix.IPPROTO_UDP, discovery)))
	if !s.came("dhcp", discovery, 30*time.Second) {
		s.Errorf("%s: a DHCPDISCOVER does not come to the host", what)
	}
	s.frame("a1", net.HardwareAddr{1, 0, 0x5e, 1, 1, 1}, datagram(me, group, unix.IPPROTO_UDP, transport(5000, 5000,
		unix.IPPROTO_UDP, what)))
	if !s.came("group", what, 30*time.Second) {
		s.Errorf("%s: what is for a group does not come to the host", what)
	}
}

// tagged is frame with tags of VLAN 0 before the packet.
func (s *site) tagged(from string, to net.HardwareAddr, tags int, packet []byte) {
	s.Helper()
	proto := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		proto = unix.ETH_P_IPV6
	}
	s.behindTags(from, to, slices.Repeat([]uint16{unix.ETH_P_8021Q}, tags), proto, packet)
}
