package agent

import (
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A prefix of another node that is in use already gets no way and no rules: it is a network of this host, has the address of
// a node, or is of the Services. The other prefixes of that node, and the other nodes, are reached all the same.
func TestOccupied(t *testing.T) {
	h := newHost(t, 1)
	services := make(chan []netip.Prefix)
	h.agent.Services = services
	h.start()
	services <- []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	one, two, three := node(1), node(2), node(3)
	for _, c := range []struct{ prefix, says string }{
		{"192.0.2.128/25", "192.0.2.128/25 of node n2 overlaps the network 192.0.2.0/24 of link up0"},
		{"0.0.0.0/0", "0.0.0.0/0 of node n2 overlaps the network 127.0.0.0/8 of link lo"},
		{"224.1.0.0/24", "224.1.0.0/24 of node n2 overlaps addresses that no container can have (loopback, link-local or multicast)"},
		{"192.0.2.3/32", "192.0.2.3/32 of node n2 overlaps the network 192.0.2.0/24 of link up0"},
		{"10.96.7.0/24", "10.96.7.0/24 of node n2 overlaps the range 10.96.0.0/16 of the cluster's Services"},
		{"198.51.100.0/24", "198.51.100.0/24 of node n2 overlaps the nodes' own network, which has the InternalIP 198.51.100.7"},
	} {
		bad := two
		bad.Prefixes = []netip.Prefix{netip.MustParsePrefix(c.prefix), two.Prefixes[1]}
		far := node(0) // the oldest
		far.Endpoints = []netip.Addr{netip.MustParseAddr("198.51.100.7")}
		for range 2 { // the first has been compared when the second is taken
			h.tell(one, bad, three, far)
		}
		h.until("node 3", h.peer(three, one))
		rest := two
		rest.Prefixes = two.Prefixes[1:]
		h.until("the other prefix of node 2", h.peer(rest, one))
		if out := nstest.RunIn(t, h.w.Host.Path, "ip", "route", "show", c.prefix, "proto", "118"); out != "" {
			t.Errorf("%s has a route: %s", c.prefix, out)
		}
		problems := h.agent.Status().Problems
		isNamed := len(problems) == 1 && problems[0].Kind == agentstatus.RangeTaken && problems[0].Node == "n2"
		if want := c.says + ": give the cluster another range (--cluster-cidr of kube-controller-manager)"; !isNamed ||
			problems[0].Text != want && c.prefix != "10.96.7.0/24" {
			t.Errorf("%+v, want %s", problems, want)
		}
	}
}

// A node that names an address in the range of an older node takes nothing from it. A range without room is refused.
func TestNoRoom(t *testing.T) {
	h := newHost(t, 1)
	h.start()
	one, two, late := node(1), node(2), node(9)
	late.Endpoints = []netip.Addr{one.Prefixes[0].Addr().Next(), two.Prefixes[0].Addr().Next()}
	for range 2 {
		h.tell(one, two, late)
	}
	h.until("node 2", h.peer(two, one))
	one.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.244.1.254/31")}
	for range 2 {
		h.tell(one, two)
	}
	problems := h.agent.Status().Problems
	if len(problems) != 1 || problems[0].Kind != agentstatus.NotGranted {
		t.Errorf("%+v", problems)
	}
}

// The agent of another network may not have the same device, nor remove it.
func TestOneAgentADevice(t *testing.T) {
	h := newHost(t, 1)
	device, err := h.agent.LockDevice()
	if err != nil {
		t.Fatal(err)
	}
	other := h.newAgent(1)
	other.Network = "other"
	if _, err := other.LockDevice(); err == nil {
		t.Error("two agents have one device")
	}
	if err := other.Remove(t.Context()); err == nil {
		t.Error("the device of another agent was removed")
	}
	if err := device.Close(); err != nil {
		t.Fatal(err)
	}
	if err := other.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
