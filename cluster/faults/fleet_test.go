package faults

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

const etcdURL = "http://192.0.2.254:2379"

// newFleetSwitch is a cluster whose nodes find the programs of a fleet.
func newFleetSwitch(t testing.TB) *cluster {
	t.Helper()
	c := newSwitch(t)
	c.own = "/etc/fairlead /etc/cni/net.d /var/lib/fairlead"
	ownPlugins(t)
	t.Setenv("PATH", filepath.Dir(nstest.Fairlead(t, tree))+":"+filepath.Dir(agentProgram(t))+":"+os.Getenv("PATH"))
	return c
}

// ownPlugins has nodes use the plugins of this tree, also where others are installed.
func ownPlugins(t testing.TB) {
	t.Helper()
	plugins := t.TempDir()
	for _, name := range []string{"ptp", "cluster", "portmap", "host-local"} {
		if err := os.Symlink(nstest.Fairlead(t, tree), filepath.Join(plugins, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("CNI_PATH", plugins)
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

// requests is how many requests etcd has taken since its start, without the streams that stay open.
func requests(b *testing.B) (count float64) {
	b.Helper()
	resp, err := http.Get(etcdURL + "/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "} ")
		if strings.HasPrefix(name, "grpc_server_started_total{") && strings.Contains(name, `grpc_type="unary"`) {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			count += n
		}
	}
	return count
}

// BenchmarkFleetAdd is what BenchmarkAdd is, with blocks from etcd. Then it attaches 1,024 containers to a node, 64 at once, and
// detaches them. It reports how many requests etcd takes meanwhile for each ADD and DEL, all that the agent does included; how
// many ADDs and DELs asked the agent, and so had to wait for etcd; and how many got no address at once.
func BenchmarkFleetAdd(b *testing.B) {
	const containers, burst = 1024, 64
	c, _, _ := newFleet(b)
	n := c.newMember(1, "init --etcd "+etcdURL+" --pool p=10.9.0.0/16")
	for b.Loop() {
		n.addBeside("10.10.0.0/26")
	}
	conf := `{"cniVersion":"1.0.0","name":"pods","type":"ptp","ipam":{"type":"cluster"}}`
	plugin := filepath.Join(os.Getenv("CNI_PATH"), "cluster")
	var failed, asked atomic.Int64
	n.countAsks(&asked)
	all := func(verb string) {
		before := requests(b)
		asked.Store(0)
		for first := 0; first < containers; first += burst {
			var calls sync.WaitGroup
			for i := range burst {
				calls.Go(func() {
					line := n.inside("env", "CNI_COMMAND="+verb, fmt.Sprint("CNI_CONTAINERID=c", first+i), "CNI_NETNS="+n.pods[0],
						"CNI_IFNAME=eth0", "CNI_PATH="+filepath.Dir(plugin), plugin)
					cmd := exec.Command(line[0], line[1:]...)
					cmd.Stdin = strings.NewReader(conf)
					if out, err := cmd.Output(); err != nil {
						failed.Add(1)
						b.Logf("%s", out)
					}
				})
			}
			calls.Wait()
		}
		b.ReportMetric((requests(b)-before)/containers, "requests/"+verb)
		b.ReportMetric(100*float64(asked.Load())/containers, "%asked/"+verb)
	}
	all("ADD")
	all("DEL")
	b.ReportMetric(float64(failed.Load()), "failed")
}

// countAsks counts calls of plugins that ask the node's agent for addresses, and passes them on.
func (n *node) countAsks(asked *atomic.Int64) {
	b := n.c.t
	b.Helper()
	dir := fmt.Sprintf("/proc/%d/root/run/fairlead/cluster/", n.holder.Process.Pid)
	if err := os.Rename(dir+"pods.sock", dir+"agent.sock"); err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"pods.sock")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			plugin, err := l.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			agent, err := net.Dial("unix", dir+"agent.sock")
			if err != nil {
				_ = plugin.Close()
				continue
			}
			pass := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				_, _ = to.Close(), from.Close()
			}
			go pass(agent, plugin)
			go pass(plugin, agent)
		}
	}()
}

// An etcd that has nothing of the cluster any more says nothing of the nodes: containers reach each other, also after the restart
// of an agent, and status says what is wrong. An etcd that has the cluster again is heard.
func TestEmptied(t *testing.T) {
	c, startEtcd, stopEtcd := newFleet(t)
	a := c.newMember(1, "init --etcd "+etcdURL+" --pool p=10.9.0.0/24,28")
	b := c.newMember(2, "join "+a.run("fairlead cluster token"))
	podA, _ := a.newPod()
	podB, addressB := b.newPod()
	stream := newStream(t, podA, podB, addressB, small)
	stream.flows("at first")

	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcdURL}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	copied, err := client.Get(t.Context(), "/fairlead/", clientv3.WithPrefix())
	if err == nil {
		_, err = client.Delete(t.Context(), "/fairlead/", clientv3.WithPrefix())
	}
	if err != nil {
		t.Fatal(err)
	}
	const empty = "has no cluster fleet: make it"
	a.agent.says(empty)
	stream.flows("after etcd was emptied")
	stopEtcd()
	startEtcd()
	a.agent.kill()
	a.startAgentUntil(empty)
	stream.flows("with an agent that has heard nothing else")
	a.says("fairlead cluster status", empty)

	for _, kv := range copied.Kvs {
		if _, err := client.Put(t.Context(), string(kv.Key), string(kv.Value)); err != nil {
			t.Fatal(err)
		}
	}
	a.agent.says(programmed)
	stream.flows("after etcd was restored")
	a.newPod()
}

// The agent makes a grant again that somebody removed or damaged, with the ranges that it had.
func TestGrantLost(t *testing.T) {
	c, _, _ := newFleet(t)
	c.pods = 4
	a := c.newMember(1, "init --etcd "+etcdURL+" --pool p=10.9.0.0/24,28")
	const grant = "/run/fairlead/cluster/pods.json"
	for _, harm := range []string{"rm %s", "echo garbage >%s", "rm -r $(dirname %s)"} {
		pod, _ := a.newPod()
		a.run(harm, grant)
		a.run("fairlead del pods %s", pod) // which the agent notices
		a.agent.says("the grant is lost")
		a.agent.says("msg=granted")
	}
	a.newPod()
}
