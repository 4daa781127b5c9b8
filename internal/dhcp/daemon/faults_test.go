package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A fault is the error that the nth call of a name gets. Of files, those count that change something in the directory of
// the leases.
type fault struct {
	mu    sync.Mutex
	call  string
	n     int
	errno unix.Errno
	fired bool
}

func (f *fault) arm(call string, n int, errno unix.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call, f.n, f.errno, f.fired = call, n, errno, false
}

func (f *fault) has() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fired
}

func (f *fault) answer(s nstest.Syscall) unix.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	inFile := s.Name == "openat" || s.Name == "write"
	if s.Name != f.call || inFile && !strings.HasPrefix(s.Path, dhcp.StateDir) {
		return 0
	}
	if f.n--; f.n != 0 {
		return 0
	}
	f.fired = true
	return f.errno
}

// faultyDaemon starts the daemon, some of whose calls fail when the fault is armed.
func faultyDaemon(t *testing.T, f *fault, calls ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "daemon")
	cmd.Args[0] = "dhcp"
	p := &process{cmd: cmd, more: make(chan struct{}, 1), dead: make(chan struct{})}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	go func() {
		nstest.WithFaults(cmd, f.answer, calls...) // its error is that the test ends it
		w.Close()
	}()
	go p.follow(r, func() {})
	t.Cleanup(func() {
		cancel()
		<-p.dead
		if t.Failed() {
			t.Logf("the daemon said:\n%s", p.text())
		}
	})
	p.says(t, "msg=ready", 1)
	return p
}

// TestFaults lets calls of the daemon fail while it serves an ADD and a DEL. What fails answers with an error document,
// what succeeds has done its work, and the next DEL leaves nothing. The daemon goes on.
//
// clause: P8 P12
func TestFaults(t *testing.T) {
	l := newLAN(t)
	l.dnsmasq(t)
	calls := []string{"openat", "write", "fsync", "renameat", "unlinkat", "socket", "setns"}
	f := new(fault)
	faultyDaemon(t, f, calls...)
	faults := nstest.Faults()
	for i, call := range calls {
		t.Run(call, func(t *testing.T) {
			nstest.Sample(t, 4, func(n int) bool {
				errno := faults[(i+n)%len(faults)]
				what := fmt.Sprintf("%s number %d is %s", call, n, unix.ErrnoName(errno))
				a := newAttachment(t, fmt.Sprint("c", n), overBridge)
				f.arm(call, n, errno)
				if err := documented(t, what, "ADD", a); err == nil {
					if err := a.call(t, "CHECK"); err != nil && !f.has() {
						t.Errorf("%s: CHECK: %v", what, err)
					}
				}
				documented(t, what, "DEL", a)
				fired := f.has()
				f.arm("", 0, 0)
				a.must(t, "DEL")
				if left := files(t); len(left) > 0 {
					t.Errorf("%s: there is %q", what, left)
				}
				if list := entries(t); len(list) > 0 {
					t.Errorf("%s: the daemon keeps %+v", what, list)
				}
				return fired
			})
		})
	}
}

// documented calls a plugin, whose error has to be a document with a code.
func documented(t *testing.T, what, verb string, a *attachment) error {
	t.Helper()
	err := a.call(t, verb)
	var doc *spec.Error
	if err != nil && (!errors.As(err, &doc) || doc.Code == 0 || doc.Msg == "") {
		t.Errorf("%s: %s: %v", what, verb, err)
	}
	return err
}
