package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// newKey gives the agents of a cluster a secret that they share.
func (c *cluster) newKey() {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(strings.Repeat("secret", 6)), 0o600); err != nil {
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

// newTraced is two nodes with a key, whose agents run, that of the second one behind another command if there is one. It
// returns the namespace of a container of the first one, and the address of one of the second.
func newTraced(t *testing.T, before ...string) (a, b *node, podA, addressB string) {
	t.Helper()
	ownPlugins(t)
	c := newCluster(t)
	c.newKey()
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
	a, _, podA, addressB := newTraced(t)
	said, failed := a.trace(podA + " to " + addressB)
	if failed {
		t.Error("does not arrive")
	}
	wants(t, said, "n2: host", "passes  "+addressB+" is an address of its own", "arrives: n2: ")
}

// An agent with the rights that its unit and its manifest give it follows the packet up to the container, and names that.
func TestTraceConfined(t *testing.T) {
	nstest.NeedProgram(t, "setpriv")
	a, _, podA, addressB := newTraced(t, "setpriv", "--bounding-set", "-all,+net_admin,+net_raw", "--no-new-privs")
	said, failed := a.trace(podA + " to " + addressB + ":80")
	if failed {
		t.Error("does not arrive")
	}
	wants(t, said, "n2: host", "whose namespace this program may not enter", "arrives: n2: ")
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
