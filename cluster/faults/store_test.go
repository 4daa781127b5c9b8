package faults

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// storeProgram is the path of fairlead-store, built once for all tests.
func storeProgram(t testing.TB) string {
	t.Helper()
	return nstest.Build(t, filepath.Join(tree, "cluster", "store"), "./cmd/fairlead-store")
}

// startStore starts the node's member of the fleet's own etcd, and returns when it listens.
func (n *node) startStore(flags ...string) *process {
	n.c.t.Helper()
	line := n.inside(append([]string{storeProgram(n.c.t)}, flags...)...)
	p := start(n.c.t, line[0], line[1:]...)
	for !strings.Contains(n.run("ss -Hltn sport = 2379"), ":2379") {
		if n.c.t.Context().Err() != nil {
			n.c.t.Fatal("etcd does not listen")
		}
	}
	return p
}

// fails runs a command that has to fail, and says each of the texts.
func (n *node) fails(line string, wants ...string) {
	n.c.t.Helper()
	said, failed := n.try(line)
	for _, want := range wants {
		if !failed || !strings.Contains(said, want) {
			n.c.t.Errorf("%s: %v, %q: want %q", line, failed, said, want)
		}
	}
}

// newStore makes node i, whose etcd is the first of a fleet.
func (c *cluster) newStore(i int) (n *node, etcd *process) {
	c.t.Helper()
	n = c.newNode(i)
	n.run("ip route add default via 192.0.2.254")
	const begin = "fairlead cluster init --pool p=10.9.0.0/24,28"
	n.fails(begin, "start the etcd of this machine, and repeat fairlead cluster init: fairlead-store --config-file /etc/fairlead/store/config.json")
	etcd = n.startStore()
	n.run(begin)
	return n, etcd
}

// joinStore makes the node one more member of the etcd of a node. A member that was removed has no data.
func (n *node) joinStore(first *node) *process {
	n.c.t.Helper()
	join := "fairlead cluster join --store " + strings.TrimSpace(first.run("fairlead cluster token --store"))
	n.fails(join, "start the etcd of this machine, and repeat fairlead cluster join")
	etcd := n.startStore()
	n.run("%s", join)
	return etcd
}

// members waits until the members that answer are as many as wanted, and returns what the command says of all.
func (n *node) members(answer int) string {
	n.c.t.Helper()
	for {
		said := n.run("fairlead cluster members")
		if strings.Count(said, " answers") == answer {
			return said
		}
		if n.c.t.Context().Err() != nil {
			n.c.t.Fatal(said)
		}
	}
}

// The first node runs the fleet's etcd, which grows to three members and keeps its data. A member that is lost is replaced, and
// an agent goes on with the members that it heard of. From one of three, the fleet is made whole again.
func TestStore(t *testing.T) {
	c := newFleetSwitch(t)
	a, first := c.newStore(1)
	for _, wrong := range []string{"", " --cert /etc/fairlead/fleet.crt --key /etc/fairlead/fleet.key"} {
		url := "curl -sS --max-time 5 --cacert /etc/fairlead/fleet-ca.crt" + wrong + " https://192.0.2.1:2380/members"
		if said, failed := a.try(url); !failed {
			t.Errorf("%s: %s: want no answer for who is no member", url, said)
		}
	}
	a.startAgentUntil(installed)
	a.newPod()
	b, d := c.newNode(2), c.newNode(3)
	for _, n := range []*node{b, d} {
		n.run("ip route add default via 192.0.2.254")
	}
	b.fails("fairlead cluster join --store "+strings.TrimSpace(a.run("fairlead cluster token")), "want one that fairlead cluster token --store prints")
	b.joinStore(a)
	third := d.joinStore(a)
	a.members(3)
	b.startAgentUntil(installed)

	const heard = "/var/lib/cni/fairlead/cluster/fleet.store.json"
	b.awaitFile(heard)
	first.kill()
	b.members(2)
	b.agent.kill()
	b.startAgent()
	b.newPod()
	third.kill()
	b.fails("fairlead cluster nodes", "does not answer")
	b.newPod()

	again := a.startStore()
	if said := a.members(2); !strings.Contains(said, "does not answer") {
		t.Error(said)
	}
	a.run("fairlead cluster members remove 192.0.2.3")
	d.run("rm -r /etc/fairlead/store /etc/fairlead/fleet*")
	d.fails("fairlead cluster join --store "+strings.TrimSpace(a.run("fairlead cluster token --store")),
		"/var/lib/fairlead/store has the data of a member that is none of this etcd")
	d.run("rm -r /var/lib/fairlead/store /etc/fairlead/store")
	d.joinStore(a)
	a.members(3)
	if said := a.run("fairlead cluster nodes"); strings.Count(said, "member") != 2 {
		t.Error(said)
	}

	token := strings.TrimSpace(a.run("fairlead cluster token")) // which has members that came after the node
	again.kill()
	c.newNode(4).run("fairlead cluster join %s", token)
}

// awaitFile waits until the node has a file.
func (n *node) awaitFile(path string) {
	n.c.t.Helper()
	for n.c.t.Context().Err() == nil {
		if _, failed := n.try("test -e " + path); !failed {
			return
		}
	}
	n.c.t.Fatal("no " + path)
}

// The last of three members goes on alone, with all data.
func TestStoreAlone(t *testing.T) {
	c := newFleetSwitch(t)
	a, first := c.newStore(1)
	b := c.newNode(2)
	b.run("ip route add default via 192.0.2.254")
	last := b.joinStore(a)
	first.kill()
	b.fails("fairlead cluster pools", "does not answer")
	last.kill()
	if said := b.run("%s --force-new-cluster 2>&1", storeProgram(t)); !strings.Contains(said, "fleet: no node claims addresses") {
		t.Error(said)
	}
	b.startStore()
	said := b.members(1) + b.run("fairlead cluster pools; fairlead cluster readopt --done")
	if strings.Contains(said, "192.0.2.1 ") || !strings.Contains(said, "10.9.0.0/24") || !strings.Contains(said, "claim addresses again") {
		t.Error(said)
	}
}

// storeID returns the identifier of the etcd of the node's fleet.
func (n *node) storeID() string {
	n.c.t.Helper()
	var joined struct{ Store string }
	b := n.run("cat /etc/fairlead/fleet.json")
	if err := json.Unmarshal([]byte(b), &joined); err != nil || joined.Store == "" {
		n.c.t.Fatalf("%s, %v: want the identifier of etcd", b, err)
	}
	return joined.Store
}

// After what docs/fleet.md says of the end of a fleet, the node has nothing of it, and another one begins there, of which nobody
// takes the etcd for the former one.
func TestEnd(t *testing.T) {
	c := newFleetSwitch(t)
	n, former := c.newStore(1)
	n.startAgentUntil(installed)
	pod, _ := n.newPod()
	id := n.storeID()
	n.run("fairlead del pods %s", pod)

	n.agent.end()
	n.run("fairlead-agent --remove")
	if said := former.end(); strings.Contains(said, `"level":"error"`) {
		t.Errorf("an etcd that is asked to end calls it an error:\n%s", said)
	}
	n.run("rm -r /etc/fairlead/fleet* /etc/fairlead/10-pods.conflist /etc/fairlead/store /var/lib/fairlead/store /var/lib/cni/fairlead/cluster")
	const files = "find /etc/fairlead /etc/cni/net.d /var/lib/fairlead /var/lib/cni/fairlead /run/fairlead -type f"
	const rest = "ip -br link | grep fairlead; ip route | grep 10.9; nft list tables | grep -v 'inet fairlead$'"
	if left := n.run("{ %s; %s; } 2>/dev/null || true", files, rest); left != "" {
		t.Errorf("the node still has\n%s", left)
	}

	n.fails("fairlead cluster init --pool p=10.8.0.0/24,28", "start the etcd of this machine")
	n.startStore()
	n.run("fairlead cluster init --pool p=10.8.0.0/24,28")
	n.startAgentUntil(installed)
	if _, address := n.newPod(); !strings.HasPrefix(address, "10.8.0.") {
		t.Errorf("a container of the next fleet has %s", address)
	}
	if again := n.storeID(); again == id {
		t.Errorf("the etcd of the next fleet has the identifier of the former one, %s", id)
	}
}

// BenchmarkStore is a fleet's own etcd on one node: how long it takes from its start until it answers, with no data and with
// some, and its memory then.
func BenchmarkStore(b *testing.B) {
	c := newFleetSwitch(b)
	n := c.newNode(1)
	n.run("ip route add default via 192.0.2.254")
	n.try("fairlead cluster init --pool p=10.9.0.0/24,28")
	ask := n.inside("curl", "-s", "--cacert", "/etc/fairlead/store/ca.crt", "--cert", "/etc/fairlead/store/root.crt", "--key",
		"/etc/fairlead/store/root.key", "https://192.0.2.1:2379/health")
	storeProgram(b)
	ready := func() (p *process, took time.Duration) {
		begun := time.Now()
		line := n.inside(storeProgram(b))
		p = start(b, line[0], line[1:]...)
		for {
			out, _ := exec.Command(ask[0], ask[1:]...).Output()
			if strings.Contains(string(out), `"health":"true"`) {
				return p, time.Since(begun)
			}
		}
	}
	for b.Loop() {
		n.run("rm -rf /var/lib/fairlead/store")
		p, took := ready()
		b.ReportMetric(ms(took), "ms/first-start")
		n.run("fairlead cluster init --pool p=10.9.0.0/24,28; rm /etc/fairlead/fleet.json")
		p.kill()
		p, took = ready()
		b.ReportMetric(ms(took), "ms/start")
		b.ReportMetric(float64(resident(b, p.cmd.Process.Pid))/1024, "MiB")
		before := processorTime(b, p.cmd.Process.Pid)
		<-time.After(10 * time.Second)
		b.ReportMetric(float64(processorTime(b, p.cmd.Process.Pid)-before)/float64(10*time.Second)*100, "%idle")
		p.kill()
	}
}
