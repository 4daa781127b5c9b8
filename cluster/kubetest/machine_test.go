//go:build kube

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

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A machine is a node with kubelet and containerd in namespaces of its own.
type machine struct {
	t         *testing.T
	name      string
	dir       string // where it keeps everything
	addresses map[rune]string
	holder    *exec.Cmd
	proxy     *process
}

// newMachine is machine i, in the segment lan, whose router is the namespace of the test.
func newMachine(t *testing.T, i, lan int) *machine {
	t.Helper()
	m := &machine{t: t, name: fmt.Sprint("n", i), dir: t.TempDir(),
		addresses: map[rune]string{'4': fmt.Sprintf("192.0.%d.%d", lan, i), '6': fmt.Sprintf("2001:db8:%d::%d", lan, i)}}
	script, err := filepath.Abs("machine.sh")
	if err != nil {
		t.Fatal(err)
	}
	m.holder = exec.Command("unshare", "-n", "-m", "-u", "-i", "-p", "--fork", "--kill-child", script, m.name, m.dir)
	m.holder.Stderr = os.Stderr
	in, err := m.holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := m.holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close() // and with the first process all others of the machine end
		m.holder.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatal(line, err)
	}
	nstest.Run(t, "sh", "-ec", fmt.Sprintf(`ip link add port%[1]d type veth peer name eth0 netns %[3]d
ip link set port%[1]d master lan%[2]d up`, i, lan, m.holder.Process.Pid))
	m.run("sh", "-ec", fmt.Sprintf(`ip link set eth0 up
ip addr add %s/24 dev eth0; ip addr add %s/64 dev eth0 nodad
ip route add default via 192.0.%[3]d.254; ip route add default via 2001:db8:%[3]d::254`, m.addresses['4'], m.addresses['6'], lan))
	return m
}

// newSegment is a network of machines, which the namespace of the test routes to the others.
func newSegment(t *testing.T, lan int) {
	t.Helper()
	nstest.Run(t, "sh", "-ec", fmt.Sprintf(`ip link add lan%[1]d type bridge; ip link set lan%[1]d up
ip addr add 192.0.%[1]d.254/24 dev lan%[1]d; ip addr add 2001:db8:%[1]d::254/64 dev lan%[1]d nodad
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1`, lan))
}

// mountCgroups has the cgroups of version 1 alone, because container runtimes would look for controllers in version 2 where
// both are, and makes those of machines, which end with the test.
func mountCgroups(t *testing.T, machines ...string) {
	t.Helper()
	mounted, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, "mount", "-t", "tmpfs", "none", "/sys/fs/cgroup")
	for line := range strings.Lines(string(mounted)) {
		controllers := strings.Split(line, ":")[1]
		if controllers == "" {
			continue
		}
		dir := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(controllers, "name="))
		nstest.Run(t, "sh", "-ec", fmt.Sprintf(`mkdir %[1]s; mount -t cgroup -o $(echo %[2]s | sed s/^name=/none,name=/) none %[1]s`,
			dir, controllers))
		for _, name := range machines {
			path := filepath.Join(dir, cgroup(name))
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { removeCgroup(path) })
		}
	}
}

// cgroup is the name of a machine's cgroup, which is no other test's.
func cgroup(name string) string { return fmt.Sprintf("/fairlead-%d-%s", os.Getpid(), name) }

// removeCgroup removes a cgroup and those in it.
func removeCgroup(path string) {
	inner, _ := os.ReadDir(path)
	for _, entry := range inner {
		if entry.IsDir() {
			removeCgroup(filepath.Join(path, entry.Name()))
		}
	}
	os.Remove(path)
}

// inside is a command line that runs on the machine. Its program ends with nsenter, which is in other namespaces.
func (m *machine) inside(args ...string) []string {
	pid := strconv.Itoa(m.holder.Process.Pid)
	return append([]string{"nsenter", "-t", pid, "-n", "-m", "-u", "-i", "--pid=/proc/" + pid + "/ns/pid_for_children", "--",
		"setpriv", "--pdeathsig", "KILL", "--"}, args...)
}

func (m *machine) run(args ...string) string {
	m.t.Helper()
	args = m.inside(args...)
	return nstest.Run(m.t, args[0], args[1:]...)
}

func (m *machine) start(name string, args ...string) *process {
	m.t.Helper()
	args = m.inside(append([]string{name}, args...)...)
	return start(m.t, args[0], args[1:]...)
}

func (m *machine) write(name, text string) (path string) {
	m.t.Helper()
	path = filepath.Join(m.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return path
}

// ips are the machine's addresses of families.
func (m *machine) ips(families string) (addresses []string) {
	for _, family := range families {
		addresses = append(addresses, m.addresses[family])
	}
	return addresses
}

// startRuntime starts containerd, and gives it the images.
func (m *machine) startRuntime(images string) {
	m.t.Helper()
	containerd := m.start("containerd", "--config", m.write("containerd.toml", fmt.Sprintf(`version = 2
root = "%s/containerd"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "registry.k8s.io/pause:3.10.1"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
`, m.dir)))
	containerd.says("containerd successfully booted")
	go containerd.log()
	m.run("ctr", "--namespace", "k8s.io", "images", "import", images)
}

const kubeletConfig = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: %s
enforceNodeAllocatable: [none]
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDomain: cluster.local
clusterDNS: [%q]
failSwapOn: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "1Mi", nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%", imagefs.inodesFree: "0%%"}
`

// startKubelet starts kubelet, which knows the cluster's name server.
func (m *machine) startKubelet(c *cluster, families, dns string) {
	m.t.Helper()
	config := fmt.Sprintf(kubeletConfig, cgroup(m.name), dns)
	kubelet := m.start(program(m.t, "kubelet"), "--config", m.write("kubelet.yaml", config), "--kubeconfig", c.kubeconfig(m.name),
		"--hostname-override", m.name, "--node-ip", strings.Join(m.ips(families), ","), "--root-dir", filepath.Join(m.dir, "kubelet"))
	go kubelet.log()
}

// startProxy starts kube-proxy, without what it cannot set in a network namespace.
func (m *machine) startProxy(c *cluster, mode, pods string) {
	m.t.Helper()
	config := m.write("proxy.yaml", fmt.Sprintf(`
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clusterCIDR: %s
hostnameOverride: %s
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, mode, pods, m.name, c.kubeconfig(proxy)))
	if m.proxy != nil {
		m.proxy.kill()
		m.run(program(m.t, "kube-proxy"), "--config", config, "--cleanup")
	}
	m.proxy = m.start(program(m.t, "kube-proxy"), "--config", config)
	go m.proxy.log()
}
