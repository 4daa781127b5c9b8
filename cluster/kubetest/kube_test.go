//go:build kube

// The tests run fairlead-agent on two nodes of a real API server, with the plugins in the place of kubelet and the
// runtime. `make test-kube` builds what it needs.
package kubetest

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
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

const (
	server = "192.0.2.254"   // of the API server
	admin  = "administrator" // a token
	agent  = "agent"         // the token of an agent
)

// A process is a program that runs until the end of the test, and says what it does.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	said chan string // its lines, one after the other
	end  chan error
}

// start starts a program. Its lines go to said until somebody waits for one of them, and to the test's log.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(name, args...), said: make(chan string, 1<<16), end: make(chan error, 1)}
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
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.said <- lines.Text()
		}
		io.Copy(io.Discard, out)
		close(p.said)
		p.end <- p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	return p
}

// kill ends the program and waits for its end.
func (p *process) kill() {
	if p.end != nil {
		p.cmd.Process.Kill()
		for range p.said {
		}
		<-p.end
		p.end = nil
	}
}

// log writes what the program says to the test's log.
func (p *process) log() {
	for line := range p.said {
		fmt.Fprintln(p.t.Output(), line)
	}
}

// says waits until the program writes a line with text.
func (p *process) says(text string) {
	p.t.Helper()
	var before []string
	for {
		select {
		case line, ok := <-p.said:
			if strings.Contains(line, text) {
				return
			}
			if before = append(before, line); !ok {
				p.t.Fatalf("%v ended without saying %q:\n%s", p.cmd, text, strings.Join(before, "\n"))
			}
		case <-time.After(nstest.Patience(p.t)):
			p.t.Fatalf("%v did not say %q:\n%s", p.cmd, text, strings.Join(before, "\n"))
		}
	}
}

// A cluster is etcd and an API server in the namespace of the test, which is the switch between the nodes.
type cluster struct {
	t         *testing.T
	dir       string
	apiserver *process
	client    http.Client
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir()}
	nstest.Run(t, "sh", "-ec", "ip link add br0 type bridge; ip link set br0 up; ip addr add "+server+"/24 dev br0; "+
		"ip addr add 2001:db8::254/64 dev br0 nodad; ip route add default via 192.0.2.1")
	etcd := start(t, "etcd", "--data-dir", filepath.Join(c.dir, "etcd"), "--listen-client-urls", "http://127.0.0.1:2379",
		"--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380", "--logger", "zap")
	etcd.says("serving client traffic")
	go etcd.log()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	c.write("tokens.csv", admin+",admin,1,system:masters\n"+agent+",fairlead-agent,2\n")
	c.startServer()

	roots := x509.NewCertPool()
	if text, err := os.ReadFile(filepath.Join(c.dir, "certs/apiserver.crt")); err != nil || !roots.AppendCertsFromPEM(text) {
		t.Fatal(string(text), err)
	}
	c.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	c.write("agent.conf", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"https://%s:6443","certificate-authority":"%s/certs/apiserver.crt"}}],
"users":[{"name":"a","user":{"token":"%s"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"a"}}]}`,
		server, c.dir, agent))
	c.grantRights()
	return c
}

func (c *cluster) write(name, text string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// startServer starts the API server.
func (c *cluster) startServer() {
	c.t.Helper()
	key := filepath.Join(c.dir, "key.pem")
	c.apiserver = start(c.t, program(c.t, "kube-apiserver"), "--etcd-servers", "http://127.0.0.1:2379",
		"--service-cluster-ip-range", "10.96.0.0/16", "--cert-dir", filepath.Join(c.dir, "certs"), "--bind-address", server,
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key,
		"--service-account-signing-key-file", key, "--authorization-mode", "RBAC",
		"--token-auth-file", filepath.Join(c.dir, "tokens.csv"))
	c.apiserver.says("Serving securely on")
	go c.apiserver.log()
}

// ask sends a request to the API server.
func (c *cluster) ask(method, path, format string, args ...any) error {
	body := strings.NewReader(fmt.Sprintf(format, args...))
	r, err := http.NewRequestWithContext(nstest.Context(c.t), method, "https://"+server+":6443"+path, body)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+admin)
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	answer, err := c.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	return err
}

// grantRights gives the agents what they need: to list and to watch nodes. The server may need a moment for the first
// request.
func (c *cluster) grantRights() {
	c.t.Helper()
	const roles = "/apis/rbac.authorization.k8s.io/v1/clusterrole"
	c.eventually(func() error {
		return c.ask("POST", roles+"s", `{"metadata":{"name":"fairlead-agent"},
			"rules":[{"apiGroups":[""],"resources":["nodes"],"verbs":["list","watch"]}]}`)
	})
	if err := c.ask("POST", roles+"bindings", `{"metadata":{"name":"fairlead-agent"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"fairlead-agent"},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"fairlead-agent"}]}`); err != nil {
		c.t.Fatal(err)
	}
}

// eventually calls f until the server has answered it.
func (c *cluster) eventually(f func() error) {
	c.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-nstest.Context(c.t).Done():
			c.t.Fatal(err)
		}
	}
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
	n.holder = exec.Command("nsenter", "--net="+n.netns, "unshare", "-m", "sh", "-ec", `for d in /run/fairlead /run/cni /var/lib/cni /var/lib/fairlead; do
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
	args := n.inside(program(n.c.t, "fairlead-agent"), "--kubeconfig", filepath.Join(n.c.dir, "agent.conf"), "--node", n.name)
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

// address is the address of the node's pod in a family.
func (n *node) address(family rune) string {
	i, _ := strconv.Atoi(n.name[1:])
	if family == '6' {
		return fmt.Sprintf("fd00:%d::2", i)
	}
	return fmt.Sprintf("10.244.%d.2", i)
}

const conflist = `{"cniVersion":"1.0.0","cniVersions":["1.0.0","1.1.0"],"name":"pods","plugins":[
{"type":"ptp","ipMasq":true,"masqExcept":["10.244.0.0/16","fd00::/16"],"ipam":{"type":"cluster"}},
{"type":"portmap","capabilities":{"portMappings":true}}]}`

// install writes the network's file.
func install(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll("/etc/cni/net.d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/etc/cni/net.d/10-pods.conflist", []byte(conflist), 0o644); err != nil {
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
		"IPv4":                 {"4", "4", 1450},
		"both":                 {"46", "46", 1450},
		"IPv6":                 {"6", "6", 1430},
		"IPv4 in IPv6":         {"6", "4", 1430},
		"both, IPv6 preferred": {"64", "64", 1430},
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

			c.apiserver.kill()
			for _, n := range []*node{a, b} {
				n.agent.kill()
				reach("no agent on " + n.name + ", and no API server")
				n.run("ip", "link", "del", "fairlead-vx")
				n.startAgent()
				n.agent.says(programmed)
			}
			reach("agents started without the API server")
			a.run(fairlead, "del", "pods", a.pod)
			a.run(fairlead, "add", "pods", a.pod)
			a.run(fairlead, "check", "pods", a.pod)
			c.startServer()
			c.eventually(func() error { return c.ask("DELETE", "/api/v1/nodes/"+b.name, "") })
			c.eventually(func() error {
				if out := a.run("sh", "-c", "ip route show dev fairlead-vx; ip -6 route show dev fairlead-vx proto 118"); out != "" {
					return fmt.Errorf("a node that is gone is a peer still: %s", out)
				}
				return nil
			})
		})
	}
}
