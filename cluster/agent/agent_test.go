package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// The test binary is the agent's program, which follows packets in a process of its own.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == ArrivalVerb {
		if err := FollowArrival(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	nstest.Main(m)
}

// node is node i, which has the address 192.0.2.i and the prefixes 10.244.i.0/24 and fd00:i::/64.
func node(i byte) directory.Node {
	name := fmt.Sprint("n", i)
	return directory.Node{Name: name, Joined: int64(i), MAC: overlay.MAC("c", name).String(),
		Endpoints: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, i})},
		Prefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, i, 0}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 3: i}), 64)}}
}

// A host is a machine with an uplink, on which an agent can run.
type host struct {
	t     *testing.T
	w     *kernel.World
	agent *Agent

	updates chan []directory.Node
	stop    func()
}

// newHost is the machine of node i.
func newHost(t *testing.T, i byte) *host {
	nstest.Need(t, "vxlan", "id", "1", "dstport", "1")
	h := &host{t: t, w: contract.NewWorld(t), updates: make(chan []directory.Node)}
	contract.IPBatch(t, h.w.Host.Path, fmt.Sprintf("link add up0 type veth peer name up1\nlink set up0 up\nlink set up1 up\n"+
		"addr add 192.0.2.%d/24 dev up0", i))
	h.agent = h.newAgent(i)
	return h
}

func (h *host) newAgent(i byte) *Agent {
	return &Agent{Cluster: "c", Node: fmt.Sprint("n", i), Network: fmt.Sprint("pods", i), World: h.w, Device: "vx0",
		ID: 7, Port: 8472, Saved: directory.File{Path: filepath.Join(h.t.TempDir(), "nodes.json")},
		Log: slog.New(slog.NewTextHandler(h.t.Output(), nil))}
}

// start runs the agent.
func (h *host) start() {
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan error)
	go func() { done <- h.agent.Run(ctx, h.updates) }()
	h.stop = func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Error(err)
		}
		h.stop = func() {}
	}
	h.t.Cleanup(func() { h.stop() })
}

// tell has the cluster say which nodes it has.
func (h *host) tell(nodes ...directory.Node) { h.updates <- nodes }

// until waits until the kernel has what check wants of node n at this host.
func (h *host) until(what string, check func() bool) {
	h.t.Helper()
	groups := []uint{rtnl.LinkEvents, rtnl.NeighbourEvents, rtnl.IPv4RouteEvents, rtnl.IPv6RouteEvents}
	err := rtnl.Await(h.w.Host, h.t.Context(), nstest.Patience(h.t), groups, func() (bool, error) { return check(), nil })
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", what, err, h.state())
	}
}

// peer reports whether the host has the way to a node, with all that the node has.
func (h *host) peer(n directory.Node, own directory.Node) func() bool {
	p, err := h.agent.peers([]directory.Node{n}, own, []uplink{{addr: own.Endpoints[0]}})
	if err != nil || len(p) != 1 {
		h.t.Fatal(p, err)
	}
	return func() bool { return p[0].Verify(h.t.Context(), h.w) == nil }
}

func (h *host) state() string {
	out := nstest.RunIn(h.t, h.w.Host.Path, "sh", "-c", "ip -d link show dev vx0; ip addr show dev vx0; ip neigh show dev vx0 nud permanent; "+
		"bridge fdb show dev vx0; ip route show dev vx0; ip -6 route show dev vx0 proto 118")
	return strings.ReplaceAll(out, " tentative", "") // which ends after a second
}

// The kernel is what the cluster says, and stays so, whoever changes it; with no cluster to ask, everything stays.
func TestAgent(t *testing.T) {
	h := newHost(t, 1)
	one, two, three := node(1), node(2), node(3)
	h.start()
	h.tell(one, two, three)
	toTwo, toThree := h.peer(two, one), h.peer(three, one)
	h.until("two nodes", func() bool { return toTwo() && toThree() })

	for _, damage := range []string{"ip route del 10.244.2.0/24", "ip -6 route del fd00:0002::/64",
		"ip neigh flush dev vx0 nud permanent", "bridge fdb del " + two.MAC + " dev vx0 self", "ip link set vx0 down",
		"ip link set vx0 mtu 1300", "ip link del vx0", "ip addr del 10.244.1.1/32 dev vx0"} {
		contract.Host(t, h.w, "%s", damage)
		h.until(damage, func() bool {
			l, err := rtnl.LinkByName(h.w.Host, "vx0")
			return err == nil && l.MTU == 1450 && l.Up && toTwo() && toThree() && strings.Contains(h.state(), "inet 10.244.1.1/32")
		})
	}

	two.Endpoints = []netip.Addr{netip.MustParseAddr("192.0.2.22")}
	h.tell(one, two, three)
	h.until("another address", h.peer(two, one))
	silent := two
	silent.Endpoints = nil
	h.tell(one, silent, three)
	h.tell(one, silent, three) // the first has been compared when the second is taken
	if !h.peer(two, one)() {
		t.Error("a node that says no address lost its way")
	}

	h.stop()
	before := h.state()
	again := h.newAgent(1)
	again.Saved = h.agent.Saved
	contract.Host(t, h.w, "ip route del 10.244.3.0/24")
	h.agent = again
	h.start()
	h.until("restart without the cluster", toThree)
	h.stop()
	if after := h.state(); after != before {
		t.Errorf("a restart without the cluster changed: %s", contract.Difference(before, after))
	}

	h.start()
	h.tell(one, three)
	h.until("a node that is gone", func() bool { return !strings.Contains(h.state(), two.MAC) && toThree() })
	h.tell(one, three) // is taken when the last comparison has ended
	contract.Verify(t, h.w, masquerade.Nodes{Network: "pods1", Prefixes: slices.Concat(one.Prefixes, three.Prefixes)})
}

// The status names each node with its way, and what is wrong.
func TestStatus(t *testing.T) {
	h := newHost(t, 1)
	l, err := Listen(agentstatus.Socket("pods1"))
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(agentstatus.Socket("pods1")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", st, err)
	}
	go h.agent.Serve(t.Context(), l)
	ask := func() *agentstatus.Status {
		t.Helper()
		s, err := agentstatus.Ask(t.Context(), "pods1")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := ask(); s.Node != "n1" || !s.Heard.IsZero() || len(s.Nodes) > 0 {
		t.Errorf("before the cluster has told anything: %+v", s)
	}
	contract.Host(t, h.w, "ip route add 10.244.3.0/24 dev up0 proto 99")
	h.start()
	foreign := node(4)
	foreign.Endpoints = []netip.Addr{netip.MustParseAddr("2001:db8::4")}
	for range 2 { // the first has been compared when the second is taken
		h.tell(node(1), node(2), node(3), foreign)
	}
	s := ask()
	ways := ""
	for _, n := range s.Nodes {
		ways += fmt.Sprintln(n.Name, n.Way, n.Endpoint, n.MTU, n.Prefixes)
	}
	if want := `n1 here 192.0.2.1 1450 [10.244.1.0/24 fd00:1::/64]
n2 vxlan 192.0.2.2 1450 [10.244.2.0/24 fd00:2::/64]
n3 none invalid IP 0 [10.244.3.0/24 fd00:3::/64]
n4 none invalid IP 0 [10.244.4.0/24 fd00:4::/64]
`; ways != want {
		t.Errorf("got\n%swant\n%s", ways, want)
	}
	told := ""
	for _, p := range s.Problems {
		told += fmt.Sprintln(p.Kind, p.Node, p.Prefix, p.Link, p.Text)
	}
	for _, want := range []string{"route-taken n3 10.244.3.0/24 up0 ", "another program's route takes 10.244.3.0/24 (proto 99, dev up0)",
		"no-way n4 ", "nodes n4 and n1 have no addresses of one family: n4 has [2001:db8::4], n1 has [192.0.2.1]"} {
		if !strings.Contains(told, want) {
			t.Errorf("no %q in %q", want, told)
		}
	}
	if len(s.Problems) != 2 || s.Heard.IsZero() || len(s.Devices) != 1 || s.Devices[0].Uplink != "up0" || s.Devices[0].Local != s.Nodes[0].Endpoint {
		t.Errorf("%+v", s)
	}

	// What the agent saves is a status, too.
	h.agent.Saved.Path = agentstatus.Saved("pods1")
	if err := h.agent.Saved.Save("c", []directory.Node{node(2)}); err != nil {
		t.Fatal(err)
	}
	last, err := agentstatus.Last("pods1")
	want := agentstatus.Node{Name: "n2", Endpoints: node(2).Endpoints, Prefixes: node(2).Prefixes, MAC: node(2).MAC}
	if err != nil || last.Cluster != "c" || len(last.Nodes) != 1 || !reflect.DeepEqual(last.Nodes[0], want) {
		t.Errorf("%+v, %v; want %+v", last, err, want)
	}
}

// The grant is this node's range, from the moment that the cluster says it.
func TestGrant(t *testing.T) {
	h := newHost(t, 1)
	one, two := node(1), node(2)
	if err := h.agent.Saved.Save("c", []directory.Node{one, two}); err != nil {
		t.Fatal(err)
	}
	granted := func() string {
		g, err := grant.Read("pods1")
		if err != nil {
			return err.Error()
		}
		return strings.Trim(fmt.Sprintln(g.Cluster, g.Node, g.Ranges, g.MTU, g.Prefixes), "\n")
	}
	says := func(when, want string) {
		t.Helper()
		if got := granted(); !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %q", when, got, want)
		}
	}
	tell := func(nodes ...directory.Node) { // and wait until it was compared
		h.tell(nodes...)
		h.tell(nodes...)
	}
	services := make(chan []netip.Prefix)
	h.agent.Services = services
	h.start()
	h.until("the saved nodes", h.peer(two, one))
	says("the cluster has said nothing since the boot", "is missing")

	bare := one
	bare.Prefixes = nil
	tell(bare, two)
	says("no podCIDR", "grants no range: node n1 has no podCIDR")
	tell(two)
	says("no node", "grants no range: the cluster has no node n1")
	homeless := node(1)
	homeless.Endpoints = []netip.Addr{netip.MustParseAddr("192.0.2.77")}
	tell(homeless, two)
	says("another host's address", "no link of this host has an address of node n1: [192.0.2.77]")
	twin := two
	twin.Prefixes, twin.Joined = one.Prefixes, one.Joined-1
	tell(one, twin)
	says("an older node has the range", "node n2 has 10.244.1.0/24, which node n1 has too, and joined before")
	contract.Host(t, h.w, "ip addr add 10.244.1.9/24 dev up0")
	tell(one, two)
	says("a range of the host's own network", "10.244.1.0/24 of node n1 overlaps the network 10.244.1.0/24 of link up0")
	services <- []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	contract.Host(t, h.w, "ip addr del 10.244.1.9/24 dev up0")
	tell(one, two)
	says("a range of Services", "10.244.1.0/24 of node n1 overlaps the range 10.244.0.0/16 of the cluster's Services")
	services <- []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}
	tell(one, two)
	says("all is well", "c n1 [10.244.1.0/24 fd00:1::/64] 1450 [10.244.1.0/24 fd00:1::/64 10.244.2.0/24 fd00:2::/64]")
	before, err := os.Stat(grant.Path("pods1"))
	if err != nil {
		t.Fatal(err)
	}
	tell(one, two)
	if after, err := os.Stat(grant.Path("pods1")); err != nil || !os.SameFile(before, after) {
		t.Errorf("a grant that says the same was written again: %v", err)
	}
	tell(bare, two)
	says("no podCIDR any more", "c n1 [10.244.1.0/24") // which Kubernetes does not do
	tell(two)
	says("no Node object any more", "c n1 [10.244.1.0/24")
	heir := node(3)
	heir.Prefixes = one.Prefixes
	tell(two, heir)
	says("another node has the range", "grants no range: the cluster has no node n1")
	tell(one, two)
	says("the node is back", "c n1 [10.244.1.0/24")
	tell(one, twin)
	says("an older node came with the range", "node n2 has 10.244.1.0/24, which node n1 has too, and joined before")
}
