package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// disks are those of the state.
func disks() nstest.Disks {
	return nstest.Disks{Dirs: []string{"/run", "/var/lib/cni"}, Room: "size=256m,nr_inodes=100000"}
}

type object = map[string]any

// lists are the networks, by name. Containers take them in turn.
func lists() map[string][]object {
	attached := func(name, subnet string) []object {
		return []object{
			{"type": "bridge", "bridge": "br-" + name, "isGateway": true, "ipMasq": true,
				"ipam": object{"type": "host-local", "subnet": subnet}},
			{"type": "portmap", "capabilities": object{"portMappings": true}},
			{"type": "firewall", "ingressPolicy": "isolated"},
			{"type": "tuning", "sysctl": object{"net.core.somaxconn": "501"}},
		}
	}
	ports := object{"portMappings": true}
	return map[string][]object{
		"list":  attached("list", "10.77.0.0/20"),
		"chain": {{"type": "chain", "capabilities": ports, "plugins": attached("chain", "10.78.0.0/20")}},
		"lease": {{"type": "bridge", "bridge": "br-lease", "ipam": object{"type": "dhcp"}}},
	}
}

// A container is one of the host's.
type container struct {
	id, network, netns string
	port               int

	busy  bool   // a call for it runs
	known status // what its last call made of it
	bare  bool   // its ADD ran while rules went, and the repair after that may not have seen it yet
	addrs []string
}

type status int

const (
	absent   status = iota
	unclear         // a call has failed: DEL follows
	attached        // it lives
)

// newHost sets up the throw-away host that the test is in, and returns its containers.
func newHost(t *testing.T, number int) (program string, all []*container) {
	t.Helper()
	program = nstest.Fairlead(t, "../../..")
	must(t, disks().Mount())
	for _, dir := range []string{"/opt/cni/bin", "/etc/cni/net.d", "/run/netns", "/run/lock"} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	for _, plugin := range []string{"bridge", "chain", "dhcp", "firewall", "host-local", "portmap", "tuning"} {
		must(t, os.Symlink(program, filepath.Join("/opt/cni/bin", plugin)))
	}
	for name, plugins := range lists() {
		text, err := json.Marshal(object{"cniVersion": "1.1.0", "name": name, "plugins": plugins})
		must(t, errors.Join(err, os.WriteFile("/etc/cni/net.d/"+name+".conflist", text, 0o644)))
	}
	for i := range number {
		c := &container{id: fmt.Sprint("ctr-", i), network: "list", port: 8001 + i}
		switch {
		case i%20 == 0:
			c.network = "lease"
		case i%2 == 0:
			c.network = "chain"
		}
		c.netns = "/run/netns/" + c.id
		must(t, nstest.MakeNS(c.netns))
		all = append(all, c)
	}
	return program, all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A daemon is a program that runs as long as the test.
type daemon struct {
	name string
	cmd  *exec.Cmd
}

func start(t *testing.T, name string, args ...string) daemon {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	must(t, err)
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		log.Close()
		if said, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("%s said last:\n%s", filepath.Base(name), said[max(0, len(said)-4000):])
		}
	})
	return daemon{filepath.Base(name), cmd}
}

// dhcp starts a server on the bridge of the network lease, and the daemon that keeps the leases.
func dhcp(t *testing.T) daemon {
	t.Helper()
	nstest.NeedProgram(t, "dnsmasq")
	if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("0"), 0); !os.IsNotExist(err) {
		must(t, err) // firewalld lets nothing of DHCP from one port of a bridge to another
	}
	server := nstest.NewNS(t)
	nstest.Run(t, "ip", "link", "add", "br-lease", "up", "type", "bridge")
	nstest.Run(t, "ip", "link", "add", "server", "up", "master", "br-lease", "type", "veth", "peer", "name", "eth0",
		"netns", server)
	nstest.RunIn(t, server, "ip", "addr", "add", "10.79.0.1/20", "dev", "eth0")
	nstest.RunIn(t, server, "ip", "link", "set", "eth0", "up")
	start(t, "nsenter", "--net="+server, "dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--pid-file=", "--port=0",
		"--interface=eth0", "--bind-dynamic", "--no-ping", "--leasefile-ro", "--dhcp-lease-max=100000",
		"--dhcp-range=10.79.0.10,10.79.15.250,255.255.240.0,2m")
	d := start(t, "/opt/cni/bin/dhcp", "daemon")
	for deadline := nstest.Context(t); deadline.Err() == nil; {
		if _, err := os.Stat("/run/cni/dhcp.sock"); err == nil {
			return d
		}
	}
	t.Fatal("the DHCP daemon does not listen")
	return d
}

// A size is what a process uses.
type size struct{ kilobytes, descriptors int }

func (d daemon) size(t *testing.T) (s size) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", d.cmd.Process.Pid)
	text, err := os.ReadFile(dir + "status")
	must(t, err)
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	s.kilobytes, err = strconv.Atoi(strings.Fields(rest)[0])
	must(t, err)
	open, err := os.ReadDir(dir + "fd")
	must(t, err)
	s.descriptors = len(open)
	return s
}

// left is what the host has of Fairlead: links, rules, files and locks of attachments.
func left(t *testing.T) (all []string) {
	t.Helper()
	add := func(what string, lines []string) {
		for _, line := range lines {
			all = append(all, what+" "+line)
		}
	}
	for line := range strings.Lines(nstest.Run(t, "ip", "-o", "link")) {
		name := strings.TrimSuffix(strings.Fields(line)[1], ":")
		if strings.HasPrefix(name, "veth") {
			add("link", []string{name})
		}
	}
	for line := range strings.Lines(nstest.Run(t, "nft", "list", "ruleset")) {
		if strings.Contains(line, "ctr-") {
			add("rule", []string{strings.TrimSpace(line)})
		}
	}
	for _, pattern := range []string{"/var/lib/cni/networks/*/1*", "/var/lib/cni/results/*", "/var/lib/cni/dhcp/*",
		"/run/cni/fairlead/memory/*", "/run/cni/fairlead/container-*"} {
		files, err := filepath.Glob(pattern)
		must(t, err)
		add("file", files)
	}
	return all
}
