package plugin_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// TestAdvisoryNeighbourFragments: a container with an isolated network and another one sends a packet in its neighbor's
// name in two fragments, the first by the other network. The kernel puts them together to a packet with the mark of the
// first one and the link of the last one.
func TestAdvisoryNeighbourFragments(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		for _, bridged := range []string{"0 0", "1 1"} {
			t.Run(backend+"/br_netfilter="+bridged, func(t *testing.T) {
				t.Parallel()
				s := isolatedSite(t, backend, "1", true)
				s.sh("host", brNetfilter(bridged))
				other := s.network("b", fmt.Sprintf(`"type":"firewall","backend":%q`, backend))
				other.ifName = "eth1"
				second := attachment{id: "a1", netns: s.containers["a1"].netns}
				other.must("add", other.add(&second))
				t.Cleanup(func() { other.must("del", other.del(&second)) })
				s.rpFilter("0")
				s.fragmentsInNeighboursName("", false)
				if bridged == "0 0" { // otherwise br_netfilter puts fragments together for each bridge
					s.sh("host", "nft flush chain bridge fairlead prerouting; conntrack -F; conntrack -F -f ipv6")
					s.fragmentsInNeighboursName("without the check", true)
				}
			})
		}
	}
}

// fragmentsInNeighboursName has a1 begin a connection in the name of a2, and expects that what it then sends comes there
// or does not.
func (s *site) fragmentsInNeighboursName(what string, succeeds bool) {
	s.Helper()
	gateways := map[string]net.HardwareAddr{"eth0": s.gateway("a1"), "eth1": s.hostMAC("br-b")}
	for v, proto := range []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6} {
		it, to := netip.MustParseAddr(s.addr["a2"][v]), netip.MustParseAddr([]string{otherHost, "2001:db8::99"}[v])
		for i, links := range [][2]string{{"eth1", "eth0"}, {"eth0", "eth1"}, {"eth0", "eth0"}} {
			port := uint16(20 + i)
			whole := datagram(it, to, unix.IPPROTO_UDP, transport(53, port, unix.IPPROTO_UDP, "a fragmented datagram"))
			for n, fragment := range inTwo(whole) {
				s.rawBy("a1", links[n], gateways[links[n]], proto, fragment)
			}
			text := fmt.Sprint(what, links)
			s.frame("a1", gateways["eth0"], datagram(to, it, unix.IPPROTO_UDP, transport(port, 53, unix.IPPROTO_UDP, text)))
			if came := s.came("a2", text, s.patience(succeeds && i == 0)); came != succeeds && (i == 0 || !succeeds) {
				s.Errorf("%s: IPv%d fragments by %v: what one sends then comes to the neighbor: %v", what, 4+2*v, links, came)
			}
		}
	}
}

// inTwo are the fragments of a packet, the first with 8 bytes behind the header of IP.
func inTwo(packet []byte) [][]byte {
	const first = 8
	if packet[0]>>4 == 6 {
		next := packet[6]
		fragment := func(offset, more byte, b []byte) []byte {
			head := slices.Clone(packet[:40])
			head[6] = unix.IPPROTO_FRAGMENT
			binary.BigEndian.PutUint16(head[4:], uint16(8+len(b)))
			return slices.Concat(head, []byte{next, 0, 0, offset | more, 0, 0, 0, 7}, b)
		}
		return [][]byte{fragment(0, 1, packet[40:40+first]), fragment(first, 0, packet[40+first:])}
	}
	fragment := func(flags uint16, b []byte) []byte {
		head := slices.Clone(packet[:20])
		binary.BigEndian.PutUint16(head[2:], uint16(20+len(b)))
		binary.BigEndian.PutUint16(head[6:], flags)
		binary.BigEndian.PutUint16(head[10:], 0)
		binary.BigEndian.PutUint16(head[10:], sum(head))
		return slices.Concat(head, b)
	}
	const more = 0x2000
	return [][]byte{fragment(more, packet[20:20+first]), fragment(first/8, packet[20+first:])}
}

// hostMAC is the link-layer address of a link of the host.
func (s *site) hostMAC(name string) net.HardwareAddr {
	s.Helper()
	l, err := rtnl.LinkByName(s.ns["host"], name)
	if err != nil {
		s.Fatal(err)
	}
	return l.MAC
}

// TestAdvisoryNeighbourClaim: a container of an isolated network claims its neighbor's address by ARP and neighbor
// discovery, so that the host sends it what is for the neighbor. An advertisement comes from the container's own address.
func TestAdvisoryNeighbourClaim(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			s := isolatedSite(t, backend, "1", true)
			for tags := range 4 {
				if claimed := s.claims(tags); len(claimed) > 0 {
					t.Errorf("with %d tags of VLAN 0, the host sends the attacker what is for the neighbor after %q", tags, claimed)
				}
			}
			s.advertisesForOthers()
			s.sh("host", `listed=$(nft -s list table bridge fairlead); nft delete table bridge fairlead; echo "$listed" | nft -f -
				[ "$(nft -s list table bridge fairlead)" = "$listed" ]`)
			if claimed := s.claims(1); len(claimed) > 0 {
				t.Errorf("with the rules as nft lists them, the host believes %q", claimed)
			}
			s.sh("host", "nft flush chain bridge fairlead prerouting")
			claimed := strings.Join(s.claims(0), " ")
			for _, way := range []string{"ARP", "neighbor solicitation", "router solicitation", "advertisement"} {
				if !strings.Contains(claimed, way) {
					t.Errorf("without the check, the host does not believe any %s: only %q", way, claimed)
				}
			}
		})
	}
}

// claims has a1 claim the addresses of a2, and returns the claims that the host believes.
func (s *site) claims(tags int) (believed []string) {
	s.Helper()
	me, gateway := s.mac("a1"), s.gateway("a1")
	four, six := netip.MustParseAddr(s.addr["a2"][0]), netip.MustParseAddr(s.addr["a2"][1])
	router := netip.MustParseAddr("fd00:81::1")
	arp := func(op byte, to netip.Addr) []byte {
		return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, op}, me, four.AsSlice(), gateway, to.AsSlice())
	}
	mine := netip.MustParseAddr(s.addr["a1"][1])
	option := append([]byte{1, 1}, me...)
	about := advertisement(six, me)
	ask := slices.Concat([]byte{135, 0, 0, 0, 0, 0, 0, 0}, router.AsSlice(), option)
	solicit := slices.Concat([]byte{133, 0, 0, 0, 0, 0, 0, 0}, option)
	for _, c := range []struct {
		name   string
		proto  uint16
		packet []byte
	}{
		{"ARP reply", unix.ETH_P_ARP, arp(2, netip.MustParseAddr("10.81.0.1"))},
		{"ARP request", unix.ETH_P_ARP, arp(1, netip.MustParseAddr("10.81.0.1"))},
		{"neighbor solicitation", unix.ETH_P_IPV6, discovering(six, router, false, ask)},
		{"neighbor solicitation behind an option", unix.ETH_P_IPV6, discovering(six, router, true, ask)},
		{"router solicitation", unix.ETH_P_IPV6, discovering(six, router, false, solicit)},
		{"advertisement", unix.ETH_P_IPV6, discovering(mine, router, false, about)},
		{"advertisement behind an option", unix.ETH_P_IPV6, discovering(mine, router, true, about)},
	} {
		for _, a := range []netip.Addr{four, six} { // so that nothing of the last claim is left
			s.sh("host", fmt.Sprintf("ip neigh replace %v lladdr %v dev br-a nud stale", a, s.mac("a2")))
		}
		s.behindTags("a1", gateway, slices.Repeat([]uint16{unix.ETH_P_8021Q}, tags), c.proto, c.packet)
		// The host answers a1 after it has read the claim.
		nstest.RunIn(s, s.ns["a1"].Path, "ping", "-c1", "-W5", "10.81.0.1")
		if claimed := s.sh("host", fmt.Sprintf("ip neigh show dev br-a to %v; ip neigh show dev br-a to %v", four, six)); strings.
			Contains(claimed, me.String()) {
			believed = append(believed, c.name)
		}
	}
	return believed
}

// advertisesForOthers has a1 advertise an address that belongs to no attachment, as a router does that is a proxy for
// what is behind it, and expects that the host believes it.
func (s *site) advertisesForOthers() {
	s.Helper()
	mine, router := netip.MustParseAddr(s.addr["a1"][1]), netip.MustParseAddr("fd00:81::1")
	behind := netip.MustParseAddr("fd00:81::7777")
	s.sh("host", fmt.Sprintf("ip neigh replace %v lladdr %v dev br-a nud stale", behind, s.mac("a2")))
	s.raw("a1", s.gateway("a1"), unix.ETH_P_IPV6, discovering(mine, router, false, advertisement(behind, s.mac("a1"))))
	nstest.RunIn(s, s.ns["a1"].Path, "ping", "-c1", "-W5", "10.81.0.1")
	if got := s.sh("host", fmt.Sprintf("ip neigh show dev br-a to %v", behind)); !strings.Contains(got, s.mac("a1").String()) {
		s.Errorf("a container that is a router advertised %v, and the host does not believe it: %s", behind, got)
	}
}

// advertisement is a neighbor advertisement, which overrides what its receiver knows.
func advertisement(target netip.Addr, mac net.HardwareAddr) []byte {
	return slices.Concat([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, target.AsSlice(), []byte{2, 1}, mac)
}

// discovering is a message of neighbor discovery, behind an option for the destination if wanted.
func discovering(src, dst netip.Addr, behindOption bool, b []byte) []byte {
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{0, 0, 0, byte(len(b)), 0, 0, 0, unix.IPPROTO_ICMPV6}, b)
	b = slices.Clone(b)
	binary.BigEndian.PutUint16(b[2:], sum(pseudo))
	next := byte(unix.IPPROTO_ICMPV6)
	if behindOption {
		next = unix.IPPROTO_DSTOPTS
		b = append([]byte{unix.IPPROTO_ICMPV6, 0, 1, 4, 0, 0, 0, 0}, b...)
	}
	return slices.Concat([]byte{0x60, 0, 0, 0, 0, byte(len(b)), next, 255}, src.AsSlice(), dst.AsSlice(), b)
}
