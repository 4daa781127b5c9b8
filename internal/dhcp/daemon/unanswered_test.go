package daemon_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// A daemon that is short of files cannot tell whether a namespace is the one that it knows: it keeps the lease, and
// tries again.
func TestFewFiles(t *testing.T) {
	l := newLAN(t)
	l.dnsmasq(t)
	d := startDaemon(t)
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "ADD")
	pid := d.cmd.Process.Pid
	was := new(unix.Rlimit)
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, was); err != nil {
		t.Fatal(err)
	}
	const words = "ask which network namespace"
	for !strings.Contains(d.text(), words) { // again, where it has just closed another file
		if time.Now().After(nstest.Deadline(t)) {
			t.Fatal("the daemon never lacked the one file that it asks the namespace by")
		}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: room(t, pid, 1), Max: was.Max}, nil); err != nil {
			t.Fatal(err)
		}
		nstest.RunIn(t, a.netns, "sh", "-ec", "ip link set eth0 down; ip link set eth0 up") // so that the lease is confirmed
		for late := time.After(3 * time.Second); late != nil && !strings.Contains(d.text(), words); {
			select {
			case <-d.more:
			case <-late:
				late = nil
			}
		}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, was, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := entries(t); len(got) != 1 || len(files(t)) != 1 || strings.Contains(d.text(), "a lease is dropped") {
		t.Errorf("it keeps %+v", got)
	}
	a.must(t, "DEL")
}

// room is the limit by which a process can open so many files more.
func room(t *testing.T, pid int, free int) uint64 {
	t.Helper()
	open, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, f := range open {
		has[f.Name()] = true
	}
	for n := 0; ; n++ {
		if free == 0 {
			return uint64(n)
		}
		if !has[strconv.Itoa(n)] {
			free--
		}
	}
}
