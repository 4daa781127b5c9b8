package plugin_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// twoHosts are two hosts on one cable, ens3 at both ends:
//
//	a1 ── host ens3 ══ ens3 outside ── b1
func twoHosts(t *testing.T) *site {
	t.Helper()
	s := emptySite(t)
	s.open("outside", nstest.NewNS(t))
	s.sh("host", "ip link set lo up; ip link add ens3 type veth peer name ens3 netns "+
		strings.TrimPrefix(s.ns["outside"].Path, "/run/netns/")+"; ip link set ens3 up")
	s.sh("outside", "ip link set lo up; ip link set ens3 up")
	s.serve("host") // package net asks once whether there is IPv6, and believes a namespace whose lo is down
	return s
}

// on makes the runner of a network on one of the two hosts: of containers whose names begin with a letter.
func (s *site) on(where, letter string, plugins ...string) *runner {
	r := newRunner(s.T, chain{"two-" + s.ns["host"].Path[len("/run/netns/"):], plugins, nil})
	r.host = s.ns[where].Path
	s.runners[letter] = r
	return r
}

// talks expects who answers at port 80 of a container, and its echoes, of both families.
func (s *site) talks(from, to string) {
	s.Helper()
	for _, addr := range s.addr[to] {
		s.expect("over the cable", from, net.JoinHostPort(addr, "80"), to)
		s.ping(from, addr)
	}
}

func (s *site) unreachable(what, from, to string) {
	s.Helper()
	for _, addr := range s.addr[to] {
		s.expect(what, from, net.JoinHostPort(addr, "80"), "")
	}
}

// TestVLANPackets sends packets between two containers in one VLAN of one cable, to a router in another VLAN and beyond
// it, and between two in VLANs of VLANs. Nobody is reached from another VLAN, nor from none.
//
// clause: P20 P24 P26
func TestVLANPackets(t *testing.T) {
	nstest.Need(t, "vlan", "id", "7", "protocol", "802.1ad")
	s := twoHosts(t)
	lan := func(id int, more string) string {
		return fmt.Sprintf(`"type":"vlan","master":"ens3","vlanId":%d%s,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`, id, more)
	}
	s.on("host", "a", lan(100, ""))
	s.on("outside", "b", lan(100, `,"mtu":1400`))
	s.on("host", "c", lan(101, ""))
	s.add("a1")
	s.add("b1")
	s.add("c1")
	s.sh("outside", `ip link add link ens3 name lan101 type vlan id 101; ip addr add 10.77.0.1/24 dev lan101; ip addr add fd00:77::1/64 dev lan101 nodad; ip link set lan101 up
		ip addr add 192.0.2.2/32 dev lo; ip addr add 2001:db8::2/128 dev lo`)
	s.addr["outside"] = [2]string{"192.0.2.2", "2001:db8::2"}
	s.serve("outside")
	s.talks("a1", "b1")
	s.talks("b1", "a1")
	s.talks("c1", "outside")
	s.unreachable("another VLAN", "c1", "b1")
	s.sh("host", "ip addr add 10.77.0.99/24 dev ens3; ip addr add fd00:77::99/64 dev ens3 nodad")
	s.unreachable("no VLAN", "host", "b1")
	s.unreachable("no VLAN", "host", "a1")
	if out := s.sh("b1", "ip -d link show eth0"); !strings.Contains(out, "mtu 1400") ||
		!strings.Contains(out, "protocol 802.1Q id 100") {
		t.Error(out)
	}

	// The customers' VLAN 100 in the provider's 200, by a link of the host on one side, and on the other by one that
	// another attachment of the container made.
	s.sh("outside", "ip link add link ens3 name qinq type vlan protocol 802.1ad id 200; ip link set qinq up")
	s.on("outside", "e", strings.Replace(lan(100, ""), `"ens3"`, `"qinq"`, 1))
	s.add("e1")
	r := s.on("host", "d", `"type":"vlan","master":"ens3","vlanId":200,"protocol":"802.1ad"`)
	r.ifName = "outer"
	d := &attachment{id: "d1", netns: nstest.NewNS(t)}
	r.must("add", r.add(d))
	r = s.on("host", "d", strings.Replace(lan(100, `,"linkInContainer":true`), `"ens3"`, `"outer"`, 1))
	in := &attachment{id: "d1", netns: d.netns}
	r.must("add", r.add(in))
	r.must("check", r.check(in))
	s.open("d1", in.netns)
	s.addr["d1"] = [2]string{in.text("IP4"), in.text("IP6")}
	s.serve("d1")
	s.talks("d1", "e1")
	s.talks("e1", "d1")
	s.unreachable("the same number, without the provider's tag", "d1", "b1")
	r.must("del", r.del(in))
}

// TestVLANRefused is what ADD must not begin with, and what STATUS knows of it.
//
// clause: K13 P11 P21
func TestVLANRefused(t *testing.T) {
	r := newRunner(t, chain{name: "vlan-refused", plugins: []string{`"type":"vlan",` + hostLocal4}})
	r.host = nstest.NewNS(t)
	nstest.RunIn(t, r.host, "sh", "-ec", "ip link add ens3 up type veth peer name ens4; ip link set lo up")
	r.refuses([]refusal{
		{`,"vlanId":100,"master":"esn3"`, `master: "esn3": no such link on the host; there is`, spec.CodeUnavailable},
		{`,"vlanId":100,"master":"esn3"`, `did you mean "ens3"?`, spec.CodeUnavailable},
		{`,"vlanId":100,"master":"ens4"`, `master: "ens4": is down`, spec.CodeUnavailable},
		{`,"vlanId":100,"master":"lo"`, `master: "lo": is lo`, spec.CodeUnavailable},
		{`,"vlanId":100,"master":"ens3","mtu":1501`, `mtu: 1501: ens3 has 1500; want 68 to 1500`, spec.CodeUnavailable},
		{`,"vlanId":100,"master":"ens3","linkInContainer":true`, `it is on the host; without "linkInContainer"`, 0},
		{`,"vlanId":100`, `master: is missing`, spec.CodeConfig},
		{`,"vlanId":4095,"master":"ens3"`, `vlanId: 4095: want a number from 1 to 4094`, spec.CodeConfig},
		{`,"master":"ens3"`, `vlanId: is missing: want`, spec.CodeConfig},
	})
}
