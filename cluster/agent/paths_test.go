package agent

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/probe"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/ethtool"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// testsOf hands on the ends of tests that change what an agent knows.
type testsOf struct {
	slog.Handler
	ended chan bool
}

func (h testsOf) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == pathChanged {
		h.ended <- true
	}
	return h.Handler.Handle(ctx, r)
}

// newPair are the machines of nodes 1 and 2 on a switch, with agents that test the path between them.
func newPair(t *testing.T, rules string, set ...func(*Agent)) (one *host, sw *kernel.NS, ended chan bool) {
	one, two := newHost(t, 1), newHost(t, 2)
	ended = make(chan bool, 10)
	sw = contract.OpenNS(t)
	nstest.RunIn(t, sw.Path, "sh", "-ec", "ip link add br0 type bridge; ip link set br0 up")
	for i, h := range []*host{one, two} {
		port := []string{"port1", "port2"}[i]
		nstest.RunIn(t, h.w.Host.Path, "ip", "link", "set", "up1", "name", port, "netns", sw.Path)
		nstest.RunIn(t, sw.Path, "ip", "link", "set", port, "master", "br0", "up")
		h.agent.ProbePort, h.agent.ProbeEvery = 8473, probe.LeastEvery
		for _, f := range set {
			f(h.agent)
		}
	}
	one.agent.Log = slog.New(testsOf{one.agent.Log.Handler(), ended})
	if rules != "" {
		nstest.RunIn(t, sw.Path, "nft", "add table bridge t; add chain bridge t f { type filter hook forward priority 0; }; "+
			"add rule bridge t f "+rules)
	}
	for _, h := range []*host{one, two} {
		h.start()
		h.tell(node(1), node(2))
	}
	return one, sw, ended
}

// The status names what is lost between two nodes, and in which direction.
func TestStatusOfPaths(t *testing.T) {
	const there = `path-lost-there: UDP 8472 to n2 (192.0.2.2) is dropped on the way there`
	for _, c := range []struct{ name, rules, want string }{
		{"whole", "", ""},
		{"the tunnel there", "ip saddr 192.0.2.1 udp dport 8472 drop", there},
		{"the tunnel back", "ip saddr 192.0.2.2 udp dport 8472 drop",
			"path-lost-back: UDP 8472 from n2 (192.0.2.2) is dropped on the way back"},
		{"agents", "udp dport 8473 drop", "agent-silent: the agent of node n2 (192.0.2.2) does not answer at UDP 8473: " +
			"let agents reach each other there, and look whether it runs"},
		{"everything", "ip protocol udp drop",
			"path-silent: node n2 (192.0.2.2) answers nothing, neither in the tunnel nor at UDP 8473"},
	} {
		t.Run(c.name, func(t *testing.T) {
			one, _, ended := newPair(t, c.rules)
			select {
			case <-ended:
			case <-nstest.Context(t).Done():
				t.Fatal("no test ended")
			}
			s := one.agent.Status()
			var said []string
			for _, p := range s.Problems {
				said = append(said, string(p.Kind)+": "+p.Text)
			}
			if got := strings.Join(said, "\n"); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			path := s.Nodes[1].Path
			if path == nil || path.Whole() != (c.want == "") || path.Tested.IsZero() || s.Nodes[0].Path != nil {
				t.Errorf("%+v", path)
			}
		})
	}
}

// A path that is too short for full packets gets an MTU on its routes, which goes when the path is whole.
func TestShortPath(t *testing.T) {
	t.Parallel()
	one, sw, ended := newPair(t, "ip length > 1400 drop")
	mtu := func(want int) func() bool {
		return func() bool { return mtuOf(t, one.w.Host) == want }
	}
	one.until("an MTU of 1350", mtu(1350))
	<-ended
	s := one.agent.Status()
	if len(s.Problems) != 2 || s.Problems[0].Kind != agentstatus.PathShort || s.Problems[0].MTU != 1350 ||
		s.Problems[0].Text != "node n2 answers small packets, not 1,450 bytes (IPv4); 1,350 bytes pass, which its routes have as MTU" {
		t.Errorf("%+v", s.Problems)
	}
	one.stop()
	again := one.newAgent(1)
	again.Saved = one.agent.Saved
	again.ProbePort, again.ProbeEvery = one.agent.ProbePort, one.agent.ProbeEvery
	one.agent = again
	one.start()
	for range 2 { // the first has been compared when the second is taken
		one.tell(node(1), node(2))
	}
	if got := mtuOf(t, one.w.Host); got != 1350 {
		t.Errorf("a restart made the route's MTU %d", got)
	}
	nstest.RunIn(t, sw.Path, "nft", "flush ruleset")
	one.until("no MTU", mtu(0))
}

// mtuOf returns the MTU of the route to node 2.
func mtuOf(t *testing.T, ns *kernel.NS) int {
	routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: rtnl.IPv4, Table: rtnl.MainTable, Protocol: 118})
	if err != nil || len(routes) != 1 {
		return -1
	}
	return routes[0].MTU
}

// wayTo returns the name of the link of the route to node 2.
func wayTo(t *testing.T, ns *kernel.NS) string {
	routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: rtnl.IPv4, Table: rtnl.MainTable, Protocol: 118})
	if err != nil || len(routes) != 1 {
		return fmt.Sprint(routes, err)
	}
	l, err := rtnl.LinkByIndex(ns, routes[0].Link)
	if err != nil {
		return err.Error()
	}
	return l.Name
}

// With --mode auto, packets go by the link when the other node says that they arrive so, and through the tunnel when
// they do not any more. What a network drops whose addresses it does not know goes through the tunnel.
func TestAutoMode(t *testing.T) {
	t.Parallel()
	one, sw, ended := newPair(t, "ip saddr 10.244.0.0/16 drop", func(a *Agent) { a.Mode = Auto })
	way := func(want string) func() bool { return func() bool { return wayTo(t, one.w.Host) == want } }
	<-ended
	if got := wayTo(t, one.w.Host); got != "vx0" {
		t.Errorf("the network drops what comes from containers, and they send by %s", got)
	}
	if s := one.agent.Status(); len(s.Problems) > 0 || s.Nodes[1].Path.Inside[0].Link != agentstatus.LostThere {
		t.Errorf("%+v, %+v", s.Problems, s.Nodes[1].Path)
	}
	nstest.RunIn(t, sw.Path, "nft", "flush ruleset")
	one.until("a way by the link", way("up0"))
	if got := mtuOf(t, one.w.Host); got != 1450 {
		t.Errorf("the MTU of the route by the link is %d, want that of the tunnel", got)
	}
	one.stop()
	again := one.newAgent(1)
	again.Saved, again.Mode = one.agent.Saved, Auto
	again.ProbePort, again.ProbeEvery = one.agent.ProbePort, one.agent.ProbeEvery
	one.agent = again
	one.start()
	for range 2 { // the first has been compared when the second is taken
		one.tell(node(1), node(2))
	}
	if got := wayTo(t, one.w.Host); got != "up0" {
		t.Errorf("a restart changed the way to %s", got)
	}
	nstest.RunIn(t, sw.Path, "nft", "add table bridge t; add chain bridge t f { type filter hook forward priority 0; }; "+
		"add rule bridge t f ip saddr 10.244.0.0/16 drop")
	one.until("the way through the tunnel", way("vx0"))
}

// offloads reports whether the offload of checksums is what is wanted.
func offloads(h *host, want bool) func() bool {
	return func() bool {
		on, err := ethtool.TxChecksum(h.w.Host, "vx0")
		return err == nil && on == want
	}
}

// A network card that corrupts the checksums of packets in VXLAN is done without. The rule sees the sum that a card would
// complete, which a veth never does: it is that of the addresses.
func TestCorruptChecksums(t *testing.T) {
	t.Parallel()
	pseudo := func() (sum uint32) {
		for _, v := range []uint32{0x0af4, 0x0101, 0x0af4, 0x0201, 17, 8 + 16} { // 10.244.1.1, 10.244.2.1, UDP, its length
			sum += v
		}
		return sum>>16 + sum&0xffff
	}()
	// Outer IPv4 and UDP, VXLAN, Ethernet, IPv4: 20+8+8+14+20; the checksum has the offset 6 in UDP.
	const at = (20 + 8 + 8 + 14 + 20 + 6) * 8
	corrupt := fmt.Sprintf("ip saddr 192.0.2.1 udp dport 8472 @nh,%d,16 0x%04x drop", at, pseudo)
	one, _, ended := newPair(t, corrupt, func(a *Agent) { a.Checksums = AutoSummed })
	one.until("no offload", offloads(one, false))
	<-ended
	<-ended // the path is whole now
	if s := one.agent.Status(); len(s.Problems) > 0 || !s.Nodes[1].Path.Whole() || !offloads(one, false)() {
		t.Errorf("%+v, %+v", s.Problems, s.Nodes[1].Path)
	}
}

// A packet filter that drops datagrams in the tunnel is no network card that corrupts them: the offload is on again.
func TestDroppedDatagrams(t *testing.T) {
	t.Parallel()
	// As above; the port that packets in the tunnel go to has the offset 2 in UDP.
	const at = (20 + 8 + 8 + 14 + 20 + 2) * 8
	one, _, _ := newPair(t, fmt.Sprintf("ip saddr 192.0.2.1 udp dport 8472 @nh,%d,16 8473 drop", at),
		func(a *Agent) { a.Checksums = AutoSummed })
	one.until("no offload", offloads(one, false))
	one.until("the offload again", offloads(one, true))
	s := one.agent.Status()
	if len(s.Problems) != 1 || s.Problems[0].Kind != agentstatus.PathUDP {
		t.Errorf("%+v", s.Problems)
	}
}
