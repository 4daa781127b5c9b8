package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// Without a daemon DEL succeeds, and every other verb says at once where it should be and how to start it.
// clause: P8 P12
func TestNoDaemon(t *testing.T) {
	l := newLAN(t)
	l.dnsmasq(t)
	os.Remove(rpc.DefaultSocket)
	a := newAttachment(t, "c1", overBridge)
	for verb, code := range map[string]int{"ADD": 11, "STATUS": 50} {
		coded(t, a.call(t, verb), code,
			"dial unix /run/cni/dhcp.sock: connect: no such file or directory; start the daemon")
	}
	if b, _ := json.Marshal(a.call(t, "STATUS")); !strings.Contains(string(b), "cni-dhcp.socket, or `fairlead dhcp daemon`.") {
		t.Errorf("STATUS does not say what starts the daemon: %s", b)
	}
	if out := nstest.RunIn(t, a.netns, "ip", "-br", "link"); strings.Contains(out, "eth0") {
		t.Errorf("a failed ADD left\n%s", out)
	}
	d := startDaemon(t)
	a.must(t, "ADD")
	d.end(syscall.SIGKILL) // which leaves the socket
	coded(t, a.call(t, "STATUS"), 50, "connection refused")
	coded(t, a.call(t, "CHECK"), 50,
		"/run/cni/dhcp.sock: connect: connection refused; start the daemon")
	if err := a.call(t, "DEL"); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if notes, _ := filepath.Glob(dhcp.StateDir + "/*" + dhcp.NoteSuffix); len(notes) != 1 {
		t.Errorf("notes %q", notes)
	}
	d = startDaemon(t)
	d.says(t, "deleted while there was no daemon", 1)
	if left, _ := filepath.Glob(dhcp.StateDir + "/*.*.*"); len(entries(t)) != 0 || len(left) != 0 {
		t.Errorf("it keeps %+v, and there is %q", entries(t), left)
	}
}

// A device of the host's that is given back lives on: what was deleted without a daemon is released by the next one.
func TestNoteAndLink(t *testing.T) {
	l := newLAN(t)
	srv := l.dnsmasq(t)
	d := startDaemon(t)
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "ADD")
	d.end(syscall.SIGKILL)
	if left, err := dhcp.LeaveNote(dhcp.StateDir,
		spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}); err != nil || !left {
		t.Fatal(err)
	}
	startDaemon(t)
	srv.says(t, "DHCPRELEASE", 1)
	if len(entries(t)) != 0 || len(files(t)) != 0 {
		t.Errorf("it keeps %+v", entries(t))
	}
}

// Without a daemon, a DEL on a full disk leaves no note. The next daemon drops the lease because its link is gone.
func TestNoRoomForNote(t *testing.T) {
	disk := nstest.Disks{Dirs: []string{dhcp.StateDir}, Room: "size=1m"}
	if err := errors.Join(os.MkdirAll(dhcp.StateDir, 0o700), disk.Mount()); err != nil {
		t.Fatal(err)
	}
	l := newLAN(t)
	l.dnsmasq(t)
	d := startDaemon(t)
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "ADD")
	d.end(syscall.SIGKILL)
	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	a.must(t, "DEL")
	if notes, _ := filepath.Glob(dhcp.StateDir + "/*" + dhcp.NoteSuffix); len(notes) > 0 {
		t.Fatalf("there is room for %q", notes)
	}
	d = startDaemon(t)
	d.says(t, "a lease is dropped", 1)
	if len(entries(t)) != 0 || len(files(t)) != 0 {
		t.Errorf("it keeps %+v", entries(t))
	}
}

// A note of a DEL that was killed, or came just when the daemon started, ends with the next DEL or ADD. The next daemon would
// take it for the end of a living container.
func TestNoteOfFormerLife(t *testing.T) {
	l := newLAN(t)
	l.dnsmasq(t)
	d := startDaemon(t)
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "ADD")
	of := spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}
	if left, err := dhcp.LeaveNote(dhcp.StateDir, of); err != nil || !left {
		t.Fatal(left, err)
	}
	notes := func() (paths []string) {
		paths, _ = filepath.Glob(dhcp.StateDir + "/*" + dhcp.NoteSuffix)
		return paths
	}
	note := notes()[0]
	text, err := os.ReadFile(note)
	if err != nil {
		t.Fatal(err)
	}
	a.must(t, "DEL")
	if left := notes(); len(left) > 0 {
		t.Errorf("DEL leaves %q", left)
	}
	if err := os.WriteFile(note, text, 0o600); err != nil {
		t.Fatal(err)
	}
	a.must(t, "ADD")
	d.end(syscall.SIGKILL)
	startDaemon(t)
	if left := notes(); len(left) > 0 || len(entries(t)) != 1 {
		t.Errorf("the next daemon keeps %+v, and there is %q", entries(t), left)
	}
	a.must(t, "DEL")
}

// "startDaemon" starts one, and one only, for all who find none.
func TestStartDaemon(t *testing.T) {
	l := newLAN(t)
	l.dnsmasq(t)
	os.Remove(rpc.DefaultSocket)
	const conf = `"type":"bridge","bridge":"cni0","ipam":{"type":"dhcp","startDaemon":true}`
	var group sync.WaitGroup
	var as []*attachment
	t.Cleanup(func() { // it is a child of nobody here
		pid, err := os.ReadFile(dhcp.StateDir + "/lock")
		if err != nil || len(pid) == 0 {
			t.Errorf("whose daemon is it? %q %v", pid, err)
			return
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
		if err != nil {
			t.Error(err)
			return
		}
		fd, err := unix.PidfdOpen(n, 0)
		if err != nil {
			t.Errorf("the daemon ended by itself: %v", err)
			return
		}
		defer unix.Close(fd)
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
			t.Error(err)
		}
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); n != 1 {
			t.Errorf("wait for the end of daemon %s: %v", pid, err)
		}
	})
	for i := range 5 {
		a := newAttachment(t, fmt.Sprint("c", i), conf)
		as = append(as, a)
	}
	as[0].must(t, "STATUS")
	errs := make([]error, len(as))
	for i, a := range as {
		group.Go(func() { errs[i] = a.call(t, "ADD") })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if list := entries(t); len(list) != len(as) {
		t.Errorf("%d leases of %d", len(list), len(as))
	}
	log, err := os.ReadFile("/run/cni/fairlead/dhcp-daemon.log")
	if err != nil || strings.Count(string(log), "msg=ready") != 1 {
		t.Errorf("%v %s", err, log)
	}
	for _, a := range as {
		a.must(t, "CHECK")
		a.must(t, "DEL")
	}
}

// A daemon that says nothing holds nobody up.
func TestHangingDaemon(t *testing.T) {
	newLAN(t)
	if err := os.MkdirAll(filepath.Dir(rpc.DefaultSocket), 0o755); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", rpc.DefaultSocket) // and nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a := newAttachment(t, "c1", overBridge)
	a.raw = []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"` + a.netns + `"}],"ips":[]}`)
	var both sync.WaitGroup
	for _, verb := range []string{"STATUS", "CHECK"} {
		both.Go(func() {
			if err := a.call(t, verb); err == nil || !strings.Contains(err.Error(), "deadline") {
				t.Errorf("%s says %v", verb, err)
			}
		})
	}
	both.Wait()
}

// Only one daemon listens on a socket, and only one keeps the leases of a directory; the second one does no harm.
func TestTwoDaemons(t *testing.T) {
	l := newLAN(t)
	l.dnsmasq(t)
	startDaemon(t)
	for words, args := range map[string][]string{
		"another daemon listens on /run/cni/dhcp.sock":                   nil,
		"another daemon keeps the leases in /var/lib/cni/dhcp: process ": {"-socketpath", "/run/cni/second.sock"},
		"-pidfile rel: want an absolute path":                            {"-pidfile", "rel"},
		"/run/cni/plain exists and is not a socket":                      {"-socketpath", "/run/cni/plain"},
		"must be greater than zero":                                      {"-timeout", "0s"},
		`"x"`:                                                            {"x"},
	} {
		if err := os.WriteFile("/run/cni/plain", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/proc/self/exe", append([]string{"daemon"}, args...)...)
		cmd.Args[0] = "dhcp"
		ctx := start(t, cmd)
		ctx.ends(t)
		if !strings.Contains(ctx.text(), words) {
			t.Errorf("%q: it says %s, want %s", args, ctx.text(), words)
		}
	}
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "ADD")
	a.must(t, "DEL")
	if st, err := os.Stat(rpc.DefaultSocket); err != nil || st.Mode().Perm() != 0o660 {
		t.Errorf("the socket: %v %v", st, err)
	}
}

// A pipe that nobody reads is no file for a process ID, and is not waited for.
func TestPidfilePipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pid")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "daemon", "-pidfile", pipe)
	cmd.Args[0] = "dhcp"
	d := start(t, cmd)
	d.ends(t)
	if want := "open " + pipe + ": no such device or address"; !strings.Contains(d.text(), want) {
		t.Errorf("it says %s, want %s", d.text(), want)
	}
}

// Whatever is written to the socket, the daemon goes on.
func TestGarbage(t *testing.T) {
	l := newLAN(t)
	l.dnsmasq(t)
	startDaemon(t)
	for _, text := range []string{"", "\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT /_goRPC_ HTTP/1.0\n\n\x00\x01\x02", "CONNECT /_goRPC_ HTTP/1.0\n\n\xf8\x7f\xff\xff\xff\xff\xff\xff\xff",
		"CONNECT /_goRPC_ HTTP/1.0\n\n" + strings.Repeat("\x05\xff\x82", 1000), strings.Repeat("x",
			100000), strings.Repeat("x\n", 100000)} {
		conn, err := net.Dial("unix", rpc.DefaultSocket)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte(text))
		conn.(*net.UnixConn).CloseWrite()
		conn.SetReadDeadline(nstest.Deadline(t))
		if _, err := conn.Read(make([]byte, 100)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%.50q is not turned away", text)
		}
		conn.Close()
	}
	ctx := nstest.Context(t)
	var reply rpc.Reply
	err := rpc.Call(ctx, rpc.DefaultSocket, "DHCP.Nonsense", rpc.Args{}, &reply)
	if e := rpc.Error(""); !errors.As(err, &e) || !e.Unknown() {
		t.Errorf("a method that there is not: %v", err)
	}
	for _, conf := range []string{"", "{}", "[]", `{"name":"n","type":"t","ipam":[]}`, `{"name":"n","type":"t","ipam":{"provide":7}}`, strings.Repeat("[", 100000)} {
		for _, method := range []string{rpc.Allocate, rpc.Release} {
			if err := rpc.Call(ctx, rpc.DefaultSocket, method,
				rpc.Args{ContainerID: "c", IfName: "eth0", Netns: "/run/netns/none",
					StdinData: []byte(conf)}, &struct{}{}); err == nil && method == rpc.Allocate {
				t.Errorf("%s of %.30q succeeds", method, conf)
			}
		}
	}
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "ADD")
	a.must(t, "DEL")
}

// A full disk fails the ADD and gives the lease back; it costs no lease that is there, not even while it is renewed.
// clause: P8
func TestFullDisk(t *testing.T) {
	l := newLAN(t)
	srv := l.kea(t, "10.9.0.100 - 10.9.0.110", 3600, 2, 3000)
	nstest.Run(t, "sh", "-ec", "mkdir -p "+dhcp.StateDir+"; mount -t tmpfs -o size=64k tmpfs "+dhcp.StateDir)
	t.Cleanup(func() { exec.Command("umount", dhcp.StateDir).Run() })
	d := startDaemon(t)
	a, b := newAttachment(t, "c1", overBridge), newAttachment(t, "c2", overBridge)
	a.must(t, "ADD")
	nstest.Run(t, "sh", "-c", "dd if=/dev/zero of="+dhcp.StateDir+"/ballast 2>/dev/null; true")
	coded(t, b.call(t, "ADD"), 5, "no space left on device")
	srv.says(t, "DHCP4_RELEASE ", 1)
	d.says(t, "a renewed lease is not on the disk", 1)
	a.must(t, "CHECK")
	nstest.Run(t, "rm", dhcp.StateDir+"/ballast")
	b.must(t, "ADD")
	d.end(syscall.SIGKILL)
	startDaemon(t)
	a.must(t, "CHECK")
	b.must(t, "CHECK")
	nstest.Run(t, "sh", "-c", "dd if=/dev/zero of="+dhcp.StateDir+"/ballast 2>/dev/null; true")
	a.must(t, "DEL")
	b.must(t, "DEL")
	if left := files(t); len(left) != 0 {
		t.Errorf("left %q", left)
	}
}

// A lease file that is torn, another's, or a newer daemon's is said, with its name and why, and costs no other lease.
func TestOddFiles(t *testing.T) {
	l := newLAN(t)
	srv := l.dnsmasq(t)
	d := startDaemon(t)
	var as []*attachment
	for _, id := range []string{"good", "torn", "newer", "future", "empty"} {
		a := newAttachment(t, id, overBridge)
		a.must(t, "ADD")
		as = append(as, a)
	}
	d.end(syscall.SIGKILL)
	file := func(id string) string {
		return dhcp.LeaseFile(dhcp.StateDir, spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"}, "dhcpv4")
	}
	edit := func(id string, f func(map[string]any)) {
		b, err := os.ReadFile(file(id))
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		f(m)
		b, _ = json.Marshal(m)
		if err := os.WriteFile(file(id), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(file("torn"), 100); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file("empty"), 0); err != nil {
		t.Fatal(err)
	}
	edit("newer", func(m map[string]any) { m["format"] = 99 })
	edit("future", func(m map[string]any) { m["uptime"] = m["uptime"].(float64) + 1e15 })
	nstest.Run(t, "sh", "-ec", "cd "+dhcp.StateDir+"; cp "+file("good")+
		" 000000000000.0000000000000000.dhcpv4.lease; echo x > foreign; mkdir odd.lease; echo x > "+file("good")+".new")
	asked := strings.Count(srv.text(), "DHCPACK")
	d = startDaemon(t)
	for _, words := range []string{file("torn"), file("empty"), file("newer"), "in format 99; this one reads 1",
		"under another name", "odd.lease", "in the future"} {
		if !strings.Contains(d.text(), words) {
			t.Errorf("%s is not said in\n%s", words, d.text())
		}
	}
	srv.says(t, "DHCPACK", asked+2) // good, and future, which is asked about
	if list := entries(t); len(list) != 2 || list[0].Owner.ContainerID != "future" || list[1].Owner.ContainerID != "good" {
		t.Errorf("it keeps %+v", list)
	}
	if _, err := os.Stat(file("newer")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{filepath.Base(file("torn")), filepath.Base(file("empty")),
		"000000000000.0000000000000000.dhcpv4.lease"} {
		if _, err := os.Stat(filepath.Join(dhcp.StateDir, "broken", name)); err != nil {
			t.Error(err)
		}
	}
	for _, a := range as {
		err := a.call(t, "CHECK")
		if known := a.id == "good" || a.id == "future"; known != (err == nil) {
			t.Errorf("CHECK of %s: %v", a.id, err)
		}
		a.must(t, "DEL")
		a.must(t, "ADD") // and gets its lease again, which the server knows it by
		a.must(t, "CHECK")
		a.must(t, "DEL")
	}
}
