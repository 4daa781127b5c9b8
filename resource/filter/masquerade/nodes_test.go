package masquerade_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
)

// nodesOf are the nodes of the network that tests have, with these prefixes.
func nodesOf(prefixes ...string) masquerade.Nodes {
	n := masquerade.Nodes{Network: contract.Owner.Network}
	for _, p := range prefixes {
		n.Prefixes = append(n.Prefixes, contract.Prefix(p))
	}
	return n
}

// nodesSet is what nft(8) shows of the set of a family, without blanks.
func nodesSet(t *testing.T, list, family string) string {
	t.Helper()
	_, set, _ := strings.Cut(list, "set nodes_"+family+"_")
	_, elements, found := strings.Cut(strings.Split(set, "}\n\t}")[0], "elements = {")
	if !found {
		return ""
	}
	return strings.Join(strings.Fields(elements), " ")
}

// The sets have the prefixes of all nodes, those that follow each other too, and a change is one transaction of what
// differs.
func TestNodes(t *testing.T) {
	w := contract.NewWorld(t)
	n := nodesOf("10.244.1.0/24", "10.244.2.0/24", "255.255.255.0/24", "fd00:1::/64")
	filtertest.Test(t, w, n,
		contract.Break("one missing", func(t *testing.T) {
			name := strings.Fields(nstest.RunIn(t, w.Host.Path, "sh", "-c", "nft list sets | grep nodes_ip_"))[1]
			filtertest.NFT(t, w, "delete element inet fairlead "+name+" { 10.244.1.0/24 }")
		}, "{ 10.244.1.0 } is missing"),
		contract.Break("delete table", func(t *testing.T) { filtertest.NFT(t, w, "delete table inet fairlead") },
			"nft table inet fairlead is missing"),
	)

	const end = "255.255.255.0/24"
	for _, step := range []struct{ prefixes, want string }{
		{"10.244.1.0/24 10.244.2.0/24 " + end, "10.244.1.0/24, 10.244.2.0/24, 255.255.255.0-255.255.255.255"},
		{"10.244.1.0/24 10.244.2.0/23", "10.244.1.0/24, 10.244.2.0/23"},
		{"10.244.2.0/25 10.244.2.128/25", "10.244.2.0/25, 10.244.2.128/25"},
		{"10.244.2.128/25 10.244.1.0/24", "10.244.1.0/24, 10.244.2.128/25"},
		{"", ""},
	} {
		n := nodesOf(strings.Fields(step.prefixes)...)
		contract.Ensure(t, w, n)
		contract.Verify(t, w, n)
		if got := nodesSet(t, filtertest.State(t, w), "ip"); got != step.want && got != strings.Replace(step.want, "255.255.255.0-255.255.255.255", end, 1) {
			t.Errorf("%q: the set has %q, want %q", step.prefixes, got, step.want)
		}
	}
}

// Packets to the containers of other nodes keep their source: as the grant says until the agent has said more, and as
// the agent says from then on. GC leaves the set, and an ADD fills one that was flushed.
func TestMasqueradeCluster(t *testing.T) {
	l := filtertest.NewLab(t)
	for _, at := range []string{"tcp", "udp"} {
		l.Serve(l.Neighbour, "neighbour", at, ":80")
		l.Serve(l.Remote, "beyond", at, ":80")
	}
	m := masquerade.Sources{Owner: l.OwnerA, From: []netip.Prefix{l.ToA, l.ToA6}, Cluster: true}
	sees := func(when, beyond, beyond6 string) {
		t.Helper()
		t.Log(when)
		contract.Verify(t, l.W, m)
		for _, network := range []string{"tcp", "udp"} {
			l.Expect(l.A, network, "192.0.2.2:80", "neighbour 192.0.2.1")
			l.Expect(l.A, network, "198.51.100.2:80", "beyond "+beyond)
			l.Expect(l.A, network, "[2001:db8:1::2]:80", "beyond "+beyond6)
		}
	}
	own := []netip.Prefix{l.ToA.Masked(), l.ToA6.Masked()}
	give := func(others ...string) {
		t.Helper()
		boot, err := grant.Boot()
		if err != nil {
			t.Fatal(err)
		}
		g := grant.Grant{Cluster: "c", Node: "a", Boot: boot, Ranges: own, Prefixes: own}
		for _, p := range others {
			g.Prefixes = append(g.Prefixes, contract.Prefix(p))
		}
		if err := grant.Write(l.OwnerA.Network, g); err != nil {
			t.Fatal(err)
		}
	}
	const public, public6, private, private6 = "198.51.100.1", "2001:db8:1::1", "10.1.2.5", "fd00::5"

	give("198.51.100.0/24", "2001:db8:1::/64")
	l.Ensure(m, l.W)
	sees("as the grant says", private, private6)

	give()
	if changed, err := m.Ensure(t.Context(), l.W); changed || err != nil {
		t.Errorf("changed %v, %v: the sets are the agent's", changed, err)
	}
	nodes := masquerade.Nodes{Network: l.OwnerA.Network, Prefixes: append(own, contract.Prefix("198.51.100.0/24"))}
	l.Ensure(nodes, l.W)
	sees("as the agent says", private, public6)

	if err := filtertest.Sweep(t.Context(), l.W, l.OwnerA.Network, nil); err != nil {
		t.Fatal(err)
	}
	contract.Verify(t, l.W, nodes)
	l.Ensure(m, l.W)
	sees("after GC", private, public6)

	contract.Remove(t, l.W, nodes)
	if err := m.Verify(t.Context(), l.W); err == nil || !strings.Contains(err.Error(), "{ 10.1.2.0 } is missing") {
		t.Errorf("the sets are empty: %v", err)
	}
	l.Ensure(m, l.W)
	sees("filled again", public, public6)
}

// A pinned address is one of the cluster's by itself: other nodes have others of its pool.
func TestMasqueradePinned(t *testing.T) {
	w := contract.NewWorld(t)
	boot, err := grant.Boot()
	if err != nil {
		t.Fatal(err)
	}
	own := contract.Prefix("10.9.0.7/28")
	m := masquerade.Sources{Owner: contract.Owner, From: []netip.Prefix{own}, Cluster: true}
	for _, of := range []string{"10.9.0.7/32", "10.9.0.8/32"} { // its own, and another node's before the agent says more
		g := grant.Grant{Cluster: "c", Node: "a", Boot: boot, Prefixes: []netip.Prefix{contract.Prefix(of)}}
		if err := grant.Write("net", g); err != nil {
			t.Fatal(err)
		}
		contract.Remove(t, w, masquerade.Nodes{Network: "net"})
		if _, err := m.Ensure(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		contract.Verify(t, w, m)
	}
}
