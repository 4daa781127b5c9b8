package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/cluster/probe"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/resource/overlay"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// What tests of a path found is told with its direction and its family.
func TestPathProblems(t *testing.T) {
	const passed, there, back, lost = agentstatus.Passed, agentstatus.LostThere, agentstatus.LostBack, agentstatus.Lost
	four := agentstatus.Inside{Family: "IPv4", Small: passed, Full: passed, UDP: passed, Size: 1450}
	six := four
	six.Family = "IPv6"
	with := func(in agentstatus.Inside, change func(*agentstatus.Inside)) agentstatus.Inside {
		change(&in)
		return in
	}
	small := func(in agentstatus.Inside, r agentstatus.Result) agentstatus.Inside {
		return with(in, func(in *agentstatus.Inside) { in.Small = r })
	}
	for _, tc := range []struct {
		way  agentstatus.Way
		path agentstatus.Path
		want string
	}{
		{agentstatus.VXLAN, agentstatus.Path{Agents: passed, Inside: []agentstatus.Inside{four, six}}, ""},
		{agentstatus.VXLAN, agentstatus.Path{Agents: passed, Inside: []agentstatus.Inside{small(four, there), six}},
			"path-lost-there: UDP 8472 to n2 (192.0.2.2) is dropped on the way there, if it carries IPv4"},
		{agentstatus.WireGuard, agentstatus.Path{Agents: passed, Inside: []agentstatus.Inside{four, small(six, back)}},
			"path-lost-back: UDP 8472 from n2 (192.0.2.2) is dropped on the way back, if it carries IPv6"},
		{agentstatus.Direct, agentstatus.Path{Agents: passed, Inside: []agentstatus.Inside{small(four, back), small(six, back)}},
			"path-lost-back: packets between pods from n2 (192.0.2.2) is dropped on the way back"},
		{agentstatus.VXLAN, agentstatus.Path{Agents: passed, Inside: []agentstatus.Inside{small(four, lost), six}},
			"path-silent: node n2 answers no packets to its pods, if it carries IPv4"},
		{agentstatus.VXLAN, agentstatus.Path{Agents: passed, Inside: []agentstatus.Inside{small(four, lost), small(six, lost)}},
			"path-silent: node n2 answers no packets to its pods"},
		{agentstatus.VXLAN, agentstatus.Path{Agents: lost, Cause: "EPERM", Inside: []agentstatus.Inside{small(four, lost), small(six, lost)}},
			"path-silent: node n2 (192.0.2.2) answers nothing, neither in the tunnel nor at UDP 8473 (this host could not send: EPERM)"},
		{agentstatus.VXLAN, agentstatus.Path{Agents: there, Inside: []agentstatus.Inside{four}},
			"agent-silent: the agent of node n2 (192.0.2.2) sends, and does not receive what this node sends at UDP 8473: " +
				"let agents reach each other there, and look whether it runs"},
		{agentstatus.VXLAN, agentstatus.Path{Agents: passed, Inside: []agentstatus.Inside{
			with(four, func(in *agentstatus.Inside) { in.Full = back })}},
			"path-short: node n2 answers small packets, not 1,450 bytes (IPv4); they are lost on the way back"},
		{agentstatus.VXLAN, agentstatus.Path{Agents: passed, Inside: []agentstatus.Inside{
			with(four, func(in *agentstatus.Inside) { in.Full, in.Size = there, 8950 }),
			with(six, func(in *agentstatus.Inside) { in.Full, in.MTU = there, 900 })}},
			"path-short: node n2 answers small packets, not 8,950 bytes (IPv4)\n" +
				"path-short: node n2 answers small packets, not 1,450 bytes (IPv6); 900 bytes pass, which its routes have as MTU"},
		{agentstatus.VXLAN, agentstatus.Path{Agents: passed, Inside: []agentstatus.Inside{
			with(four, func(in *agentstatus.Inside) { in.UDP = there })}},
			"path-udp: node n2 answers echoes, and datagrams to its pods do not arrive (IPv4): a packet filter of n2 drops UDP 8473 " +
				"there, or a network card corrupts checksums (--tx-checksum off)"},
	} {
		n := agentstatus.Node{Name: "n2", Way: tc.way, Endpoint: netip.MustParseAddr("192.0.2.2"), Path: &tc.path}
		var said []string
		for _, p := range pathProblems(n, 8472, 8473) {
			said = append(said, string(p.Kind)+": "+p.Text)
			if p.Node != "n2" {
				t.Errorf("%s is of node %q", p.Text, p.Node)
			}
		}
		if got := strings.Join(said, "\n"); got != tc.want {
			t.Errorf("%+v: got\n%s\nwant\n%s", tc.path, got, tc.want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 9000: "9,000", 65035: "65,035"} {
		if got := thousands(n); got != want {
			t.Errorf("%d is written %s", n, got)
		}
	}
}

// The status says of a path what its test found, while packets to the node take it.
func TestDescribePaths(t *testing.T) {
	lost := agentstatus.Path{Agents: agentstatus.Lost}
	for name, tc := range map[string]struct {
		node    string
		way     agentstatus.Way
		devices int
		told    bool
	}{
		"tested":           {"n2", agentstatus.VXLAN, 1, true},
		"another node":     {"n3", agentstatus.VXLAN, 1, false},
		"no way any more":  {"n2", agentstatus.None, 1, false},
		"no device is yet": {"n2", agentstatus.VXLAN, 0, false},
	} {
		p := &paths{prober: &probe.Prober{Port: 8473}, found: map[string]agentstatus.Path{"n2": lost}}
		s := agentstatus.Status{Nodes: []agentstatus.Node{{Name: tc.node, Way: tc.way}}, Devices: make([]agentstatus.Device, tc.devices)}
		if p.describe(&s); (s.Nodes[0].Path != nil) != tc.told || (len(s.Problems) > 0) != tc.told {
			t.Errorf("%s: %+v", name, s)
		}
	}
	s := agentstatus.Status{Nodes: []agentstatus.Node{{Name: "n2"}}}
	if new(paths).describe(&s); s.Nodes[0].Path != nil {
		t.Error("an agent that tests nothing found something")
	}
}

// What a comparison could not do is a problem of the node and the prefix that it is about.
func TestProblemOf(t *testing.T) {
	p := netip.MustParsePrefix("10.244.2.0/24")
	for _, tc := range []struct {
		err  error
		want agentstatus.Problem
	}{
		{overlay.TakenRoute{Prefix: p, Link: "eth1"}, agentstatus.Problem{Kind: agentstatus.RouteTaken, Prefix: p, Link: "eth1"}},
		{directory.Conflict{Prefix: p, Loser: "n2", Owner: "n3"}, agentstatus.Problem{Kind: agentstatus.RangeTaken, Node: "n2", Prefix: p}},
		{Occupied{Node: "n2", Prefix: p}, agentstatus.Problem{Kind: agentstatus.RangeTaken, Node: "n2", Prefix: p}},
		{NoCommonFamily{Node: "n2"}, agentstatus.Problem{Kind: agentstatus.NoWay, Node: "n2"}},
		{NotOnLink{Node: "n2"}, agentstatus.Problem{Kind: agentstatus.NoWay, Node: "n2"}},
		{ModesDiffer{Node: "n2"}, agentstatus.Problem{Kind: agentstatus.NoWay, Node: "n2"}},
		{WrongKey{Node: "n2"}, agentstatus.Problem{Kind: agentstatus.NoWay, Node: "n2"}},
		{Missing{What: "node n1 has no range"}, agentstatus.Problem{Kind: agentstatus.NotGranted}},
		{errors.New("EMFILE"), agentstatus.Problem{Kind: agentstatus.Other}},
	} {
		for _, err := range []error{tc.err, fmt.Errorf("node n9: %w", tc.err)} {
			for _, d := range spec.DifferencesIn(err) {
				tc.want.Text = d.Error()
				if got := problemOf(d); got != tc.want {
					t.Errorf("%v is %+v, want %+v", err, got, tc.want)
				}
			}
		}
	}
	way := spec.Missing("")
	way.Object = "n2"
	if got := problemOf(way); got.Kind != agentstatus.NoWay || got.Node != "n2" {
		t.Errorf("a way that is missing is %+v", got)
	}
}

// Each source has words of its own for the same things.
func TestSourceWords(t *testing.T) {
	full := &fs.PathError{Op: "write", Path: "/x", Err: unix.ENOSPC}
	for _, tc := range []struct{ got, want string }{
		{Etcd.String(), "etcd"}, {Kubernetes.String(), "the API server"},
		{Etcd.silent(errors.New("no answer"), "none"), "no answer. Containers keep their ways, and the node keeps its addresses; it gets no more until etcd answers"},
		{Etcd.silent(full, "none"), "it gets no more until this is mended. The agent tries again by itself"},
		{Kubernetes.silent(errors.New("no answer"), "none"), "the API server does not answer: no answer. Pods keep their ways"},
		{Etcd.listNodes(), "`fairlead cluster nodes`"}, {Kubernetes.listNodes(), "`kubectl get nodes`"},
		{Etcd.giveRange(), "`fairlead cluster pools add`"}, {Kubernetes.giveRange(), "--cluster-cidr"},
		{Etcd.noRange("n1").Error(), "node n1 has no block of addresses. `fairlead cluster pools` shows"},
		{Kubernetes.noRange("n1").Error(), "node n1 has no podCIDR. `kubectl get node n1 "},
	} {
		if !strings.Contains(tc.got, tc.want) {
			t.Errorf("%q lacks %q", tc.got, tc.want)
		}
	}
}

// Only what is removed from the agent's tables disturbs it.
func TestDisturbs(t *testing.T) {
	tables := []string{"a", "b"}
	for _, op := range []uint16{unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET} {
		if !disturbs(nft.Change{Op: op, Table: "b"}, tables) || disturbs(nft.Change{Op: op, Table: "c"}, tables) {
			t.Errorf("operation %d", op)
		}
	}
	if disturbs(nft.Change{Op: unix.NFT_MSG_NEWRULE, Table: "a"}, tables) || !disturbs(nft.Change{}, tables) {
		t.Error("a new rule, or changes that were lost")
	}
}

// A node has the addresses of its prefixes.
func TestOwnerOf(t *testing.T) {
	prefix := netip.MustParsePrefix
	nodes := []agentstatus.Node{{Name: "n1", Prefixes: []netip.Prefix{prefix("10.244.1.0/24")}},
		{Name: "n2", Prefixes: []netip.Prefix{prefix("10.244.2.0/24"), prefix("fd00::/64")}}}
	for addr, want := range map[string]string{"10.244.1.9": "n1 10.244.1.0/24", "10.244.2.9": "n2 10.244.2.0/24",
		"fd00::9": "n2 fd00::/64", "10.9.9.9": " invalid Prefix"} {
		name, p := ownerOf(nodes, netip.MustParseAddr(addr))
		if got := name + " " + p.String(); got != want {
			t.Errorf("%s is of %s, want %s", addr, got, want)
		}
	}
}
