package faults

import (
	"strings"
	"testing"
)

// A container with an address of a pinned pool is reached from all nodes. The address follows it to another node, and no
// two nodes have it.
func TestPinnedMoves(t *testing.T) {
	const address, ask = "10.72.0.7", "CNI_ARGS='IgnoreUnknown=1;IP=10.72.0.7' fairlead add -o json pods "
	c, _, _ := newFleet(t)
	a := c.newMember(1, "init --etcd "+etcdURL+" --pool p=10.9.0.0/20 --pool fixed=10.72.0.0/24,pinned")
	b := c.newMember(2, "join "+a.run("fairlead cluster token"))
	podA, _ := a.newPod()
	podB, _ := b.newPod()
	onA, onB := a.pods[0], b.pods[0]

	if said, failed := a.try(ask + onA); failed {
		t.Fatal(said)
	}
	newStream(t, podA, onA, address, small).flows("from the same node")
	newStream(t, podB, onA, address, large).flows("from the other node")
	said, failed := b.try(ask + onB)
	if !failed || !strings.Contains(said, `"code": 11`) || !strings.Contains(said, "a container on the node n1 has the address 10.72.0.7") {
		t.Error(said)
	}

	a.run("fairlead del pods %s", onA)
	const byCapability = `CAP_ARGS='{"ips":["10.72.0.7/24"]}' fairlead add -o json pods `
	for said, failed = b.try(byCapability + onB); failed; said, failed = b.try(byCapability + onB) {
		if t.Context().Err() != nil {
			t.Fatal(said)
		}
	}
	newStream(t, podA, onB, address, large).flows("after the container moved")

	third := c.newMember(3, "join "+a.run("fairlead cluster token"))
	podC, addressC := third.newPod()
	newStream(t, onB, podC, addressC, small).flows("to a node that joined meanwhile")
	newStream(t, podC, onB, address, large).flows("from a node that joined meanwhile")
	for _, n := range []*node{a, b, third} {
		if said, _ = n.try("fairlead cluster status"); strings.Contains(said, "problem") {
			t.Error(said)
		}
		if host := n.run("ip -o addr"); strings.Contains(host, "10.72.0.8") {
			t.Errorf("the node took the next address, which is another container's: %s", host)
		}
	}
}
