package faults

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// newKey gives the agents of a cluster a secret that they share.
func (c *cluster) newKey() {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(rand.Text()+rand.Text()), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.flags = append(c.flags, "--key-file", file)
}

// trace follows a packet on a node, and returns what the command says.
func (n *node) trace(args string) (said string, failed bool) {
	n.c.t.Helper()
	said, failed = n.try(nstest.Fairlead(n.c.t, tree) + " trace " + args)
	n.c.t.Log(said)
	return said, failed
}

// newTraced is two nodes with a key, whose agents run with more flags, that of the second one behind another command if
// there is one. It returns the namespace of a container of the first one, and the address of one of the second.
func newTraced(t *testing.T, before []string, flags ...string) (a, b *node, podA, addressB string) {
	t.Helper()
	ownPlugins(t)
	c := newCluster(t)
	c.newKey()
	c.flags = append(c.flags, flags...)
	a, b = c.newNode(1), c.newNode(2)
	a.join()
	b.join()
	a.startAgent()
	b.startAgent(before...)
	podA, _ = a.newPod()
	_, addressB = b.newPod()
	return a, b, podA, addressB
}

// wants reports whether what trace says has each of the texts.
func wants(t *testing.T, said string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(said, text) {
			t.Errorf("want %q", text)
		}
	}
}

// A packet is followed to the container of another node, by that node, in the namespace of the container too.
func TestTrace(t *testing.T) {
	a, _, podA, addressB := newTraced(t, nil)
	said, failed := a.trace(podA + " to " + addressB)
	if failed {
		t.Error("does not arrive")
	}
	wants(t, said, "n2: host", "passes  "+addressB+" is an address of its own", "arrives: n2: ")

	a.run("nft 'table ip svc { chain p { type nat hook prerouting priority -100; ip daddr 10.96.0.1 dnat to %s; }; }'", addressB)
	for _, args := range []string{podA + " to 10.96.0.1", "to " + addressB + " --in lo"} {
		said, failed = a.trace(args)
		if failed {
			t.Error("does not arrive")
		}
		wants(t, said, "n2: host", "arrives: n2: ")
	}

	said, _ = a.trace("-o json " + podA + " to " + addressB)
	var answer struct {
		Hops []struct{ Node, Place, Kind, State string }
	}
	if err := json.Unmarshal([]byte(said), &answer); err != nil {
		t.Fatal(err)
	}
	var kinds []string // of the other node
	for _, h := range answer.Hops {
		if h.Node == "n2" {
			kinds = append(kinds, h.Kind)
		}
	}
	if !slices.Contains(kinds, "tunnel") || kinds[len(kinds)-1] != "socket" {
		t.Errorf("%q", kinds)
	}

	said, failed = a.trace("--live " + podA + " to " + addressB)
	if failed || strings.Contains(said, "differs") {
		t.Error("live shows something else")
	}
	wants(t, said, "live, same: ", "n2: host", "live: an answer came")
}

// Without a tunnel, a packet is followed from the other node's uplink.
func TestTraceDirect(t *testing.T) {
	a, b, podA, addressB := newTraced(t, nil, "--mode", "direct")
	a.run("ping -c 1 %s", b.address) // so that its MAC address is known
	said, failed := a.trace(podA + " to " + addressB)
	if failed || strings.Contains(said, "VXLAN id") {
		t.Error("does not arrive, or by a tunnel")
	}
	wants(t, said, "leaves by eth0 to "+b.address, "n2: host", "passes  "+addressB+" is an address of its own", "arrives: n2: ")
}

// An agent with the rights that its unit and its manifest give it follows the packet up to the container, and names that.
func TestTraceConfined(t *testing.T) {
	nstest.NeedProgram(t, "setpriv")
	a, _, podA, addressB := newTraced(t, []string{"setpriv", "--bounding-set", "-all,+net_admin,+net_raw", "--no-new-privs"})
	said, failed := a.trace(podA + " to " + addressB + ":80")
	if failed {
		t.Error("does not arrive")
	}
	wants(t, said, "n2: host", "whose namespace this program may not enter", "arrives: n2: ")
}

// Each thing that the nodes know differently is said, and stops the packet where it does.
func TestTraceDisagrees(t *testing.T) {
	a, b, podA, addressB := newTraced(t, nil)
	flags := b.c.flags
	restart := func(more ...string) {
		b.agent.end()
		b.c.flags = append(flags[:len(flags):len(flags)], more...)
		b.startAgentUntil(programmed)
	}
	blockAPI := func(n *node) {
		n.run("nft 'table ip api { " +
			" chain o { type filter hook output priority 0; ip daddr 192.0.2.254 drop; }; " +
			"chain i { type filter hook input priority 0; ip saddr 192.0.2.254 drop; }; }'")
	}
	filter := "inet fairlead-vxlan-8472-4118"
	for _, c := range []struct {
		name  string
		spoil func()
		to    string
		stops bool
		wants []string
		mend  func()
	}{
		{"the port's filter lacks the other node", func() {
			b.run("nft flush set %s sources_ip_ip", filter)
		}, addressB, true, []string{"the filter of the VXLAN port of n2 does not let in what n1 sends from 192.0.2.1",
			"n2: host", "stops   input: dropped by table " + filter + " chain received"}, func() { restart() }},
		{"another network identifier", func() { restart("--vxlan-id", "9") }, addressB, true,
			[]string{"n1 sends VXLAN id 4118 to port 8472, and n2 has id 9 and port 8472"}, func() { restart() }},
		{"another cluster, so that MAC addresses differ", func() {
			b.run("rm -f /var/lib/cni/fairlead/cluster/pods.json")
			restart("--cluster", "other")
		}, addressB, true, []string{"n1 sends to the MAC address 2a:32:7a:6d:5f:4a, and fairlead-vx of n2 has ",
			"and the packet is for 2a:32:7a:6d:5f:4a"}, func() {
			b.run("rm -f /var/lib/cni/fairlead/cluster/pods.json")
			restart()
		}},
		{"another MTU", func() { restart("--mtu", "1400") }, addressB, false,
			[]string{"packets from n1 to n2 may have 1,450 bytes, and those back 1,400", "arrives: n2: "}, func() { restart() }},
		{"the way back leads elsewhere", func() { b.run("ip route add 10.244.1.2/32 via 192.0.2.254") }, addressB, true,
			[]string{"n2 sends to 10.244.1.2 by eth0 to 192.0.2.254, and n1 has [192.0.2.1]"},
			func() { b.run("ip route del 10.244.1.2/32") }},
		{"no container has the address", nothing, "10.244.2.99", true,
			[]string{"n1 has 10.244.2.99 at n2, and no container of n2 has it", "n2: host"}, nothing},
		{"a rule of the other node drops it", func() {
			b.run("nft 'table ip mine { chain c { type filter hook forward priority 0; ip saddr 10.244.1.2 drop; }; }'")
		}, addressB, true, []string{"does not arrive: n2: host: forward: dropped by table ip mine chain c"},
			func() { b.run("nft delete table ip mine") }},
		{"the other node knows another range of its own", func() {
			blockAPI(b)
			b.c.api.set("n2", []string{b.address}, []string{b.podCIDR, "10.244.9.0/24"})
			await(t, a.netns, func() bool { return strings.Contains(a.run("ip route show proto 118"), "10.244.9.0") })
		}, "10.244.9.2", true, []string{"n1 has 10.244.9.2 at n2, and n2 has it at no node"}, nothing},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.spoil()
			defer c.mend()
			said, failed := a.trace(podA + " to " + c.to)
			if failed != c.stops {
				t.Errorf("does not arrive: %v", failed)
			}
			wants(t, said, c.wants...)
		})
	}
}

// An agent that is stopped, or has another key, is named in time, beside what is known without it.
func TestTraceUnanswered(t *testing.T) {
	a, b, podA, addressB := newTraced(t, nil)
	a.run("ping -c 1 %s", b.address) // so that its MAC address is known
	b.agent.cmd.Process.Signal(syscall.SIGSTOP)
	said, failed := a.trace(podA + " to " + addressB)
	if failed {
		t.Error("what leaves the host is no failure")
	}
	wants(t, said, "n2 did not answer within 2s", "; what is known from here: host: leaves by ")
	b.agent.cmd.Process.Signal(syscall.SIGCONT)
	b.agent.end()

	b.c.newKey()
	b.startAgentUntil(programmed)
	said, _ = a.trace(podA + " to " + addressB)
	wants(t, said, "n2 did not answer within 2s", "; what is known from here: host: leaves by ")

	a.agent.end()
	a.c.flags = a.c.flags[:2] // where the nodes come from
	a.startAgentUntil(programmed)
	said, _ = a.trace(podA + " to " + addressB)
	wants(t, said, "node n2 was not asked: the agent of this node has no key", "; what is known from here: host: leaves by ")

	a.agent.kill()
	said, _ = a.trace(podA + " to " + addressB)
	wants(t, said, "no other node was asked: ", "connection refused", "; what is known from here: host: leaves by ")
}

// What asks in the name of an agent gets no answer: a container of its node, whose packets do not even leave, and another
// machine that sends with the node's address. Neither keeps the agent from asking.
func TestTraceForged(t *testing.T) {
	a, b, podA, addressB := newTraced(t, nil)
	forged := make([]byte, 200)
	copy(forged, "FLps")
	b.run(`nft 'table ip count { chain i { type filter hook input priority 0; udp dport 8473 udp length %d counter; }; }'`,
		8+len(forged))
	arrived := func() bool { return !strings.Contains(b.run("nft list table ip count"), "counter packets 0 ") }
	answers := func() {
		t.Helper()
		said, failed := a.trace(podA + " to " + addressB)
		if failed {
			t.Error("does not arrive")
		}
		wants(t, said, "arrives: n2: ")
	}
	agents := netip.MustParseAddrPort(b.address + ":8473")

	var c *net.UDPConn
	err := nstest.In(podA, func() (err error) {
		c, err = net.DialUDP("udp4", &net.UDPAddr{Port: 8473}, net.UDPAddrFromAddrPort(agents))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 10 {
		c.Write(forged) // an error is a packet that is refused
	}
	answers()
	if arrived() {
		t.Error("what the container sends arrives")
	}
	c.SetReadDeadline(time.Now())
	if n, err := c.Read(make([]byte, 1500)); err == nil {
		t.Errorf("the container got %d bytes", n)
	}

	here, err := kernel.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	bridge, err := rtnl.IndexOf(here, "br0")
	if err != nil {
		t.Fatal(err)
	}
	mac, err := net.ParseMAC(strings.Fields(b.run("ip -br link show eth0"))[2])
	if err != nil {
		t.Fatal(err)
	}
	for !arrived() {
		if err := packet.SendUDP(here, bridge, mac, netip.MustParseAddrPort(a.address+":8473"), agents, forged); err != nil {
			t.Fatal(err)
		}
	}
	answers()
}

// Packets of both families are followed in a tunnel between IPv6 addresses.
func TestTraceIPv6(t *testing.T) {
	ownPlugins(t)
	c := newCluster(t)
	c.newKey()
	a, b := c.newNode(1), c.newNode(2)
	for i, n := range []*node{a, b} {
		address := fmt.Sprint("2001:db8::", i+1)
		n.run("ip addr add %s/64 dev eth0 nodad", address)
		c.api.set(n.name, []string{address}, []string{n.podCIDR, fmt.Sprintf("fd00:%d::/64", i+1)})
		n.startAgent()
	}
	podA, _ := a.newPod()
	_, addressB := b.newPod()
	await(t, a.netns, func() bool { return strings.Contains(a.run("ip -6 route show proto 118"), "fd00:2::") })
	for _, to := range []string{addressB, "fd00:2::2"} {
		said, failed := a.trace(podA + " to " + to)
		if failed {
			t.Error("does not arrive")
		}
		wants(t, said, "into UDP to 2001:db8::2 port 8472", "fairlead-vx6 takes the packet that is inside", "arrives: n2: ")
	}
}

// In a fleet, etcd has the key, where no user but the fleet's reads it.
func TestFleetTrace(t *testing.T) {
	c := newFleetSwitch(t)
	a, _ := c.newStore(1)
	a.startAgentUntil(installed)
	b := c.newMember(2, "join "+a.run("fairlead cluster token"))
	podA, _ := a.newPod()
	_, addressB := b.newPod()
	await(t, a.netns, func() bool { return strings.Contains(a.run("ip route show proto 118"), "10.9.0.") })
	said, failed := a.trace(podA + " to " + addressB)
	if failed {
		t.Error("does not arrive")
	}
	wants(t, said, "n2: host", "arrives: n2: ")
}
