package agent

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/kernel/ethtool"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// at is a node with these addresses.
func at(i byte, endpoints ...string) directory.Node {
	n := node(i)
	n.Endpoints = nil
	for _, e := range endpoints {
		n.Endpoints = append(n.Endpoints, netip.MustParseAddr(e))
	}
	return n
}

// The offload of checksums is what the operator says, also after somebody else has changed it.
func TestChecksums(t *testing.T) {
	h := newHost(t, 1)
	for _, sums := range []Checksums{Offloaded, Computed, Offloaded, Computed, AutoSummed} {
		off := sums == Computed
		h.agent.Checksums = sums
		h.start()
		for range 2 { // the first has been compared when the second is taken
			h.tell(node(1), node(2))
		}
		h.stop()
		on, err := ethtool.TxChecksum(h.w.Host, "vx0")
		if err != nil || on == off {
			t.Errorf("on is %v, %v; want %v", on, err, !off)
		}
		if err := ethtool.SetTxChecksum(h.w.Host, "vx0", off); err != nil {
			t.Fatal(err)
		}
	}
}

// Nodes on the same link are reached directly where the mode says so, and others through the tunnel or not at all.
func TestModes(t *testing.T) {
	h := newHost(t, 1)
	contract.Host(t, h.w, "ip addr add 2001:db8::1/64 dev up0 nodad")
	one, two, far := at(1, "192.0.2.1", "2001:db8::1"), at(2, "192.0.2.2", "2001:db8::2"), at(3, "198.51.100.3")
	for _, tc := range []struct {
		mode                Mode
		two, far            string // the links of the routes
		problem, way2, way3 string
		granted             int
	}{
		{"", "vx0", "vx0", "", "vxlan 192.0.2.2 1450", "vxlan 198.51.100.3 1450", 1450},
		{Direct, "up0", "vx0", "", "direct 192.0.2.2 1450", "vxlan 198.51.100.3 1450", 1450},
		{DirectOnly, "up0", "", "node n3 has [198.51.100.3], and is not on the same link as this node, which is in " +
			"[192.0.2.0/24 2001:db8::/64]: nothing leads to 10.244.3.0/24", "direct 192.0.2.2 1500", "none invalid IP 0", 1500},
		{VXLAN, "vx0", "vx0", "", "vxlan 192.0.2.2 1450", "vxlan 198.51.100.3 1450", 1450},
	} {
		h.agent.Mode = tc.mode
		h.start()
		for range 2 { // the first has been compared when the second is taken
			h.tell(one, two, far)
		}
		h.stop()
		for i, n := range []directory.Node{two, far} {
			want := []string{tc.two, tc.far}[i]
			for family, p := range n.Prefixes {
				out := contract.Host(t, h.w, "ip -%d route show %v", []int{4, 6}[family], p)
				if want == "" && out != "" || want != "" && (strings.Count(out, "proto 118") != 1 || !strings.Contains(out, "dev "+want+" ")) {
					t.Errorf("mode %q: %v: %q, want one route by %q", tc.mode, p, out, want)
				}
			}
		}
		s := h.agent.Status()
		ways := []string{fmt.Sprint(s.Nodes[1].Way, " ", s.Nodes[1].Endpoint, " ", s.Nodes[1].MTU), fmt.Sprint(s.Nodes[2].Way, " ", s.Nodes[2].Endpoint, " ", s.Nodes[2].MTU)}
		if ways[0] != tc.way2 || ways[1] != tc.way3 {
			t.Errorf("mode %q: %q; want %q, %q", tc.mode, ways, tc.way2, tc.way3)
		}
		told := ""
		for _, p := range s.Problems {
			told += p.Text
		}
		if !strings.HasPrefix(told, tc.problem) || tc.problem == "" && told != "" {
			t.Errorf("mode %q: %q; want %q", tc.mode, told, tc.problem)
		}
		if g, err := grant.Read("pods1"); err != nil || g.MTU != tc.granted {
			t.Errorf("mode %q: %+v, %v; want an MTU of %d", tc.mode, g, err, tc.granted)
		}
	}
}

// Two nodes use IPv4 if both have it, and else IPv6, in whatever order they name their addresses. There is a device for
// each family that is used, and no other.
func TestFamilies(t *testing.T) {
	h := newHost(t, 1)
	contract.Host(t, h.w, "ip addr add 2001:db8::1/64 dev up0 nodad")
	one := at(1, "2001:db8::1", "192.0.2.1")
	both, six := at(2, "2001:db8::2", "192.0.2.2"), at(3, "2001:db8::3")
	h.start()
	leads := func(what string, n directory.Node, device, dst string) {
		t.Helper()
		h.until(what, func() bool {
			links := contract.Host(t, h.w, "ip -4 route show %v", n.Prefixes[0]) + contract.Host(t, h.w, "ip -6 route show %v", n.Prefixes[1])
			entry := contract.Host(t, h.w, "bridge fdb show")
			return strings.Count(links, "dev "+device+" ") == 2 && strings.Contains(entry, n.MAC+" dev "+device+" dst "+dst)
		})
	}
	has := func(device string) bool {
		_, err := rtnl.IndexOf(h.w.Host, device)
		return err == nil
	}
	h.tell(one, both)
	leads("both families", both, "vx0", "192.0.2.2")
	h.tell(one, both)
	if has("vx06") {
		t.Error("there is a device for IPv6, which no node uses")
	}
	h.tell(one, both, six)
	leads("IPv6 alone", six, "vx06", "2001:db8::3")
	leads("both families beside it", both, "vx0", "192.0.2.2")
	h.tell(one, both, six)
	if g := h.agent.Status(); len(g.Devices) != 2 || g.Nodes[0].MTU != 1430 || g.Nodes[1].MTU != 1450 || g.Nodes[2].MTU != 1430 {
		t.Errorf("%+v", g)
	}

	// A node gets another address, or one of the other family.
	both, six = at(2, "2001:db8::2", "192.0.2.22"), at(3, "2001:db8::3", "192.0.2.3")
	h.tell(one, both, six)
	leads("another address", both, "vx0", "192.0.2.22")
	leads("another family", six, "vx0", "192.0.2.3")
	h.tell(one, both, six)
	if has("vx06") {
		t.Error("the device for IPv6 stays, which no node uses")
	}

	// This node's address changes: nothing goes while its Node object still has the former one.
	index, err := rtnl.IndexOf(h.w.Host, "vx0")
	if err != nil {
		t.Fatal(err)
	}
	contract.Host(t, h.w, "ip addr del 192.0.2.1/24 dev up0")
	contract.Host(t, h.w, "ip addr add 192.0.2.11/24 dev up0")
	h.tell(one, both, six)
	h.tell(one, both, six)
	leads("the own address is away", both, "vx0", "192.0.2.22")
	if s := h.problems(); !strings.Contains(s, "no link of this host has an address of node n1: [192.0.2.1]") {
		t.Errorf("%q", s)
	}
	h.tell(at(1, "2001:db8::1", "192.0.2.11"), both, six)
	h.tell(at(1, "2001:db8::1", "192.0.2.11"), both, six)
	l, err := rtnl.LinkByName(h.w.Host, "vx0")
	if err != nil || l.Index != index || l.Data.VXLAN.Local != netip.MustParseAddr("192.0.2.11") {
		t.Errorf("%+v, %v; want the same device with the address 192.0.2.11", l, err)
	}
	if s := h.agent.Status().Problems; len(s) > 0 {
		t.Error(s)
	}
}
