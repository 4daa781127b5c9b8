//go:build kube

// The tests run fairlead-agent on two nodes of a real API server, with the plugins in the place of kubelet and the
// runtime. `make test-kube` builds what it needs.
package kubetest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// program is the path of a program that make test-kube has built.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../bin/kube", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A node is a network and a mount namespace with a pod.
type node struct {
	c        *cluster
	name     string
	netns    string
	pod      string // path of the pod's network namespace
	addrs    []string
	podCIDRs []string
	holder   *exec.Cmd // has the mount namespace
	agent    *process
}

// join makes the Node object of a node, as kubelet and the controller manager do.
func (c *cluster) join(n *node) {
	c.t.Helper()
	addresses := fmt.Sprintf(`{"type":"Hostname","address":%q}`, n.name)
	for _, a := range n.addrs {
		addresses += fmt.Sprintf(`,{"type":"InternalIP","address":%q}`, a)
	}
	if err := c.ask("POST", "/api/v1/nodes", `{"metadata":{"name":%q},"spec":{"podCIDR":%q,"podCIDRs":["%s"]}}`, n.name,
		n.podCIDRs[0], strings.Join(n.podCIDRs, `","`)); err != nil {
		c.t.Fatal(err)
	}
	if err := c.ask("PATCH", "/api/v1/nodes/"+n.name+"/status", `{"status":{"addresses":[%s]}}`, addresses); err != nil {
		c.t.Fatal(err)
	}
}

// newNode is node i, whose addresses on the switch are those of families ("4", "46", "64", "6"), the first one first, and
// likewise those of its pods.
func (c *cluster) newNode(i int, underlay, pods string) *node {
	c.t.Helper()
	n := &node{c: c, name: fmt.Sprint("n", i), netns: nstest.NewNS(c.t), pod: nstest.NewNS(c.t)}
	nstest.RunIn(c.t, n.netns, "sh", "-ec", fmt.Sprintf(`sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1
ip link set lo up; ip link add eth0 type veth peer name port%[1]d netns %[2]d; ip link set eth0 up
ip addr add 192.0.2.%[1]d/24 dev eth0; ip addr add 2001:db8::%[1]d/64 dev eth0 nodad`, i, os.Getpid()))
	nstest.Run(c.t, "ip", "link", "set", fmt.Sprint("port", i), "master", "br0", "up")
	for _, family := range underlay {
		n.addrs = append(n.addrs, map[rune]string{'4': fmt.Sprint("192.0.2.", i), '6': fmt.Sprint("2001:db8::", i)}[family])
	}
	for _, family := range pods {
		n.podCIDRs = append(n.podCIDRs, map[rune]string{'4': fmt.Sprintf("10.244.%d.0/24", i), '6': fmt.Sprintf("fd00:%d::/64", i)}[family])
	}
	n.holder = exec.Command("nsenter", "--net="+n.netns, "unshare", "-m", "sh", "-ec", `for d in /run/fairlead /run/cni /var/lib/cni; do
	mkdir -p $d; mount -t tmpfs none $d; done; echo ready; exec cat`)
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

// inside is a command line that runs on the node.
func (n *node) inside(args ...string) []string {
	return append([]string{"nsenter", "-t", strconv.Itoa(n.holder.Process.Pid), "-m", "-n"}, args...)
}

func (n *node) run(args ...string) string {
	n.c.t.Helper()
	args = n.inside(args...)
	return nstest.Run(n.c.t, args[0], args[1:]...)
}

// startAgent starts the agent, which knows nothing but where the API server is.
func (n *node) startAgent() {
	n.c.t.Helper()
	args := n.inside(program(n.c.t, "fairlead-agent"), "--kubeconfig", n.c.kubeconfig(agent), "--node", n.name,
		"--key-file", n.c.write("key", "a secret that all agents have, of 32 bytes or more"))
	n.agent = start(n.c.t, args[0], args[1:]...)
}

// add attaches the node's pod to the pods' network.
func (n *node) add(fairlead string) {
	n.c.t.Helper()
	n.run(fairlead, "add", "pods", n.pod)
}

// ping sends one packet of bytes bytes from the node, or from its pod, which nobody may divide.
func (n *node) ping(from string, bytes int, to string) {
	n.c.t.Helper()
	header := 28
	if strings.Contains(to, ":") {
		header = 48
	}
	args := []string{"ping", "-nqc1", "-W20", "-M", "do", "-s", strconv.Itoa(bytes - header), to}
	if from == "pod" {
		args = append([]string{"nsenter", "--net=" + n.pod}, args...)
	}
	n.run(args...)
}

// follow follows a packet from the node's pod to that of another node, which tells the rest of the way.
func (n *node) follow(fairlead string, to *node, family rune) {
	n.c.t.Helper()
	said := n.run(fairlead, "trace", n.pod, "to", to.address(family))
	for _, want := range []string{to.name + ": host", "arrives: " + to.name + ": "} {
		if !strings.Contains(said, want) {
			n.c.t.Errorf("want %q:\n%s", want, said)
		}
	}
}

// disagree follows a packet to the pod of another node, which has no way back, though both have the same from the API server.
func (n *node) disagree(fairlead string, to *node, family rune) {
	n.c.t.Helper()
	to.run("ip", "route", "add", "blackhole", n.address(family))
	defer to.run("ip", "route", "del", "blackhole", n.address(family))
	said := n.run("sh", "-c", strings.Join([]string{"!", fairlead, "trace", n.pod, "to", to.address(family)}, " "))
	want := fmt.Sprintf("%s has no route to %s, which is at %s", to.name, n.address(family), n.name)
	if !strings.Contains(said, want) {
		n.c.t.Errorf("want %q:\n%s", want, said)
	}
}

// address is the address of the node's pod in a family.
func (n *node) address(family rune) string {
	i, _ := strconv.Atoi(n.name[1:])
	if family == '6' {
		return fmt.Sprintf("fd00:%d::2", i)
	}
	return fmt.Sprintf("10.244.%d.2", i)
}

// install installs the network's configuration, and takes the plugins that were built.
func install(t *testing.T) {
	t.Helper()
	t.Setenv("CNI_PATH", program(t, "cni"))
	conflist, err := os.ReadFile("../../packaging/kubernetes/cluster/10-fairlead.conflist")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("/etc/cni/net.d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/etc/cni/net.d/10-fairlead.conflist", conflist, 0o644); err != nil {
		t.Fatal(err)
	}
}

const programmed = "all nodes are programmed"

// Pods of two nodes reach each other as soon as there are Node objects, whole packets too, and the nodes reach the pods.
// Nothing changes while the API server or the agents are away.
func TestPodsOfTwoNodes(t *testing.T) {
	for name, families := range map[string]struct {
		underlay, pods string
		mtu            int
	}{
		"IPv4":             {"4", "4", 1450},
		"both":             {"46", "46", 1450},
		"IPv6":             {"6", "6", 1430},
		"IPv4 in IPv6":     {"6", "4", 1430},
		"both, IPv6 first": {"64", "64", 1450},
	} {
		nstest.Apart(t, name, func(t *testing.T) {
			install(t)
			fairlead := program(t, "fairlead")
			c := newCluster(t)
			a, b := c.newNode(1, families.underlay, families.pods), c.newNode(2, families.underlay, families.pods)
			reach := func(when string) {
				t.Helper()
				for _, family := range families.pods {
					a.ping("pod", families.mtu, b.address(family))
					b.ping("pod", families.mtu, a.address(family))
					a.ping("host", families.mtu, b.address(family))
				}
				t.Log("reachable:", when)
			}
			a.startAgent()
			b.startAgent()
			c.join(a)
			a.agent.says(programmed)
			joined := time.Now()
			c.join(b)
			b.agent.says(programmed)
			t.Log("the second node is programmed after", time.Since(joined))
			a.add(fairlead)
			b.add(fairlead)
			c.eventually(func() error { // the first node has the second one's address, too
				for _, cidr := range b.podCIDRs {
					if out := a.run("ip", "route", "get", strings.Split(cidr, "/")[0]); !strings.Contains(out, "fairlead-vx") {
						return fmt.Errorf("%s", out)
					}
				}
				return nil
			})
			reach("at first")
			a.run(fairlead, "cluster", "status") // which fails if a node has no way
			for _, family := range families.pods {
				a.follow(fairlead, b, family)
				b.follow(fairlead, a, family)
				a.disagree(fairlead, b, family)
			}

			c.apiserver.kill()
			for _, n := range []*node{a, b} {
				n.agent.kill()
				reach("no agent on " + n.name + ", and no API server")
				n.run("sh", "-c", "ip link del fairlead-vx || ip link del fairlead-vx6")
				n.startAgent()
				n.agent.says("nodes are programmed") // of its last run
			}
			reach("agents started without the API server")
			a.run(fairlead, "del", "pods", a.pod)
			a.run(fairlead, "add", "pods", a.pod)
			a.run(fairlead, "check", "pods", a.pod)
			c.startServer()
			c.eventually(func() error { return c.ask("DELETE", "/api/v1/nodes/"+b.name, "") })
			c.eventually(func() error {
				if out := a.run("sh", "-c", "ip route show proto 118; ip -6 route show proto 118"); out != "" {
					return fmt.Errorf("a node that is gone is a peer still: %s", out)
				}
				return nil
			})
		})
	}
}
