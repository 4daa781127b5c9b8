package plugin_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel/rtnl"

	"golang.org/x/sys/unix"
)

// TestAdvisoryForgedAnswer: br_netfilter has conntrack make an entry of what a container sends another network by a
// neighbor's MAC address, since the frame stays on the bridge, where no policy drops it. An answer in the victim's
// name, by the same neighbor, makes the connection established. It is still the attacker's, and the policy holds for
// it.
func TestAdvisoryForgedAnswer(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		for _, policy := range []string{"same-bridge", "isolated", "strict"} {
			t.Run(backend+"/"+policy, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				s.sh("host", "iptables-nft -P FORWARD ACCEPT; ip6tables-nft -P FORWARD ACCEPT; sysctl -qw net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1")
				fw := fmt.Sprintf(`"type":"firewall","backend":%q,"ingressPolicy":`, backend)
				s.network("a", fw+`"same-bridge"`)
				s.network("b", fw+fmt.Sprintf("%q", policy))
				s.network("c")
				for _, name := range []string{"a1", "a2", "b1", "c1", "c2"} {
					s.add(name)
				}
				s.listen("b1")
				s.answerBy("from a network with a policy", "a1", "b1", s.mac("a2"))
				if policy == "strict" {
					s.answerBy("from a network without one", "c1", "b1", s.mac("c2"))
				}
			})
		}
	}
}

// answerBy has one begin a connection with a victim, and answer it in the victim's name, both by a link-layer address,
// and then send to the victim by its gateway.
func (s *site) answerBy(what, from, victim string, by net.HardwareAddr) {
	s.Helper()
	for v, proto := range []string{"udp4", "udp6"} {
		me, it := netip.MustParseAddr(s.addr[from][v]), netip.MustParseAddr(s.addr[victim][v])
		if s.udp(from, victim, v, s.patience(false), func(local uint16) {
			s.frame(from, by, datagram(me, it, unix.IPPROTO_UDP, transport(local, 53, unix.IPPROTO_UDP, forged)))
			s.frame(from, by, datagram(it, me, unix.IPPROTO_UDP, transport(53, local, unix.IPPROTO_UDP, forged)))
		}) {
			s.Errorf("%s: %s from %s, answered in the name of %s, comes there", what, proto, from, victim)
		}
	}
}

// mac is the link-layer address of a place's eth0.
func (s *site) mac(name string) net.HardwareAddr {
	s.Helper()
	l, err := rtnl.LinkByName(s.ns[name], "eth0")
	if err != nil {
		s.Fatal(err)
	}
	return l.MAC
}
