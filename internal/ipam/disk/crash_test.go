package disk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// 64 processes at once never share an address.
// clause: P20
func TestManyProcesses(t *testing.T) {
	const processes, each = 64, 6
	dataDir := t.TempDir()
	outs := make([]strings.Builder, processes)
	cmds := make([]*exec.Cmd, processes)
	for i := range cmds {
		cmds[i] = start(t, &outs[i], "add-many", dataDir, "10.1.0.0/16", fmt.Sprint("p", i), fmt.Sprint(each))
	}
	of := map[string]string{}
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(outs[i].String()) {
			f := strings.Fields(line)
			for _, a := range f[1:] {
				if of[a] != "" {
					t.Errorf("%s and %s both have %s", of[a], f[0], a)
				}
				of[a] = f[0]
			}
		}
	}
	files := leases(t, dataDir)
	if len(of) != 2*processes*each || len(files) != len(of) {
		t.Errorf("%d addresses given, %d leases; want %d", len(of), len(files), 2*processes*each)
	}
	for a, id := range of {
		if files[a] != id+"\r\neth0" {
			t.Errorf("%s is %s's, and its file says %q", a, id, files[a])
		}
	}
	s := &Store{DataDir: dataDir, Sets: sets(t, "10.1.0.0/16", "fd00::/64"), Log: testLog(t)}
	if !audit(t, s) {
		t.Error("the index does not count")
	}
}

// whole reports lease files that do not say what some owner would have written.
func whole(t *testing.T, dataDir string) {
	t.Helper()
	for a, text := range leases(t, dataDir) {
		if id, ok := strings.CutSuffix(text, "\r\neth0"); !ok || id == "" {
			t.Errorf("%s is torn: %q", a, text)
		}
	}
}

// Processes that are killed at any time leave nothing that DEL, or GC, does not find.
// clause: P11
func TestKilledAtRandom(t *testing.T) {
	for where, dataDir := range map[string]string{"disk": t.TempDir(), "tmpfs": "/var/lib/cni/killed"} {
		t.Run(where, func(t *testing.T) {
			s := &Store{DataDir: dataDir, Sets: sets(t, "10.1.0.0/26", "fd00::/64"), Log: testLog(t)}
			ctx := context.Background()
			for round := range 12 {
				var cmds []*exec.Cmd
				for i := range 4 {
					cmds = append(cmds, start(t, nil, "churn", dataDir, "10.1.0.0/26", fmt.Sprint("k", i)))
				}
				for _, cmd := range cmds {
					<-time.After(time.Duration(rand.IntN(12_000)) * time.Microsecond) // no event to wait for: any moment will do
					if err := cmd.Process.Kill(); err != nil {
						t.Error(err)
					}
				}
				for _, cmd := range cmds {
					_ = cmd.Wait() // killed, as it should be
				}
				whole(t, dataDir)
				audit(t, s)
				if round%2 == 0 {
					for i := range 4 {
						for j := range 8 {
							del(t, s, fmt.Sprintf("k%d-%d", i, j))
						}
					}
				} else if err := s.Sweep(ctx, "net", nil); err != nil {
					t.Error(err)
				}
				if left := leases(t, dataDir); len(left) > 0 {
					t.Fatalf("round %d left %v", round, left)
				}
				if !audit(t, s) {
					if _, err := os.Stat(filepath.Join(dataDir, "net")); err == nil {
						t.Error("the index does not count")
					}
				}
			}
		})
	}
}

// Killed before and after each system call that changes something, one after the other.
// clause: P11 P12
func TestKilledAtEachCall(t *testing.T) {
	prepare := map[string]func(t *testing.T, s *Store){
		"first ADD": func(*testing.T, *Store) {},
		"ADD":       func(t *testing.T, s *Store) { add(t, s, "x"); add(t, s, "y") },
		"ADD after another": func(t *testing.T, s *Store) {
			add(t, s, "x")
			put(t, s.DataDir, "10.1.0.3", "z\r\neth0")
			put(t, s.DataDir, "10.1.0.4", "")
		},
		"DEL":               func(t *testing.T, s *Store) { add(t, s, "x"); add(t, s, "v") },
		"DEL after another": func(t *testing.T, s *Store) { add(t, s, "v"); put(t, s.DataDir, "10.1.0.3", "z\r\neth0") },
		"GC": func(t *testing.T, s *Store) {
			add(t, s, "x")
			add(t, s, "v")
			put(t, s.DataDir, "10.1.0.9",
				"")
		},
	}
	for name, prep := range prepare {
		t.Run(name, func(t *testing.T) {
			verb := map[byte]string{'f': "add", 'A': "add", 'D': "del", 'G': "sweep"}[name[0]]
			last := nstest.Sample(t, 6, func(n int) bool {
				s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: testLog(t)}
				prep(t, s)
				killed, at := killAt(t, n, verb, s.DataDir, "10.1.0.0/24", "v")
				if t.Failed() {
					t.Fatalf("at point %d, %s", n, at)
				}
				for a, text := range leases(t, s.DataDir) {
					if text == "" && (a == "10.1.0.4" || a == "10.1.0.9") {
						continue // ours to begin with
					}
					if !strings.HasSuffix(text, "\r\neth0") {
						t.Errorf("killed at %s: %s is torn: %q", at, a, text)
					}
				}
				audit(t, s)
				if n%2 == 0 {
					del(t, s, "v")
				} else if err := s.Sweep(context.Background(), "net", owners("x", "y", "z")); err != nil {
					t.Error(err)
				}
				for a, text := range leases(t, s.DataDir) {
					if text == "v\r\neth0" || text == "" {
						t.Errorf("killed at %s: %s is left: %q", at, a, text)
					}
				}
				audit(t, s)
				got := add(t, s, "w")
				if !audit(t, s) {
					t.Errorf("killed at %s: the index does not count", at)
				}
				if !killed && verb == "add" && got[0] == "" {
					t.Error("no address")
				}
				return killed
			})
			if last == 0 {
				t.Error("killed at no point")
			}
			t.Logf("the last point is %d", last)
		})
	}
}

// killAt runs a child and kills it when it enters, or leaves, a system call that changes a file for the
// n-th time.
func killAt(t *testing.T, n int, args ...string) (killed bool, at string) {
	t.Helper()
	runtime.LockOSThread() // one thread is the tracer
	defer runtime.UnlockOSThread()
	cmd := command(nil, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skipf("trace a child: %v", err)
		}
		t.Fatal(err)
	}
	defer cmd.Process.Release()
	root := cmd.Process.Pid
	var ws unix.WaitStatus
	if _, err := unix.Wait4(root, &ws, 0, nil); err != nil {
		t.Fatal(err)
	}
	const options = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(root, options); err != nil {
		t.Fatal(err)
	}
	inCall := map[int]string{}
	pid, sig := root, 0
	for {
		if err := unix.PtraceSyscall(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
		var err error
		if pid, err = unix.Wait4(-1, &ws, unix.WALL, nil); err != nil {
			t.Fatal(err)
		}
		sig = 0
		switch {
		case pid == root && (ws.Exited() || ws.Signaled()):
			if ws.Exited() && ws.ExitStatus() != 0 {
				t.Errorf("the child ends with %d", ws.ExitStatus())
			}
			return ws.Signaled(), at
		case !ws.Stopped():
			continue // another thread's end
		case ws.StopSignal() == unix.SIGTRAP|0x80:
			name := changing(t, pid, inCall)
			if name == "" {
				continue
			}
			if n--; n == 0 {
				at = name
				if err := unix.Kill(root, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		case ws.StopSignal() != unix.SIGTRAP && ws.StopSignal() != unix.SIGSTOP:
			sig = int(ws.StopSignal()) // the runtime's own, such as SIGURG
		}
	}
}

// changing names the system call that pid enters or leaves, if it is one that changes a file.
func changing(t *testing.T, pid int, inCall map[int]string) string {
	t.Helper()
	var info struct { // struct ptrace_syscall_info
		op   uint8
		_    [7]byte
		_    [2]uint64
		nr   uint64 // of an entry; of an exit, what it returned
		args [6]uint64
		_    uint64
	}
	const getSyscallInfo = 0x420e // since 5.3
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(pid), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0); e != 0 {
		t.Skipf("ask for the system call of a traced process: %v", e)
	}
	const entry, exit = 1, 2
	switch info.op {
	case exit:
		name := inCall[pid]
		delete(inCall, pid)
		if name != "" {
			name = "the end of " + name
		}
		return name
	case entry:
		var name string
		switch info.nr {
		case unix.SYS_OPENAT:
			if info.args[2]&(unix.O_CREAT|unix.O_TMPFILE&^unix.O_DIRECTORY) != 0 {
				name = "openat"
			}
		case unix.SYS_MKDIRAT:
			name = "mkdirat"
		case unix.SYS_LINKAT:
			name = "linkat"
		case unix.SYS_UNLINKAT:
			name = "unlinkat"
		case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
			name = "renameat"
		case unix.SYS_PWRITE64:
			name = "pwrite"
		case unix.SYS_WRITE:
			if info.args[0] > 2 {
				name = "write"
			}
		case unix.SYS_FSYNC, unix.SYS_SYNCFS:
			name = "fsync"
		case unix.SYS_FTRUNCATE:
			name = "ftruncate"
		case unix.SYS_UTIMENSAT:
			name = "utimensat"
		case unix.SYS_FLOCK:
			name = "flock"
		}
		inCall[pid] = name
		return name
	}
	return ""
}

// A full disk refuses ADD and leaves nothing behind; DEL works on it.
// clause: P11
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=192k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	s := &Store{DataDir: dir, Sets: sets(t, "10.1.0.0/16", "fd00::/64"), Log: testLog(t)}
	ctx := context.Background()
	for fill := range 3 {
		held := map[string]bool{}
		refused := 0
		for i := 0; refused < 5; i++ {
			id := fmt.Sprintf("f%d-%d", fill, i)
			_, err := s.Allocate(ctx, owner(id))
			switch {
			case err == nil:
				held[id] = true
			case errors.Is(err, unix.ENOSPC):
				if e := spec.AsError(err, 0); e.Code != spec.CodeIO {
					t.Errorf("code %d: %v", e.Code, err)
				}
				refused++
			default:
				t.Fatal(err)
			}
			if i > 1000 {
				t.Fatal("the disk does not fill up")
			}
		}
		whole(t, dir)
		if got := leases(t, dir); len(got) != 2*len(held) || len(held) == 0 {
			t.Errorf("%d owners hold %d leases", len(held), len(got))
		}
		audit(t, s)
		for id := range held {
			if _, err := s.Allocate(ctx, owner(id)); err == nil || !strings.Contains(err.Error(), "already has") {
				t.Errorf("ADD twice on a full disk: %v", err)
			}
			del(t, s, id)
		}
		if got := leases(t, dir); len(got) > 0 {
			t.Errorf("left: %v", got)
		}
		audit(t, s)
	}
}

// Where the index can be kept nowhere, everything works, by reading the directory.
func TestIndexNowhere(t *testing.T) {
	dir := t.TempDir()
	s := &Store{DataDir: dir, Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: testLog(t)}
	net := filepath.Join(dir, "net")
	if err := os.Mkdir(net, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		unix.Mount(dir, dir, "", unix.MS_BIND, ""),
		unix.Mount("tmpfs", net, "tmpfs", 0, ""),
		unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { unix.Unmount(net, unix.MNT_DETACH); unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.Mkdir(filepath.Join(dir, "x"), 0o755); !errors.Is(err, unix.EROFS) {
		t.Fatalf("the folder can be written to: %v", err)
	}
	add(t, s, "a")
	add(t, s, "b")
	if _, err := s.Allocate(context.Background(), owner("a")); err == nil {
		t.Error("ADD twice")
	}
	del(t, s, "a")
	if got := add(t, s, "c"); got[0] != "10.1.0.4" {
		t.Errorf("got %s", got)
	}
	if err := s.Sweep(context.Background(), "net", owners("c")); err != nil {
		t.Error(err)
	}
	if got := leases(t, dir); len(got) != 2 || got["10.1.0.4"] != "c\r\neth0" {
		t.Errorf("leases: %v", got)
	}
}
