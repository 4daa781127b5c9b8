package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

// leaves returns in which time the node's grant has its earliest deadline.
func (n *node) leaves() time.Duration {
	n.c.t.Helper()
	var g grant.Grant
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", n.holder.Process.Pid, grant.Path("pods")))
	if err == nil {
		err = json.Unmarshal(b, &g)
	}
	if err != nil || len(g.Until) == 0 {
		n.c.t.Fatalf("%s, %v: want a deadline", b, err)
	}
	end := int64(1<<63 - 1)
	for _, until := range g.Until {
		end = min(end, until)
	}
	return time.Duration(end - disk.Uptime())
}

// startAgentLater starts an agent whose clock says that it is so much later, and waits until it says a text.
func (n *node) startAgentLater(later time.Duration, text string) {
	n.c.t.Helper()
	n.startAgentUntil(text, "unshare", "-T", "--boottime", strconv.Itoa(int(later/time.Second)), "--fork", "--kill-child")
}

// isCut reports whether none of the packets arrives that are sent from now on, while those of another stream do.
func (s *stream) isCut(other *stream) bool {
	s.t.Helper()
	s.mu.Lock()
	first := len(s.sent)
	s.mu.Unlock()
	for sent := first; sent < first+100; {
		other.flows("while another stream is cut off")
		s.mu.Lock()
		sent = len(s.sent)
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.Contains(s.received[first:], true)
}

// A node without etcd cuts off its containers at the deadline, also if its agent is killed before. Containers can be removed
// then. When etcd has heard of the node, they are reached again. The agent makes the fence again that somebody removed.
func TestFence(t *testing.T) {
	c, startEtcd, stopEtcd := newFleet(t)
	c.pods = 4
	a := c.newMember(1, "init --etcd "+etcdURL+" --pool p=10.9.0.0/24,reclaim=1h,fence=drop")
	b := c.newMember(2, "join "+a.run("fairlead cluster token"))
	podA, addressA := a.newPod()
	local, addressLocal := a.newPod()
	podB, addressB := b.newPod()
	extra, _ := a.newPod()
	const host = "192.0.2.254"
	other := newStream(t, podB, "", host, small)
	fenced := map[string]*stream{"to another node": newStream(t, podA, podB, addressB, small),
		"from another node": newStream(t, podB, podA, addressA, small), "to the world": newStream(t, podA, "", host, small),
		"to another container": newStream(t, podA, local, addressLocal, small)}
	flow := func(when string) {
		t.Helper()
		for _, s := range fenced {
			s.flows(when)
		}
	}
	flow("at first")
	stopEtcd()
	a.agent.kill()
	flow("without etcd and the agent")
	a.startAgentLater(a.leaves()-5*time.Second, programmedAnyNodes)
	a.agent.kill()
	for strings.Contains(a.run("nft list set inet fairlead-fence-pods heard_ip"), "elements") { // the kernel alone waits for the deadline
		other.flows("before the deadline")
	}
	for way, s := range fenced {
		if !s.isCut(other) {
			t.Errorf("after the deadline, packets %s arrive", way)
		}
	}
	a.run("fairlead del pods %s", extra)
	if said, _ := a.try("fairlead trace " + podA + " to " + addressB); !strings.Contains(said, "fairlead-fence-pods") {
		t.Errorf("trace: %s\nwant the table that drops the packet", said)
	}
	a.startAgentLater(time.Hour, "the node's blocks are not as they should be") // etcd does not answer
	said, _ := a.try("fairlead cluster status")
	for _, want := range []string{"the node keeps its addresses, but not those of 10.9.0.0/24, which others get (now their containers are cut off)"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in %s", want, said)
		}
	}
	a.agent.kill()
	startEtcd()
	a.startAgentUntil(programmed)
	flow("after contact")
	const table = "table inet fairlead-fence-pods"
	a.run("nft delete %s", table)
	a.says("nft list tables", table) // the next change of the grant may make it, too, and the agent says nothing then
	a.agent.end()
	a.run("fairlead-agent --remove")
	if tables := a.run("nft list tables"); strings.Contains(tables, "fence") {
		t.Errorf("%s: want no fence on a node without an agent", tables)
	}
}
