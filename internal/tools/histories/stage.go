package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// network is the name of every chain's network.
const network = "n"

// A stage is the throw-away host that a history is played on.
type stage struct {
	program    string
	containers map[string]*container
	reboots    int
	services   []*exec.Cmd
	said       chan news
	daemon     *player // the DHCP daemon that was started last, also one that has ended; nil: the chain has none
	seen       seen
}

// A state is what a container's last call made of it.
type state int

const (
	absent   state = iota // nothing may be left of it
	unclear               // a call for it runs, or has failed: DEL follows
	attached              // it lives
)

type container struct {
	id, netns, hash string
	port            int
	state           state
	gone            bool // its namespace is
	linkCut         bool // one of its links was deleted
	flushed         bool // its rules were flushed, and no repair was made since
	view            view // of what is its own, as ADD left it
}

// disks are those of the state.
func disks() nstest.Disks {
	return nstest.Disks{Dirs: []string{"/run", "/var/lib/cni"}, Room: "size=4m,nr_inodes=4096"}
}

// newStage sets up a host for a chain.
func newStage(program, chain string) (*stage, error) {
	s := &stage{program: program, containers: map[string]*container{}, said: make(chan news)}
	list, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": network, "plugins": chains()[chain].plugins})
	if err != nil {
		return s, err
	}
	err = errors.Join(os.MkdirAll("/opt/cni/bin", 0o755), os.MkdirAll("/etc/cni/net.d", 0o755),
		os.WriteFile("/etc/cni/net.d/n.conflist", list, 0o644))
	err = errors.Join(err, disks().Mount())
	for _, plugin := range plugins() {
		err = errors.Join(err, os.Symlink(program, filepath.Join("/opt/cni/bin", plugin)))
	}
	err = errors.Join(err, os.MkdirAll("/run/netns", 0o755), os.MkdirAll("/run/lock", 0o755), s.setup(chain))
	return s, err
}

// setup makes what a chain needs of the host.
func (s *stage) setup(chain string) error {
	for _, command := range chains()[chain].setup {
		if out, err := exec.Command("sh", "-ec", command).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", command, err, out)
		}
	}
	if !chains()[chain].dhcp {
		return nil
	}
	return cmp.Or(s.serve(), s.startDaemon())
}

// serve starts a DHCP server, and waits until it listens.
func (s *stage) serve() error {
	cmd := exec.Command("dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--pid-file=", "--port=0", "--interface=wire",
		"--bind-interfaces", "--dhcp-range=10.77.0.11,10.77.0.99,1h", "--no-ping", "--leasefile-ro")
	said, err := cmd.StderrPipe()
	if err == nil {
		err = s.start(cmd)
	}
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(said); lines.Scan(); {
		if strings.Contains(lines.Text(), "started, version") {
			go func() { _, _ = io.Copy(io.Discard, said) }()
			return nil
		}
	}
	return errors.New("dnsmasq does not start")
}

// start starts a service of the host, which ends with it, or with a reboot.
func (s *stage) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	err := cmd.Start()
	if err == nil {
		s.services = append(s.services, cmd)
	}
	return err
}

// stop ends all services.
func (s *stage) stop() {
	for _, cmd := range s.services {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	s.services = nil
	if s.daemon != nil {
		s.daemon.kill()
	}
}

// container is the one of that ID, with a namespace, whether it is attached or not.
func (s *stage) container(id string) (*container, error) {
	if c := s.containers[id]; c != nil {
		return c, nil
	}
	owner := spec.Owner{Network: network, ContainerID: "ctr-" + id, IfName: "eth0"}
	hash := identity.OwnerHash(owner)
	c := &container{id: owner.ContainerID, netns: filepath.Join("/run/netns", id), port: 8081 + len(s.containers),
		hash: hex.EncodeToString(hash[:])}
	s.containers[id] = c
	return c, nstest.MakeNS(c.netns)
}

// args are those of a call of fairlead. For GC, all containers but c are valid.
func (s *stage) args(verb string, c *container) (args, env []string) {
	switch verb {
	case "gc":
		args = []string{"gc", network, "--force", "--valid", "none/eth0"}
		for _, valid := range s.containers { // also the one that is just being attached
			if valid != c {
				args = append(args, "--valid", valid.id+"/eth0")
			}
		}
	case "add", "del", "check":
		args = []string{verb, network, c.netns, "--container-id", c.id, "-o", "json"}
	default:
		args = []string{verb}
	}
	if verb == "add" {
		env = []string{fmt.Sprintf(`CAP_ARGS={"portMappings":[{"hostPort":%d,"containerPort":80,"protocol":"tcp"}]}`,
			c.port)}
	}
	return args, env
}

// run makes a call of fairlead that nothing interrupts.
func (s *stage) run(args, env []string) error {
	s.seen = seen{}
	cmd := exec.Command(s.program, args...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("fairlead %s: %w\n%s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// call makes a call for a container that nothing interrupts.
func (s *stage) call(verb string, c *container) error { return s.run(s.args(verb, c)) }

// collect garbage-collects with nothing valid.
func (s *stage) collect() error { return s.run([]string{"gc", network, "--all", "--force"}, nil) }

// unlink deletes the link in a container, as an operator does, unless it is gone already.
func (s *stage) unlink(c *container) error {
	inside, err := linksOf(c.netns)
	there := func(line string) bool { return strings.HasPrefix(line, "link eth0 ") }
	if err != nil || !slices.ContainsFunc(inside, there) {
		return err
	}
	return nstest.In(c.netns, func() error { return exec.Command("ip", "link", "del", "eth0").Run() })
}

// reboot takes what does not outlive one: namespaces, links, the packet filter, /run; and names the boot anew. Only
// containers that a call is still to concern have a namespace again.
func (s *stage) reboot(chain string, concerned func(*container) bool) error {
	s.stop()
	for s.daemon != nil && !s.daemon.ended {
		n := <-s.said
		n.of.observe(n)
	}
	for _, c := range s.containers {
		if err := nstest.RemoveNS(c.netns); err != nil {
			return err
		}
	}
	s.reboots++
	boot := filepath.Join(os.TempDir(), fmt.Sprintf("boot-%d-%d", os.Getpid(), s.reboots))
	id := fmt.Sprintf("%08d-0000-4000-8000-000000000000\n", s.reboots)
	defer os.Remove(boot)
	err := errors.Join(os.WriteFile(boot, []byte(id), 0o444),
		unix.Mount(boot, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""))
	const links = `nft flush ruleset
		ip -o link | while IFS=': @' read -r _ name _; do [ "$name" = lo ] || ip link del "$name" 2>/dev/null || :; done
		find /run -mindepth 1 -delete; mkdir -p /run/netns /run/lock
		sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0`
	out, cerr := exec.Command("sh", "-c", links).CombinedOutput()
	if err = errors.Join(err, cerr); err != nil {
		return fmt.Errorf("reboot: %w\n%s", err, out)
	}
	if err := s.setup(chain); err != nil {
		return err
	}
	for _, c := range s.containers {
		if c.state == attached { // the runtime deletes it, or attaches it again
			c.state = unclear
		}
		if c.gone = !concerned(c); !c.gone {
			err = errors.Join(err, nstest.MakeNS(c.netns))
		}
	}
	return err
}
