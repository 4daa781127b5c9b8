package daemon_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// The daemon takes the socket that systemd listens on, tells it when it is ready, and leaves the socket when it ends:
// who asks meanwhile waits for the next one.
func TestActivation(t *testing.T) {
	l := newLAN(t)
	l.dnsmasq(t)
	os.Remove(rpc.DefaultSocket)
	if err := os.MkdirAll(filepath.Dir(rpc.DefaultSocket), 0o755); err != nil {
		t.Fatal(err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: rpc.DefaultSocket})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	file, err := ln.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	notify := filepath.Join(t.TempDir(), "notify")
	ready, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: notify})
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "dhcp")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	activate := func(fds int) *process {
		cmd := exec.Command("sh", "-c", fmt.Sprintf("export LISTEN_PID=$$ LISTEN_FDS=%d; exec %s daemon", fds, program))
		cmd.ExtraFiles = []*os.File{file}
		cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+notify)
		return start(t, cmd)
	}
	p := activate(2)
	p.ends(t)
	if !strings.Contains(p.text(), "systemd passed 2 sockets") {
		t.Errorf("with two sockets it says %s", p.text())
	}
	p = activate(1)
	buf := make([]byte, 100)
	ready.SetReadDeadline(nstest.Deadline(t))
	if n, err := ready.Read(buf); err != nil || string(buf[:n]) != "READY=1" {
		t.Fatalf("it tells systemd %q, %v", buf[:n], err)
	}
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "ADD")
	p.end(syscall.SIGTERM)
	if _, err := os.Stat(rpc.DefaultSocket); err != nil {
		t.Errorf("the socket is systemd's: %v", err)
	}
	asked := make(chan error, 1)
	go func() { asked <- a.call(t, "DEL") }() // and waits in the socket's queue
	p = activate(1)
	if err := <-asked; err != nil {
		t.Errorf("DEL while the daemon is restarted: %v", err)
	}
	p.end(syscall.SIGINT)
}

// -pidfile, -hostprefix and -socketpath are the reference's.
func TestFlags(t *testing.T) {
	l := newLAN(t)
	l.dnsmasq(t)
	prefix := t.TempDir()
	if err := os.Symlink("/run", filepath.Join(prefix, "run")); err != nil {
		t.Fatal(err)
	}
	pidfile := filepath.Join(prefix, "pid")
	p := startDaemon(t, "-hostprefix", prefix, "-pidfile", pidfile, "-socketpath", "/run/cni/other.sock", "-broadcast",
		"-timeout", "5s", "-resendmax", "3s", "-resendtimeout", "30s")
	if b, err := os.ReadFile(pidfile); err != nil || string(b) != fmt.Sprint(p.cmd.Process.Pid) {
		t.Errorf("pidfile %q %v", b, err)
	}
	a := newAttachment(t, "c1", `"type":"bridge","bridge":"cni0","ipam":{"type":"dhcp","daemonSocketPath":"/run/cni/other.sock"}`)
	a.must(t, "ADD")
	a.must(t, "CHECK")
	if files, _ := filepath.Glob(prefix + "/var/lib/cni/dhcp/*.lease"); len(files) != 1 {
		t.Errorf("leases %q", files)
	}
	a.must(t, "DEL")
	p.end(syscall.SIGTERM)
	for _, path := range []string{pidfile, "/run/cni/other.sock"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
}

// An ADD whose daemon ends before it answers can be tried again.
func TestDaemonEndsMeanwhile(t *testing.T) {
	newLAN(t)
	if err := os.MkdirAll("/run/cni", 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", "/run/cni/ends.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 100))
			c.Close()
		}
	}()
	a := newAttachment(t, "c1", `"type":"bridge","bridge":"cni0","ipam":{"type":"dhcp","daemonSocketPath":"/run/cni/ends.sock"}`)
	if e := spec.AsError(a.call(t, "ADD"), 0); e == nil || e.Code != spec.CodeTryAgain {
		t.Errorf("%+v, want code %d", e, spec.CodeTryAgain)
	}
}
