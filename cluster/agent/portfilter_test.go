package agent

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// The filter of the VXLAN port follows the nodes, and is back when another program has removed it. A node has no way
// before it is let in: while the filter cannot be made, new nodes get none, and all others stay.
func TestPortFilter(t *testing.T) {
	h := newHost(t, 1)
	one, two, three := node(1), node(2), node(3)
	h.start()
	h.tell(one, two)
	h.tell(one, two) // the first has been compared when the second is taken
	filter := h.agent.portFilter(one, []directory.Node{one, two})
	contract.Verify(t, h.w, filter)

	watched, err := kernel.Open(h.w.Host.Path) // of which the agent's changes are another's
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Close()
	changes, err := nft.Watch(watched)
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Close()
	contract.Host(t, h.w, "nft flush ruleset")
	for filter.Verify(t.Context(), h.w) != nil {
		if _, err := changes.Next(nstest.Context(t), 0); err != nil {
			t.Fatal("the filter does not come back: ", err)
		}
	}

	two.Endpoints = append(two.Endpoints, netip.MustParseAddr("2001:db8::2"))
	h.tell(one, two)
	h.tell(one, two)
	contract.Verify(t, h.w, h.agent.portFilter(one, []directory.Node{one, two}))

	name := filter.Table()
	foreign := filepath.Join(t.TempDir(), "rules")
	rules := fmt.Sprintf("delete table inet %s\nadd table inet %[1]s\nadd set inet %[1]s nodes_ip { type inet_service; }\n", name)
	if err := os.WriteFile(foreign, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	contract.Host(t, h.w, "nft -f %s", foreign)
	h.tell(one, two, three)
	h.tell(one, two, three)
	toTwo, toThree := h.peer(two, one), h.peer(three, one)
	if !toTwo() || toThree() {
		t.Errorf("without the filter, the way to a known node stands: %v, to a new one: %v", toTwo(), toThree())
	}
	contract.Host(t, h.w, "nft delete table inet %s", name)
	h.until("the filter can be made again", toThree)
	contract.Verify(t, h.w, h.agent.portFilter(one, []directory.Node{one, two, three}))
}

// A second agent of a network is refused, and names the first one. It changes nothing, and may follow when that ends.
func TestSecondAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	first, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("process %d is the agent of this network", os.Getpid())
	if _, err := Listen(socket); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal("the second agent took the socket: ", err)
	}
	c.Close()
	first.Close()
	second, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}
