package faults

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// tree is the module that has the plugins and the command.
const tree = "../.."

// agentProgram is the path of fairlead-agent, built once for all tests.
func agentProgram(t testing.TB) string {
	t.Helper()
	return nstest.Build(t, filepath.Join(tree, "cluster"), "./cmd/fairlead-agent")
}

const conflist = `{"cniVersion":"1.0.0","cniVersions":["1.0.0","1.1.0"],"name":"pods","plugins":[
{"type":"ptp","ipMasq":true,"ipam":{"type":"cluster"}}]}`

// A cluster is an API server and the switch between the nodes, in the namespace of the test.
type cluster struct {
	t     testing.TB
	api   *api     // nil: the nodes come from etcd
	flags []string // of agents: where the nodes come from
	pods  int      // that a node can have; zero: 2
	own   string   // directories that each node has of its own, beside those of all clusters
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	c := newSwitch(t)
	kubeconfig := filepath.Join(t.TempDir(), "agent.conf")
	c.api, c.flags = newAPI(t), []string{"--kubeconfig", kubeconfig}
	config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"http://%s"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`, apiAddress)
	if err := os.WriteFile(kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// newSwitch is a cluster without nodes, and without anything that tells them.
func newSwitch(t testing.TB) *cluster {
	t.Helper()
	nstest.Need(t, "vxlan", "id", "1", "dstport", "1")
	// A switch does not divide packets, as br_netfilter does.
	nstest.Run(t, "sh", "-ec", "ip link add br0 type bridge; ip link set br0 up; ip addr add 192.0.2.254/24 dev br0; "+
		"! test -e /proc/sys/net/bridge || echo 0 >/proc/sys/net/bridge/bridge-nf-call-iptables")
	if err := os.MkdirAll("/etc/cni/net.d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/etc/cni/net.d/10-pods.conflist", []byte(conflist), 0o644); err != nil {
		t.Fatal(err)
	}
	return &cluster{t: t}
}

// A node is a network and a mount namespace.
type node struct {
	c       *cluster
	name    string
	netns   string
	address string // InternalIP
	podCIDR string
	holder  *exec.Cmd // has the mount namespace
	agent   *process
	pods    []string // paths of network namespaces that no container has yet
}

// newNode makes node i, with the address 192.0.2.i and the range 10.244.i.0/24, without an agent.
func (c *cluster) newNode(i int) *node {
	c.t.Helper()
	n := &node{c: c, name: fmt.Sprint("n", i), netns: nstest.NewNS(c.t), address: fmt.Sprint("192.0.2.", i),
		podCIDR: fmt.Sprintf("10.244.%d.0/24", i)}
	for range max(2, c.pods) { // before the mount namespace, which does not see later ones
		n.pods = append(n.pods, nstest.NewNS(c.t))
	}
	nstest.RunIn(c.t, n.netns, "sh", "-ec", fmt.Sprintf(`sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1
ip link set lo up; ip link add eth0 type veth peer name port%[1]d netns %[2]d; ip link set eth0 up
ip addr add 192.0.2.%[1]d/24 dev eth0`, i, os.Getpid()))
	nstest.Run(c.t, "ip", "link", "set", fmt.Sprint("port", i), "master", "br0", "up")

	n.holder = exec.Command("nsenter", "--net="+n.netns, "unshare", "-m", "sh", "-ec",
		`for d in /run/fairlead /run/cni /var/lib/cni `+c.own+`; do mkdir -p $d; mount -t tmpfs none $d; done
echo ready; exec cat`)
	in, err := n.holder.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := n.holder.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := n.holder.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { in.Close(); n.holder.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		c.t.Fatal(line, err)
	}
	return n
}

// join makes the node's Node object.
func (n *node) join() { n.c.api.set(n.name, []string{n.address}, []string{n.podCIDR}) }

// inside is a command line that runs on the node.
func (n *node) inside(args ...string) []string {
	return append([]string{"nsenter", "-t", strconv.Itoa(n.holder.Process.Pid), "-m", "-n"}, args...)
}

// run runs a command line of the shell on the node.
func (n *node) run(format string, args ...any) string {
	n.c.t.Helper()
	line := n.inside("sh", "-ec", fmt.Sprintf(format, args...))
	return nstest.Run(n.c.t, line[0], line[1:]...)
}

// agentLine is the command line of the node's agent.
func (n *node) agentLine(before ...string) []string {
	line := append(before, agentProgram(n.c.t), "--node", n.name, "--probe-interval", "15s")
	return n.inside(append(line, n.c.flags...)...)
}

// What an agent says when it has done its work: with the cluster's nodes, or also with those of its last run.
const (
	programmed         = "all nodes are programmed"
	programmedAnyNodes = "nodes are programmed"
)

// startAgent starts the agent, behind another command if there is one, and waits until it has programmed the nodes that
// it knows.
func (n *node) startAgent(before ...string) {
	n.c.t.Helper()
	n.startAgentUntil(programmedAnyNodes, before...)
}

// startAgentUntil starts the agent and waits until it says a text.
func (n *node) startAgentUntil(text string, before ...string) {
	n.c.t.Helper()
	line := n.agentLine(before...)
	n.agent = start(n.c.t, line[0], line[1:]...)
	n.agent.says(text)
}

// newPod attaches a container to the network of the pods, and returns its namespace and address.
func (n *node) newPod() (netns, address string) {
	n.c.t.Helper()
	netns, n.pods = n.pods[0], n.pods[1:]
	n.run("%s add pods %s", nstest.Fairlead(n.c.t, tree), netns)
	fields := strings.Fields(nstest.RunIn(n.c.t, netns, "ip", "-br", "-4", "addr", "show", "eth0"))
	address, _, _ = strings.Cut(fields[2], "/")
	return netns, address
}

// A process is a program that runs until the end of the test, and says what it does.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	said chan string // its lines, one after the other
}

func start(t testing.TB, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(name, args...), said: make(chan string, 1<<16)}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = in, in
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			fmt.Fprintln(t.Output(), lines.Text())
			p.said <- lines.Text()
		}
		close(p.said)
	}()
	t.Cleanup(p.kill)
	return p
}

// kill ends the program and waits for its end.
func (p *process) kill() {
	if p.cmd.ProcessState != nil {
		return
	}
	p.cmd.Process.Kill()
	for range p.said { // until all is in the log
	}
	p.cmd.Wait()
}

// end asks the program to end, waits until it has, and returns what nobody has read of what it said.
func (p *process) end() (said string) {
	p.cmd.Process.Signal(syscall.SIGTERM)
	for line := range p.said {
		said += line + "\n"
	}
	p.cmd.Wait()
	return said
}

// says waits until the program writes a line with text.
func (p *process) says(text string) {
	p.t.Helper()
	for line := range p.said {
		if strings.Contains(line, text) {
			return
		}
	}
	p.t.Fatalf("%v ended without saying %q", p.cmd, text)
}

// await waits for events of a namespace until check is true.
func await(t testing.TB, netns string, check func() bool) {
	t.Helper()
	s, err := kernel.Open(netns)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	groups := []uint{rtnl.LinkEvents, rtnl.NeighbourEvents, rtnl.IPv4RouteEvents, rtnl.IPv6RouteEvents}
	err = rtnl.Await(s, t.Context(), nstest.Patience(t), groups, func() (bool, error) { return check(), nil })
	if err != nil {
		t.Fatal(err)
	}
}
