package daemon_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/dhcp/daemon"
	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// The test binary is the daemon and the plugins too, each in a process of its own.
func TestMain(m *testing.M) {
	name := filepath.Base(os.Args[0])
	if name == "dhcp" && len(os.Args) > 1 && os.Args[1] == "daemon" {
		if os.Getenv("NOTIFY_SOCKET") != "" {
			endWith(grandparent())
		}
		os.Exit(daemon.Main(os.Args[2:], os.Stderr))
	}
	if os.Getenv("CNI_COMMAND") != "" {
		os.Exit(sdk.Serve(plugin.All(), name, "test"))
	}
	nstest.Main(m)
}

// grandparent is the test that called the plugin that started this daemon on demand, by a descriptor; the plugin waits
// for the daemon's word, and so is there.
func grandparent() (pidfd int, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", os.Getppid()))
	if err != nil {
		return -1, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	pid, err := strconv.Atoi(fields[1])
	if err != nil {
		return -1, err
	}
	return unix.PidfdOpen(pid, 0)
}

// endWith ends this process when that one ends, however it does: a daemon that is nobody's child would outlive a test
// that is killed, or out of time, and runs no clean-up.
func endWith(pidfd int, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "whose test is this?", err)
		os.Exit(1)
	}
	go func() {
		for {
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, -1); err != unix.EINTR {
				os.Exit(1)
			}
		}
	}()
}

// A process is a program that writes a log which can be waited on.
type process struct {
	cmd  *exec.Cmd
	mu   sync.Mutex
	log  bytes.Buffer
	more chan struct{}
	dead chan struct{}
}

// starter starts all processes. A parent's death signal comes when the thread that made the child ends, and threads
// that were in a namespace are thrown away: this one stays.
var starter = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

func startOn(cmd *exec.Cmd) error {
	err := make(chan error)
	starter() <- func() { err <- cmd.Start() }
	return <-err
}

func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, more: make(chan struct{}, 1), dead: make(chan struct{})}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := startOn(cmd); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go p.follow(r, func() { cmd.Wait() })
	t.Cleanup(func() {
		p.end(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("%s said:\n%s", cmd.Args[0], p.text())
		}
	})
	return p
}

// follow reads the log until its end, and waits for the process then.
func (p *process) follow(log io.Reader, wait func()) {
	buf := make([]byte, 4096)
	for {
		n, err := log.Read(buf)
		p.mu.Lock()
		p.log.Write(buf[:n])
		p.mu.Unlock()
		select {
		case p.more <- struct{}{}:
		default:
		}
		if err != nil {
			break
		}
	}
	wait()
	close(p.dead)
}

func (p *process) end(sig syscall.Signal) {
	p.cmd.Process.Signal(sig)
	<-p.dead
}

// ends waits until the process has ended by itself.
func (p *process) ends(t *testing.T) {
	t.Helper()
	select {
	case <-p.dead:
	case <-nstest.Context(t).Done():
		t.Fatalf("%q does not end", p.cmd.Args)
	}
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// says waits until the log has the words n times.
func (p *process) says(t *testing.T, words string, n int) {
	t.Helper()
	late := nstest.Context(t).Done()
	for strings.Count(p.text(), words) < n {
		select {
		case <-p.more:
		case <-p.dead:
			t.Fatalf("%s ended, and has not said %q", p.cmd.Args[0], words)
		case <-late:
			t.Fatalf("%s has not said %q %d times", p.cmd.Args[0], words, n)
		}
	}
}

// startDaemon starts the daemon and waits until it listens.
func startDaemon(t *testing.T, args ...string) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{"daemon"}, args...)...)
	cmd.Args[0] = "dhcp"
	p := start(t, cmd)
	p.says(t, "msg=ready", 1)
	return p
}

// A lan is a bridge of the host's with a namespace on it for servers.
type lan struct{ bridge, server string }

const serverAddr = "10.9.0.1"

func newLAN(t *testing.T) lan {
	t.Helper()
	l := lan{bridge: "cni0", server: nstest.NewNS(t)}
	nstest.Run(t, "sh", "-ec",
		"ip link add cni0 type bridge && ip link set cni0 up && ip link add srv0 type veth peer name eth0 netns "+
			filepath.Base(l.server)+" && ip link set srv0 master cni0 up")
	t.Cleanup(func() { exec.Command("sh", "-c", "ip link del srv0; ip link del cni0").Run() })
	nstest.RunIn(t, l.server, "sh", "-ec", "ip addr add "+serverAddr+
		"/24 dev eth0; ip link set lo up; ip link set eth0 up\n"+
		// A server does not listen on a link that is not running yet, which follows the carrier somewhat later.
		"until ip link show eth0 | grep -q 'state UP'; do :; done")
	return l
}

// dnsmasq serves a range for two minutes, the least that it gives, and says when to renew.
func (l lan) dnsmasq(t *testing.T, more ...string) *process {
	t.Helper()
	nstest.NeedProgram(t, "dnsmasq")
	args := []string{"--net=" + l.server, "dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--pid-file=",
		"--port=0", "--interface=eth0", "--bind-interfaces", "--no-ping", "--log-dhcp", "--leasefile-ro"}
	if len(more) == 0 || !strings.HasPrefix(more[0], "--dhcp-range") {
		more = append([]string{"--dhcp-range=10.9.0.10,10.9.0.50,255.255.255.0,2m"}, more...)
	}
	p := start(t, exec.Command("nsenter", append(args, more...)...))
	p.says(t, "started", 1)
	return p
}

// An attachment is one of a network that a plugin makes.
type attachment struct {
	id, netns string
	conf      string // without name and version
	args      string
	result    *spec.Result
	raw       []byte

	program string // of another implementation; empty: ours
	version string // of the configuration; empty: 1.1.0
}

func newAttachment(t *testing.T, id, conf string) *attachment {
	return &attachment{id: id, netns: nstest.NewNS(t), conf: conf}
}

const overBridge = `"type":"bridge","bridge":"cni0","ipam":{"type":"dhcp"}`

// call runs the plugin as a runtime does. The error is the document that it prints.
func (a *attachment) call(t *testing.T, verb string) error {
	t.Helper()
	conf := `{"cniVersion":"` + cmp.Or(a.version, "1.1.0") + `","name":"net",` + a.conf
	if a.raw != nil && verb != "ADD" {
		conf += `,"prevResult":` + string(a.raw)
	}
	var head struct{ Type string }
	if err := json.Unmarshal([]byte("{"+a.conf+"}"), &head); err != nil {
		t.Fatal(err)
	}
	ctx := nstest.Context(t)
	cmd, path := exec.CommandContext(ctx, "/proc/self/exe"), "/none"
	cmd.Args[0] = head.Type
	if a.program != "" {
		cmd, path = exec.CommandContext(ctx, a.program), filepath.Dir(a.program)
	}
	cmd.Stdin = strings.NewReader(conf + "}")
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + a.id, "CNI_NETNS=" + a.netns, "CNI_IFNAME=eth0",
		"CNI_PATH=" + path, "CNI_ARGS=" + a.args, "PATH=" + os.Getenv("PATH")}
	out, err := cmd.Output()
	if ctx.Err() != nil {
		t.Fatalf("%s did not end", verb)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if e, ok := spec.DecodeError(out); ok {
			return e
		}
		return fmt.Errorf("%w: %s %s", err, out, exit.Stderr)
	}
	if err == nil && verb == "ADD" {
		a.raw = out
		a.result, err = spec.DecodeResult(out, spec.Newest)
	}
	return err
}

func (a *attachment) must(t *testing.T, verb string) {
	t.Helper()
	if err := a.call(t, verb); err != nil {
		t.Fatalf("%s: %v", verb, err)
	}
}

func (a *attachment) ip(t *testing.T) string {
	t.Helper()
	if a.result == nil || len(a.result.IPs) == 0 {
		t.Fatalf("no address in %s", a.raw)
	}
	return a.result.IPs[0].Address.String()
}

// entries is what the daemon says that it keeps.
func entries(t *testing.T) (list []daemon.Entry) {
	t.Helper()
	var r rpc.Reply
	if err := rpc.Call(nstest.Context(t), rpc.DefaultSocket, rpc.Ask, rpc.Question{Verb: "LS"}, &r); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(r.Document, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// files are the lease files.
func files(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob(dhcp.StateDir + "/*.lease")
	if err != nil {
		t.Fatal(err)
	}
	return names
}
