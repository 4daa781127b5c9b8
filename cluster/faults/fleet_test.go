package faults

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/cluster/etcd"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

const etcdURL = "http://192.0.2.254:2379"

// newFleet is a cluster whose nodes share pools in a real etcd. Stop kills etcd.
func newFleet(t testing.TB, pools ...blocks.Pool) (c *cluster, start, stop func()) {
	t.Helper()
	nstest.NeedProgram(t, "etcd")
	c = newSwitch(t)
	c.flags = []string{"--etcd", etcdURL}
	list := strings.ReplaceAll(conflist, `"cniVersion":"1.0.0"`, `"cniVersion":"1.1.0"`) // which has STATUS
	if err := os.WriteFile("/etc/cni/net.d/10-pods.conflist", []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
	plugins := t.TempDir()
	for _, name := range []string{"ptp", "cluster"} {
		if err := os.Symlink(nstest.Fairlead(t, tree), filepath.Join(plugins, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("CNI_PATH", plugins)
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
	s, err := etcd.Open(etcd.Access{Cluster: "fleet", Endpoints: []string{etcdURL}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for {
		if _, err = s.Init(t.Context(), pools); err == nil {
			return c, start, stop
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

// granted is what an agent says when it has a block.
const granted = "granted blocks"

// try runs a command line of the shell on the node, and returns what it says and whether it fails.
func (n *node) try(format string) (said string, failed bool) {
	line := n.inside("sh", "-c", format+" 2>&1")
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	return string(out), err != nil
}

// Two nodes without Kubernetes share a pool in etcd. Their containers reach each other. While etcd is away, containers
// come and go, also over a restart of the agent. When nothing is left, the error says who could give some.
func TestFleet(t *testing.T) {
	c, startEtcd, stopEtcd := newFleet(t, blocks.Pool{Name: "p", Prefix: netip.MustParsePrefix("10.9.0.0/28"), Bits: 29, Parts: 1})
	c.pods = 9
	a, b := c.newNode(1), c.newNode(2)
	for _, n := range []*node{a, b} {
		n.run("ip route add default via 192.0.2.254")
		n.startAgentUntil(granted)
	}
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

	fairlead := nstest.Fairlead(t, tree)
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
	said, failed = a.try(fairlead + " status -o json pods")
	t.Log(said)
	if !failed || !strings.Contains(said, `"code": 50`) {
		t.Errorf("status: %q", said)
	}
}
