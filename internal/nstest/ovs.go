package nstest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// An OVS is an Open vSwitch of a test's own: two daemons in a namespace, with a directory of their own.
type OVS struct {
	Dir string
	NS  string // that the bridges are in; empty: the test's own
}

// NewOVS starts both daemons. In the test's own namespace they are where programs look for them.
func NewOVS(t testing.TB, ns string) *OVS {
	t.Helper()
	NeedProgram(t, "ovsdb-server", "ovsdb-tool", "ovs-vswitchd", "ovs-vsctl")
	dir, err := "/run/openvswitch", error(nil)
	if ns == "" {
		err = os.MkdirAll(dir, 0o755)
	} else {
		dir, err = os.MkdirTemp("", "ovs") // whose path is short enough for sockets
	}
	if err != nil {
		t.Fatal(err)
	}
	o := &OVS{Dir: dir, NS: ns}
	t.Cleanup(func() {
		o.Stop(t, "ovs-vswitchd")
		o.Stop(t, "ovsdb-server")
		_ = os.RemoveAll(dir)
	})
	o.run(t, "ovsdb-tool", "create", filepath.Join(dir, "conf.db"), "/usr/share/openvswitch/vswitch.ovsschema")
	o.StartServer(t)
	o.Ctl(t, "--no-wait", "init")
	o.StartSwitch(t)
	return o
}

// Socket is the path of ovsdb-server's socket.
func (o *OVS) Socket() string { return filepath.Join(o.Dir, "db.sock") }

// StartServer starts ovsdb-server, which answers when this returns.
func (o *OVS) StartServer(t testing.TB) {
	t.Helper()
	o.run(t, "ovsdb-server", filepath.Join(o.Dir, "conf.db"), "--remote=punix:"+o.Socket(), "--no-chdir", "--detach",
		"--pidfile", "--log-file", "-vconsole:off")
}

// StartSwitch starts ovs-vswitchd, which has made what the database says when this returns.
func (o *OVS) StartSwitch(t testing.TB) {
	t.Helper()
	o.run(t, "ovs-vswitchd", "unix:"+o.Socket(), "--no-chdir", "--detach", "--pidfile", "--log-file", "-vconsole:off")
}

// Stop ends a daemon as its package does, and returns when it has ended.
func (o *OVS) Stop(t testing.TB, daemon string) {
	t.Helper()
	if pid := o.pid(daemon); pid != 0 {
		o.end(t, pid, func() { o.run(t, "ovs-appctl", "-t", daemon, "exit") })
	}
}

// Kill kills a daemon, and returns when it has ended.
func (o *OVS) Kill(t testing.TB, daemon string) {
	t.Helper()
	pid := o.pid(daemon)
	o.end(t, pid, func() {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	})
}

func (o *OVS) end(t testing.TB, pid int, end func()) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	defer unix.Close(fd)
	end()
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == nil {
			return
		}
		if err != unix.EINTR {
			t.Fatal(err)
		}
	}
}

// pid is that of a daemon that runs, or zero.
func (o *OVS) pid(daemon string) int {
	b, err := os.ReadFile(filepath.Join(o.Dir, daemon+".pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || unix.Kill(pid, 0) != nil {
		return 0
	}
	return pid
}

// Ctl is what ovs-vsctl answers.
func (o *OVS) Ctl(t testing.TB, args ...string) string {
	t.Helper()
	return o.run(t, "ovs-vsctl", append([]string{"--db=unix:" + o.Socket(), "--timeout=60"}, args...)...)
}

func (o *OVS) run(t testing.TB, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+o.Dir, "OVS_LOGDIR="+o.Dir, "OVS_DBDIR="+o.Dir,
		"OVS_SYSCONFDIR="+o.Dir)
	out, err := Output(o.NS, cmd)
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(o.Dir, "ovs-vswitchd.log"))
		t.Fatal(fmt.Errorf("%s %s: %w: %s\n%s", name, strings.Join(args, " "), err, out, log))
	}
	return string(out)
}
