package faults

import (
	"fmt"
	"strings"
	"testing"
)

// newFormer makes node i, on which a network with a subnet of the node has attached a container. The node joins a fleet by a
// command, and has no block yet.
func (c *cluster) newFormer(i int, subnet, command string) (n *node, pod, address string) {
	c.t.Helper()
	n = c.newNode(i)
	n.run(`ip route add default via 192.0.2.254; echo '{"cniVersion":"1.0.0","name":"old","plugins":[{"type":"ptp",
"ipam":{"type":"host-local","subnet":"%s","routes":[{"dst":"0.0.0.0/0"}]}}]}' >/etc/cni/net.d/50-old.conflist`, subnet)
	pod, n.pods = n.pods[0], n.pods[1:]
	n.run("fairlead add old %s", pod)
	n.run("fairlead cluster %s", command)
	n.startAgent()
	return n, pod, strings.Replace(subnet, ".0/24", ".2", 1)
}

// Nodes take over the containers of a network with a subnet for each node. The containers go on, and reach those of other nodes
// and new ones; no address is given again. A node without any claims nothing before the pool is open, and a node with the
// subnet of another one gets nothing.
func TestAdoptFleet(t *testing.T) {
	c, _, _ := newFleet(t)
	c.pods = 4
	a, podA, addressA := c.newFormer(1, "10.9.1.0/24", "init --etcd "+etcdURL+" --pool p=10.9.0.0/16,24,closed")
	join := "join " + a.run("fairlead cluster token")
	b, podB, addressB := c.newFormer(2, "10.9.2.0/24", join)
	twin, _, _ := c.newFormer(3, "10.9.1.0/24", join)
	empty := c.newNode(4)
	empty.run("ip route add default via 192.0.2.254; fairlead cluster %s", join)
	empty.startAgent()

	says := func(n *node, line string, fails bool, wants ...string) {
		t.Helper()
		said, failed := n.try(line)
		t.Log(line, said)
		for _, want := range wants {
			if failed != fails || !strings.Contains(said, want) {
				t.Errorf("%s: failed %v, %q, want %q", line, failed, said, want)
			}
		}
	}
	(&worker{node: a}).until("cat /run/fairlead/cluster/pods.json", "the pool p (10.9.0.0/16) is closed", true)
	says(a, "fairlead cluster status", true, "problem: the pool p (10.9.0.0/16) is closed")
	says(a, "fairlead cluster adopt --pool q", true, `the cluster has no pool "q"; it has p (10.9.0.0/16)`)
	says(a, "fairlead cluster adopt --pool p --from nowhere", true, "no network \"nowhere\" has leases")
	says(a, "fairlead cluster adopt --pool p --dry-run", false, "would take over 1 of 1 leases of old", addressA,
		"would own the blocks 10.9.1.0/24", "nothing was changed")
	says(a, "fairlead cluster blocks -o json", false, "[]")
	says(a, "fairlead cluster adopt --pool p", false, "network pods took over 1 of 1 leases of old", "owns the blocks 10.9.1.0/24")
	a.agent.says(installed)
	says(b, "fairlead cluster adopt --pool p -o json", false, `"address": "10.9.2.2"`, `"10.9.2.0/24"`)
	b.agent.says(installed)
	for _, flag := range []string{" --dry-run", ""} {
		says(twin, "fairlead cluster adopt --pool p"+flag, true, "nothing is claimed", "block 10.9.1.0/24: node n1 owns it", addressA+" of ",
			"If each node has the same subnet, nothing can be taken over: add a pool")
	}
	says(twin, "fairlead ipam list pods -o json; fairlead cluster blocks n3 -o json", false, "[]")

	newA, newAddress := a.newPod()
	if newAddress == addressA || !strings.HasPrefix(newAddress, "10.9.1.") {
		t.Errorf("a new container has %s, and a former one %s", newAddress, addressA)
	}
	newStream(t, podA, podB, addressB, large).flows("between containers of the former network on two nodes")
	newStream(t, podB, podA, addressA, small).flows("between containers of the former network on two nodes")
	newStream(t, podB, newA, newAddress, small).flows("from a container of the former network to a new one of another node")
	newStream(t, newA, podA, addressA, small).flows("from a new container to a former one of the node")

	says(empty, "fairlead cluster blocks n4 -o json", false, "[]")
	says(a, "fairlead cluster pools", false, "closed")
	says(a, "fairlead cluster pools open p", false, "open")
	empty.agent.says(installed)
	podD, _ := empty.newPod()
	newStream(t, podD, podA, addressA, large).flows("from a node that had no container")
	if said := fmt.Sprint(a.try("fairlead cluster status")); strings.Contains(said, "problem: the pool") {
		t.Error(said)
	}
}
