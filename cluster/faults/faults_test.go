package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// A pair is two nodes of a cluster with an agent and a container each, which send to each other.
type pair struct {
	*cluster
	a, b    *node
	streams []*stream
	send    func() // begins to count again
}

func newPair(t *testing.T) *pair {
	t.Helper()
	c := newCluster(t)
	p := &pair{cluster: c, a: c.newNode(1), b: c.newNode(2)}
	p.a.join()
	p.b.join()
	p.a.startAgent()
	p.b.startAgent()
	podA, addressA := p.a.newPod()
	podB, addressB := p.b.newPod()
	p.send = func() {
		for _, s := range p.streams {
			s.stop()
		}
		p.streams = []*stream{newStream(t, podA, podB, addressB, small), newStream(t, podB, podA, addressA, small),
			newStream(t, podA, podB, addressB, large)}
		p.flow("at first")
	}
	p.send()
	return p
}

// flow waits until packets arrive both ways.
func (p *pair) flow(when string) {
	p.t.Helper()
	for _, s := range p.streams {
		s.flows(when)
	}
}

// restart kills a node's agent, calls a function while there is none, and starts another one.
func (p *pair) restart(n *node, meanwhile func(), before ...string) {
	n.agent.kill()
	meanwhile()
	n.startAgent(before...)
}

// toB is the MAC address and the next hop of node b, as a has them.
func (p *pair) toB() (mac, via string) {
	b := overlay.MAC("kubernetes", p.b.name)
	return b.String(), overlay.NextHop(b).String()
}

func nothing() {}

// A fault is what happens to a cluster of two nodes whose containers send to each other.
type fault struct {
	name string
	do   func(*pair)
	// harmless: not one packet may be lost.
	harmless bool
	// stays: the fault is not corrected, and `fairlead cluster status` says so.
	stays bool
}

// faults are told in docs/cluster.md.
var faults = []fault{
	{"the agent is killed and started", func(p *pair) { p.restart(p.a, nothing) }, true, false},
	{"the API server is away, and the agent is started", func(p *pair) {
		p.api.stop()
		p.restart(p.a, nothing)
		p.flow("no API server")
		p.api.start()
	}, true, false},
	{"the API server has been away for an hour, and the agent is started", func(p *pair) {
		p.api.stop()
		p.restart(p.a, nothing, "unshare", "-T", "--monotonic", "3600", "--boottime", "3600", "--fork", "--kill-child")
		p.flow("an hour later")
		p.api.start()
	}, true, false},
	{"the VXLAN device is deleted", func(p *pair) { p.a.run("ip link del fairlead-vx") }, false, false},
	{"the VXLAN device is set down", func(p *pair) { p.a.run("ip link set fairlead-vx down") }, false, false},
	{"the VXLAN device gets another MAC address", func(p *pair) {
		p.b.run("ip link set fairlead-vx address 02:00:00:00:00:99")
	}, false, false},
	{"a route is deleted", func(p *pair) { p.a.run("ip route del %s", p.b.podCIDR) }, false, false},
	{"a route is pointed elsewhere", func(p *pair) {
		p.a.run("ip route replace %s via inet6 fe80::9 dev fairlead-vx onlink proto 118", p.b.podCIDR)
	}, false, false},
	{"a forwarding entry is deleted", func(p *pair) {
		mac, _ := p.toB()
		p.a.run("bridge fdb del %s dev fairlead-vx self", mac)
	}, false, false},
	{"a forwarding entry is pointed elsewhere", func(p *pair) {
		mac, _ := p.toB()
		p.a.run("bridge fdb replace %s dev fairlead-vx dst 192.0.2.99 self permanent", mac)
	}, false, false},
	{"a neighbour is deleted", func(p *pair) {
		_, via := p.toB()
		p.a.run("ip neigh del %s dev fairlead-vx", via)
	}, false, false},
	{"a neighbour gets another MAC address", func(p *pair) {
		_, via := p.toB()
		p.a.run("ip neigh replace %s lladdr 02:00:00:00:00:99 dev fairlead-vx nud permanent", via)
	}, false, false},
	{"a node gets another InternalIP", func(p *pair) {
		p.b.run("ip addr del 192.0.2.2/24 dev eth0; ip addr add 192.0.2.22/24 dev eth0")
		p.b.address = "192.0.2.22"
		p.b.join()
	}, false, false},
	{"a node is registered again", func(p *pair) {
		p.api.remove(p.b.name)
		p.a.until(p.b.podCIDR, false)
		p.b.join()
	}, false, false},
	{"two nodes have one podCIDR", func(p *pair) {
		twin := p.newNode(3)
		twin.podCIDR = p.b.podCIDR
		twin.join()
		p.a.agent.says("node n3 has " + twin.podCIDR + ", which overlaps " + twin.podCIDR + " of node n2")
	}, true, true},
	{"200 nodes join at once", func(p *pair) {
		p.join(200)
		p.a.has(200)
	}, true, false},
	{"another program makes a VXLAN device on the port", func(p *pair) {
		p.a.run("ip link add other type vxlan id 1 dstport 8472 local 192.0.2.1; ip link set other up; ip link del other")
	}, true, false},
	{"a segment between the nodes carries 1,400 bytes from now on", func(p *pair) {
		nstest.Run(p.t, "ip", "link", "set", "port2", "mtu", "1400") // a bridge adds the 4 bytes of a tag
		await(p.t, p.a.netns, func() bool { return strings.Contains(p.a.run("ip route show %s", p.b.podCIDR), "mtu 1354") })
	}, false, true},
	{"firewalld is reloaded", func(p *pair) {
		nstest.StartFirewalld(p.t, p.a.netns)
		for _, port := range []string{"8472/udp", "8473/udp"} {
			nstest.Run(p.t, "firewall-cmd", "--permanent", "--add-port="+port)
		}
		nstest.Run(p.t, "firewall-cmd", "--permanent", "--zone=trusted", "--add-source=10.244.0.0/16")
		nstest.Run(p.t, "firewall-cmd", "--reload")
		p.send()
		nstest.Run(p.t, "firewall-cmd", "--reload")
	}, false, false},
	{"nf_tables are flushed", func(p *pair) { p.a.run("nft flush ruleset") }, true, false},
}

// join makes Node objects of that many nodes that have no machine.
func (c *cluster) join(count int) {
	for i := range count {
		c.api.set(fmt.Sprint("x", i), []string{fmt.Sprintf("198.51.100.%d", i%250+1)}, []string{fmt.Sprintf("10.%d.%d.0/24", 100+i/250, i%250)})
	}
}

// has waits until the node has routes to that many nodes that have no machine.
func (n *node) has(count int) {
	n.c.t.Helper()
	n.until(fmt.Sprintf("10.%d.%d.0/24", 100+(count-1)/250, (count-1)%250), true) // seldom the last one
	await(n.c.t, n.netns, func() bool { return strings.Count(n.run("ip route show dev fairlead-vx"), "10.10") == count })
}

// TestFaults breaks the way between two nodes while packets pass, and counts what is lost. It ends when packets pass
// again, and says how long the outage was: the time between the first and the last packet that was lost.
func TestFaults(t *testing.T) {
	for _, f := range faults {
		nstest.Apart(t, strings.ReplaceAll(f.name, " ", "_"), func(t *testing.T) {
			p := newPair(t)
			before := overloaded(t)
			f.do(p)
			p.flow(f.name)

			lost, longest := 0, time.Duration(0)
			for _, s := range p.streams {
				n, outage := s.stop()
				lost += n
				longest = max(longest, outage)
			}
			t.Logf("| %s | %d | %v |", f.name, lost, longest.Round(time.Millisecond))
			if dropped := overloaded(t) - before; f.harmless && lost > dropped {
				t.Errorf("%d packets are lost in %v, want none; this busy machine dropped %d", lost, longest, dropped)
			}
			if whole := p.a.whole(); whole == f.stays {
				t.Errorf("`fairlead cluster status` finds a fault: %v, want %v", !whole, f.stays)
			}
		})
	}
}

// A node that joins anew with another range is reached by it, and nothing goes to the former one.
func TestAnotherRange(t *testing.T) {
	p := newPair(t)
	former := p.b.podCIDR
	p.api.remove(p.b.name)
	p.a.until(former, false)
	p.b.podCIDR = "10.244.9.0/24"
	p.b.join()
	p.a.until(p.b.podCIDR, true)
	podA, addressA := p.a.newPod()
	podB, addressB := p.b.newPod()
	if !strings.HasPrefix(addressB, "10.244.9.") {
		t.Errorf("a container that is attached now has %s", addressB)
	}
	newStream(t, podA, podB, addressB, small).flows("there")
	newStream(t, podB, podA, addressA, small).flows("back")
}

// until waits until the node has a route to a range, or has none.
func (n *node) until(podCIDR string, route bool) {
	n.c.t.Helper()
	await(n.c.t, n.netns, func() bool { return (n.run("ip route show %s", podCIDR) != "") == route })
}

// whole reports whether `fairlead cluster status` finds no fault on the node, to which packets pass. Nodes without a machine
// are silent, and so may the API server be.
func (n *node) whole() bool {
	n.c.t.Helper()
	line := n.inside(nstest.Fairlead(n.c.t, tree), "cluster", "status", "-o", "json")
	out, err := exec.Command(line[0], line[1:]...).Output()
	var faulty *exec.ExitError
	if err != nil && !errors.As(err, &faulty) {
		n.c.t.Fatal(err)
	}
	var status agentstatus.Status
	if err := json.Unmarshal(out, &status); err != nil {
		n.c.t.Fatalf("%v: %s", err, out)
	}
	elsewhere := []agentstatus.Kind{agentstatus.PathSilent, agentstatus.APISilent}
	faults := slices.DeleteFunc(status.Problems, func(p agentstatus.Problem) bool { return slices.Contains(elsewhere, p.Kind) })
	lost := []agentstatus.Kind{agentstatus.PathLostThere, agentstatus.PathLostBack, agentstatus.PathUDP}
	for _, p := range faults {
		n.c.t.Log(p.Kind, p.Text)
		if slices.Contains(lost, p.Kind) { // a test of the path found it, before the fault was mended
			n.agent.says(fmt.Sprintf("node=%s state=%s", p.Node, agentstatus.PathWhole))
			return n.whole()
		}
	}
	return len(faults) == 0
}
