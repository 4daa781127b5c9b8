package faults

import "testing"

// A node that joins when no block is free gets a part of one, and its containers and those of the node that gave it reach
// each other.
func TestCedeFleet(t *testing.T) {
	c, _, _ := newFleet(t)
	a := c.newMember(1, "init --etcd "+etcdURL+" --pool p=10.9.0.0/27,27")
	podA, addressA := a.newPod()
	b := c.newMember(2, "join "+a.run("fairlead cluster token"))
	podB, addressB := b.newPod()
	newStream(t, podA, podB, addressB, small).flows("to the node with a part")
	newStream(t, podB, podA, addressA, large).flows("from the node with a part")
	secondA, address := a.newPod()
	newStream(t, podB, secondA, address, small).flows("to a container that came after")
	b.run("ping -c 1 -W 60 %s", addressA)
	a.run("ping -c 1 -W 60 %s", addressB)
	a.run("ping -c 1 -W 60 10.9.0.25") // the own address of b
}
