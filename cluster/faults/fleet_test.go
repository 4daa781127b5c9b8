package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

const etcdURL = "http://192.0.2.254:2379"

// newFleetSwitch is a cluster whose nodes find the programs of a fleet.
func newFleetSwitch(t testing.TB) *cluster {
	t.Helper()
	c := newSwitch(t)
	c.own = "/etc/fairlead /etc/cni/net.d /var/lib/fairlead"
	fairlead, agent := nstest.Fairlead(t, tree), agentProgram(t)
	plugins := t.TempDir()
	for _, name := range []string{"ptp", "cluster", "portmap"} {
		if err := os.Symlink(fairlead, filepath.Join(plugins, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("CNI_PATH", plugins)
	t.Setenv("PATH", filepath.Dir(fairlead)+":"+filepath.Dir(agent)+":"+os.Getenv("PATH"))
	return c
}

// newFleet is a cluster whose nodes share pools in a real etcd. Stop kills etcd.
func newFleet(t testing.TB) (c *cluster, start, stop func()) {
	t.Helper()
	nstest.NeedProgram(t, "etcd")
	c = newFleetSwitch(t)
	dir, err := os.MkdirTemp("/run", "etcd") // which is no disk: the tests do not wait for it
	if err != nil {
		t.Fatal(err)
	}
	var cmd *exec.Cmd
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	start = func() {
		cmd = exec.Command("etcd", "--data-dir", dir, "--listen-client-urls", etcdURL, "--advertise-client-urls", etcdURL,
			"--listen-peer-urls", "http://127.0.0.1:2380", "--log-level", "error")
		cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	start()
	t.Cleanup(func() { stop() })
	return c, start, stop
}

// newMember makes node i, which joins the fleet by a command, and starts its agent.
func (c *cluster) newMember(i int, command string) *node {
	c.t.Helper()
	n := c.newNode(i)
	n.run("ip route add default via 192.0.2.254")
	c.t.Log(n.run("fairlead cluster %s", command))
	n.startAgentUntil(installed)
	return n
}

// installed is what an agent says when it has a block, and containers can be attached.
const installed = "installed the network's configuration"

// try runs a command line of the shell on the node, and returns what it says and whether it fails.
func (n *node) try(format string) (said string, failed bool) {
	line := n.inside("sh", "-c", format+" 2>&1")
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	return string(out), err != nil
}

// Two nodes without Kubernetes share a pool in etcd. Their containers reach each other. While etcd is away, containers
// come and go, also over a restart of the agent. When nothing is left, the error says who could give some.
func TestFleet(t *testing.T) {
	c, startEtcd, stopEtcd := newFleet(t)
	c.pods = 9
	a := c.newMember(1, "init --etcd "+etcdURL+" --pool p=10.9.0.0/28,29")
	b := c.newMember(2, "join "+a.run("fairlead cluster token"))
	podA, addressA := a.newPod()
	podB, addressB := b.newPod()
	streams := []*stream{newStream(t, podA, podB, addressB, small), newStream(t, podB, podA, addressA, large)}
	flow := func(when string) {
		t.Helper()
		for _, s := range streams {
			s.flows(when)
		}
	}
	flow("at first")

	const fairlead = "fairlead"
	stopEtcd()
	extra, _ := a.newPod()
	a.run("%s del pods %s", fairlead, extra)
	a.agent.kill()
	extra, _ = a.newPod()
	a.run("%s del pods %s", fairlead, extra)
	a.startAgent()
	a.newPod()
	flow("without etcd")
	startEtcd()
	a.agent.says("all nodes are programmed") // it has told the nodes again

	var said string
	var failed bool
	for range 5 {
		if said, failed = a.try(fairlead + " add -o json pods " + a.pods[0]); failed {
			break
		}
		a.pods = a.pods[1:]
	}
	t.Log(said)
	for _, want := range []string{`"code": 11`, "no block is free in the pool p (10.9.0.0/28)", "n2 ("} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in %q", want, said)
		}
	}
	said, _ = a.try(fairlead + " cluster status")
	t.Log(said)
	for _, want := range []string{"n2", "vxlan", "p ", "10.9.0.0/28", "2 of 2", "problem: no block is free in the pool p"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in %q", want, said)
		}
	}
	said, failed = a.try(fairlead + " status -o json pods")
	t.Log(said)
	if !failed || !strings.Contains(said, `"code": 50`) {
		t.Errorf("status: %q", said)
	}
}
