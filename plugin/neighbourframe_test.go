package plugin_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// TestAdvisoryNeighbourFrame: a container of an isolated network sends frames to its neighbor's address and to all. None
// comes out at the neighbor: with VLAN tags, of protocols that br_netfilter does not look at, ARP, and what a server or a
// router would say.
func TestAdvisoryNeighbourFrame(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		for _, bridged := range []string{"0 0", "1 1", "1 0", "0 1"} {
			t.Run(backend+"/br_netfilter="+bridged, func(t *testing.T) {
				t.Parallel()
				s := isolatedSite(t, backend, "1", true)
				s.sh("host", brNetfilter(bridged))
				s.add("a3")
				came := s.capture("a3")
				for _, bridged := range []string{bridged, "1 1", "0 0"} { // the last two without another ADD
					s.sh("host", brNetfilter(bridged))
					s.framesToNeighbour("a1", "a3")
					if got := came(s.patience(false), nil); len(got) > 0 {
						t.Errorf("with br_netfilter=%s came to the neighbor: %q", bridged, got)
					}
				}
				s.sh("host", "nft flush chain bridge fairlead forward; nft flush chain bridge fairlead prerouting")
				names := s.framesToNeighbour("a1", "a3")
				if got := came(s.patience(true), names); len(got) < len(names) {
					t.Errorf("without the rules, only these of %d frames come: %q", len(names), got)
				}
			})
		}
	}
}

// brNetfilter sets for which families br_netfilter passes the frames of bridges through the rules of IP.
func brNetfilter(families string) string {
	four, six, _ := strings.Cut(families, " ")
	return "sysctl -qw net.bridge.bridge-nf-call-iptables=" + four + " net.bridge.bridge-nf-call-ip6tables=" + six
}

// A frame is what a container sends, without its link-layer addresses.
type frame struct {
	name   string
	proto  uint16
	packet func(text string) []byte
}

// servers are the answers of a container that poses as the network's servers: its DHCP server, its name server, its
// router, and the gateway in neighbor discovery.
func servers(mac net.HardwareAddr, to [2]string) []frame {
	gateway, gateway6 := netip.MustParseAddr("10.81.0.1"), netip.MustParseAddr("fd00:81::1")
	router, all := netip.MustParseAddr("fe80::bad"), netip.MustParseAddr("ff02::1")
	advert := slices.Concat([]byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}, mac)

	udp := func(to string, port, local uint16) func(string) []byte {
		return func(text string) []byte {
			return datagram(gateway, netip.MustParseAddr(to), unix.IPPROTO_UDP,
				transport(port, local, unix.IPPROTO_UDP, text))
		}
	}
	icmp := func(src netip.Addr, message []byte) func(string) []byte {
		return func(text string) []byte {
			// An option that no receiver knows: its length is in units of eight bytes.
			option := make([]byte, (len(text)+9)/8*8)
			option[0], option[1] = 253, byte(len(option)/8)
			copy(option[2:], text)
			return discovering(src, all, false, slices.Concat(message, option))
		}
	}
	return []frame{
		{"DHCP", unix.ETH_P_IP, udp("255.255.255.255", 67, 68)},
		{"DNS", unix.ETH_P_IP, udp(to[0], 53, 4242)},
		{"router advertisement", unix.ETH_P_IPV6, icmp(router, advert)},
		{"neighbor advertisement", unix.ETH_P_IPV6, icmp(gateway6, advertisement(gateway6, mac))},
	}
}

// framesToNeighbour sends frames to the neighbor's address and to all, each with its name in double brackets.
func (s *site) framesToNeighbour(from, to string) (names []string) {
	s.Helper()
	plain := func(head string) func(string) []byte {
		return func(text string) []byte { return []byte(head + text) }
	}
	arp := slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, 2}, s.mac(from), netip.MustParseAddr("10.81.0.1").AsSlice(), s.mac(to),
		netip.MustParseAddr(s.addr[to][0]).AsSlice())
	frames := []frame{
		{"PPPoE", unix.ETH_P_PPP_SES, plain("\x11\x00\x00\x01\x00\x40\x00\x21")},
		{"MPLS", unix.ETH_P_MPLS_UC, plain("\x00\x00\x01\xff")},
		{"unknown", 0x88b5, plain("")},
		{"ARP", unix.ETH_P_ARP, plain(string(arp))},
	}
	for v, proto := range []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6} {
		me, it := netip.MustParseAddr(s.addr[from][v]), netip.MustParseAddr(s.addr[to][v])
		frames = append(frames, frame{fmt.Sprint("IPv", 4+2*v), proto, func(text string) []byte {
			return datagram(me, it, unix.IPPROTO_UDP, transport(9, 53, unix.IPPROTO_UDP, text))
		}})
	}
	frames = append(frames, servers(s.mac(from), s.addr[to])...)
	everybody := net.HardwareAddr{255, 255, 255, 255, 255, 255}
	for _, f := range frames {
		for _, tags := range [][]uint16{nil, {unix.ETH_P_8021Q}, {unix.ETH_P_8021AD}, {unix.ETH_P_8021Q, unix.ETH_P_8021Q},
			{unix.ETH_P_8021AD, unix.ETH_P_8021Q}, {unix.ETH_P_8021Q, unix.ETH_P_8021AD}} {
			for _, mac := range []net.HardwareAddr{s.mac(to), everybody} {
				name := fmt.Sprintf("%s tags %x to %v", f.name, tags, mac)
				names = append(names, name)
				s.behindTags(from, mac, tags, f.proto, f.packet("[["+name+"]]"))
			}
		}
	}
	return names
}

// behindTags sends a packet behind tags of VLAN 0.
func (s *site) behindTags(from string, to net.HardwareAddr, tags []uint16, proto uint16, packet []byte) {
	s.Helper()
	for _, tag := range slices.Backward(tags) {
		packet = append([]byte{0, 0, byte(proto >> 8), byte(proto)}, packet...)
		proto = tag
	}
	s.raw(from, to, proto, packet)
}

// capture hears all frames that come to a place's eth0. What it returns waits until all names came, and returns those
// that did.
func (s *site) capture(name string) func(patience time.Duration, all []string) []string {
	s.Helper()
	l, err := rtnl.LinkByName(s.ns[name], "eth0")
	if err != nil {
		s.Fatal(err)
	}
	fd := -1
	if err := s.ns[name].Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		everything := uint16(unix.ETH_P_ALL)
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: everything<<8 | everything>>8, Ifindex: l.Index})
	}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { unix.Close(fd) })
	return func(patience time.Duration, all []string) (got []string) {
		end := time.Now().Add(patience)
		buf := make([]byte, 2048)
		for left := patience; left > 0 && (len(all) == 0 || len(got) < len(all)); left = time.Until(end) {
			tv := unix.NsecToTimeval(int64(left))
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				continue
			}
			_, rest, _ := strings.Cut(string(buf[:n]), "[[")
			if name, _, ok := strings.Cut(rest, "]]"); ok && !slices.Contains(got, name) {
				got = append(got, name)
			}
		}
		return got
	}
}

const experimental = 0x88b5 // a type of frames that nobody answers

// TestAdvisoryNeighbourMAC: a container of an isolated network sends a frame from its neighbor's MAC address, so that the
// bridge sends it what is for the neighbor.
func TestAdvisoryNeighbourMAC(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			s := isolatedSite(t, backend, "0", true)
			port := s.hostEnd("a2")
			s.ethernet("a1", s.mac("a2"), s.gateway("a1"), experimental, make([]byte, 46))
			nstest.RunIn(t, s.ns["a1"].Path, "ping", "-c1", "-W5", "10.81.0.1") // comes after it
			found, want := s.sh("host", "bridge fdb show br br-a"), fmt.Sprintf("%v dev %s ", s.mac("a2"), port)
			if !strings.Contains(found, want) {
				t.Errorf("after a frame from the neighbor's address, the bridge does not have %q:\n%s", want, found)
			}
			for v := range 2 {
				if !s.fromNeighboursMAC(v, s.patience(true)) {
					t.Errorf("IPv%d: after a frame from the neighbor's address, what is for the neighbor does not come there", 4+2*v)
				}
			}
			for _, holder := range []string{"a1", "a2", "a1"} {
				s.virtualMACMoves(holder)
			}
			s.sh("host", fmt.Sprintf("bridge fdb del %v dev %s master", s.mac("a2"), port))
			for v := range 2 {
				// The neighbor has its address again with the next frame that it sends, as for ARP.
				for end := nstest.Deadline(t); s.fromNeighboursMAC(v, s.patience(false)); {
					if time.Now().After(end) {
						t.Fatalf("IPv%d: without the pinned address, no frame takes what is for the neighbor", 4+2*v)
					}
				}
			}
			r := s.runners["a"]
			if err := r.check(s.containers["a2"]); err == nil || !strings.Contains(err.Error(), s.mac("a2").String()) {
				t.Errorf("check says %v of a MAC address that is not pinned to its port", err)
			}
		})
	}
}

// fromNeighboursMAC has a1 send a frame from a2's address, and reports whether a2 gets what then comes from outside.
func (s *site) fromNeighboursMAC(v int, patience time.Duration) (comes bool) {
	s.Helper()
	return s.udp("outside", "a2", v, patience, func(uint16) {
		s.ethernet("a1", s.mac("a2"), s.gateway("a1"), experimental, make([]byte, 46))
	})
}

// virtualMACMoves has a container send a frame from the address of a virtual router (VRRP), and expects that the bridge
// then finds the address there.
func (s *site) virtualMACMoves(holder string) {
	s.Helper()
	virtual := net.HardwareAddr{0, 0, 0x5e, 0, 1, 7}
	s.ethernet(holder, virtual, s.gateway(holder), experimental, make([]byte, 46))
	want, found := fmt.Sprintf("%v dev %s ", virtual, s.hostEnd(holder)), ""
	for end := nstest.Deadline(s); !strings.Contains(found, want); found = s.sh("host", "bridge fdb show br br-a") {
		if time.Now().After(end) {
			s.Fatalf("a virtual router's address does not move to %s:\n%s", holder, found)
		}
	}
}

// ethernet sends a frame from any address by eth0.
func (s *site) ethernet(from string, src, dst net.HardwareAddr, proto uint16, packet []byte) {
	s.Helper()
	l, err := rtnl.LinkByName(s.ns[from], "eth0")
	if err != nil {
		s.Fatal(err)
	}
	if err := s.ns[from].Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		frame := slices.Concat(dst, src, []byte{byte(proto >> 8), byte(proto)}, packet)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Index})
	}); err != nil {
		s.Fatal(err)
	}
}

// hostEnd is the name of the host's end of a place's eth0.
func (s *site) hostEnd(name string) string {
	s.Helper()
	in, err := rtnl.LinkByName(s.ns[name], "eth0")
	if err != nil {
		s.Fatal(err)
	}
	l, err := rtnl.LinkByIndex(s.ns["host"], in.Peer)
	if err != nil {
		s.Fatal(err)
	}
	return l.Name
}
