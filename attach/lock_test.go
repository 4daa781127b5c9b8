package attach_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/spec"
)

// held starts do, whose plugin waits, and returns when it does; release lets it end and returns its error.
func held(t *testing.T, w *world, do func(*attach.Runtime) error) (release func() error) {
	t.Helper()
	waiting := make(chan struct{})
	r := &attach.Runtime{PluginDirs: w.PluginDirs, CacheDir: w.CacheDir, LockDir: w.LockDir, Env: w.Env,
		Stderr: &trigger{text: "waiting", f: func() { close(waiting) }}}
	done := make(chan error, 1)
	go func() { done <- do(r) }()
	select {
	case <-waiting:
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	}
	return func() error {
		f, err := os.OpenFile(filepath.Join(w.dir, "pipe"), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		f.Close()
		return <-done
	}
}

// waits is a list whose verb waits for release.
func waits(t *testing.T, w *world, verb string) *spec.List {
	t.Helper()
	pipe := filepath.Join(w.dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	return chain(t, "1.1.0", three[:1], map[string]map[string]order{
		"first": {verb: {Wait: pipe, Stdout: map[string]string{"ADD": `{"cniVersion":"1.1.0"}`}[verb]}}})
}

// soon is a context that ends soon: for what is to be found blocked.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// blocked: the operation did not begin, and its error says who is in the way.
func blocked(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(fmt.Sprint(err), fmt.Sprintf("held by process %d", os.Getpid())) {
		t.Errorf("%s: %v, want it blocked", what, err)
	}
}

// clause: R8
func TestOneContainerAtATime(t *testing.T) {
	w := newWorld(t)
	l, other := chain(t, "1.1.0", three[:1], nil), chain(t, "1.1.0", three[:1], nil)
	other.Name = "wan"
	a := web(t)
	second := a
	second.IfName = "eth1"
	slow := waits(t, w, "ADD")
	release := held(t, w, func(r *attach.Runtime) error {
		_, err := r.Add(bounded(t), slow, a)
		return err
	})
	w.told()
	_, add := w.Add(soon(t), l, second)
	blocked(t, "ADD of another interface", add)
	_, add = w.Add(soon(t), other, second)
	blocked(t, "ADD to another network", add)
	blocked(t, "DEL", w.Del(soon(t), l, a))
	blocked(t, "CHECK", w.Check(soon(t), l, a))
	w.expect("")
	free := a
	free.ContainerID = "another"
	if _, err := w.Add(bounded(t), l, free); err != nil {
		t.Errorf("ADD of another container: %v", err)
	}
	later := make(chan error)
	go func() { later <- w.Del(bounded(t), l, a) }()
	if err := release(); err != nil {
		t.Error(err)
	}
	if err := <-later; err != nil {
		t.Errorf("DEL after ADD: %v", err)
	}
	w.expect("ADD first, DEL first")
}

// clause: R9
func TestGCExcludesAddAndDel(t *testing.T) {
	w := newWorld(t)
	l, other := chain(t, "1.1.0", three[:1], nil), chain(t, "1.1.0", three[:1], nil)
	other.Name = "wan"
	a := web(t)
	valid := []spec.Attachment{{ContainerID: "web", IfName: "eth0"}}

	slow := waits(t, w, "ADD")
	release := held(t, w, func(r *attach.Runtime) error {
		_, err := r.Add(bounded(t), slow, a)
		return err
	})
	w.told()
	blocked(t, "GC during ADD", w.GC(soon(t), l, valid))
	if err := w.GC(bounded(t), other, valid); err != nil {
		t.Errorf("GC of another network: %v", err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	w.told()

	slowGC := waits(t, w, "GC")
	release = held(t, w, func(r *attach.Runtime) error { return r.GC(bounded(t), slowGC, valid) })
	w.told()
	free := a
	free.ContainerID = "another"
	_, add := w.Add(soon(t), l, free)
	blocked(t, "ADD during GC", add)
	blocked(t, "DEL during GC", w.Del(soon(t), l, a))
	blocked(t, "GC during GC", w.GC(soon(t), l, valid))
	w.expect("")
	if _, err := w.Add(bounded(t), other, free); err != nil {
		t.Errorf("ADD to another network: %v", err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	if err := w.Del(bounded(t), l, a); err != nil {
		t.Error(err)
	}
}

// While GC deletes what a container had, nobody attaches the container to another network.
//
// clause: R8
func TestGCHoldsItsContainers(t *testing.T) {
	w := newWorld(t)
	other := chain(t, "1.1.0", three[:1], nil)
	other.Name = "wan"
	slow, a := waits(t, w, "DEL"), web(t)
	if _, err := w.Add(bounded(t), slow, a); err != nil {
		t.Fatal(err)
	}
	release := held(t, w, func(r *attach.Runtime) error { return r.GC(bounded(t), slow, []spec.Attachment{}) })
	w.told()
	_, add := w.Add(soon(t), other, a)
	blocked(t, "ADD to another network", add)
	w.expect("")
	if err := release(); err != nil {
		t.Error(err)
	}
}

// A waiter that gives up leaves no lock behind, and no thread but one a file.
func TestLockGivenUp(t *testing.T) {
	w := newWorld(t)
	l := chain(t, "1.1.0", three[:1], nil)
	a := web(t)
	slow := waits(t, w, "ADD")
	release := held(t, w, func(r *attach.Runtime) error {
		_, err := r.Add(bounded(t), slow, a)
		return err
	})
	for range 8 {
		blocked(t, "DEL", w.Del(soon(t), l, a))
	}
	if n := waiters(t); n != 1 {
		t.Errorf("%d threads wait for the lock, want 1", n)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if err := w.Del(bounded(t), l, a); err != nil {
		t.Error(err)
	}
}

// waiters counts this process's threads that wait in flock(2). /proc/locks lacks some while others come and go.
func waiters(t *testing.T) (n int) {
	t.Helper()
	threads, err := filepath.Glob("/proc/self/task/*/syscall")
	if err != nil || len(threads) == 0 {
		t.Fatal(threads, err)
	}
	for _, file := range threads {
		b, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) { // it ended meanwhile
			t.Fatal(err)
		}
		if strings.HasPrefix(string(b), fmt.Sprintf("%d ", syscall.SYS_FLOCK)) {
			n++
		}
	}
	return n
}

// A lock dies with its process, and a container's file is no rubbish for long.
func TestLockOfDeadProcess(t *testing.T) {
	w := newWorld(t)
	l := chain(t, "1.1.0", three[:1], nil)
	a := web(t)
	if err := os.MkdirAll(w.LockDir, 0o700); err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(w.LockDir, "container-web")
	if err := os.WriteFile(stale, nil, 0o600); err != nil { // what a killed one leaves
		t.Fatal(err)
	}
	if _, err := w.Add(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock file stays: %v", err)
	}
}

// GC removes the lock files of killed processes, whose containers never come back, and no file that somebody holds.
func TestLockFilesOfTheDead(t *testing.T) {
	w := newWorld(t)
	l := chain(t, "1.1.0", three[:1], nil)
	busy := waits(t, w, "ADD")
	busy.Name = "wan"
	a := web(t)
	release := held(t, w, func(r *attach.Runtime) error {
		_, err := r.Add(bounded(t), busy, a)
		return err
	})
	stale := filepath.Join(w.LockDir, "container-dead")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.GC(bounded(t), l, []spec.Attachment{}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock file stays: %v", err)
	}
	if _, err := os.Stat(filepath.Join(w.LockDir, "container-"+a.ContainerID)); err != nil {
		t.Errorf("the lock file of a process that holds it: %v", err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

// A lock directory that cannot be made is an error that names it, before anything runs.
func TestLockDir(t *testing.T) {
	w := newWorld(t)
	if err := os.WriteFile(w.LockDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := w.Add(bounded(t), chain(t, "1.1.0", three[:1], nil), web(t))
	if err == nil || !strings.Contains(err.Error(), w.LockDir) {
		t.Errorf("%v: does not name %s", err, w.LockDir)
	}
	w.expect("")
}

// On a full disk, DEL finds a lock where there is no room for its file, and it is still that of one container. Calls
// that find room meanwhile wait for it.
func TestLockWithoutRoom(t *testing.T) {
	w := newWorld(t)
	w.LockDir = filepath.Join(t.TempDir(), "run", "locks")
	above := filepath.Dir(w.LockDir)
	if err := os.MkdirAll(above, 0o755); err != nil {
		t.Fatal(err)
	}
	full := "size=4k,nr_inodes=1" // which the root directory has
	if err := syscall.Mount("tmpfs", above, "tmpfs", 0, full); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Unmount(above, syscall.MNT_DETACH) })
	if err := os.MkdirAll(w.LockDir, 0o755); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}

	l, a := chain(t, "1.1.0", three[:1], nil), web(t)
	slow := waits(t, w, "DEL")
	release := held(t, w, func(r *attach.Runtime) error { return r.Del(bounded(t), slow, a) })
	w.told()
	blocked(t, "DEL", w.Del(soon(t), l, a))
	blocked(t, "GC", w.GC(soon(t), l, []spec.Attachment{}))
	if err := syscall.Mount("", above, "", syscall.MS_REMOUNT, "size=1m,nr_inodes=100"); err != nil {
		t.Fatal(err)
	}
	blocked(t, "DEL with room", w.Del(soon(t), l, a))
	blocked(t, "GC with room", w.GC(soon(t), l, []spec.Attachment{}))
	if err := release(); err != nil {
		t.Error(err)
	}
	if err := w.Del(bounded(t), l, a); err != nil {
		t.Error(err)
	}
	if err := w.GC(bounded(t), l, []spec.Attachment{}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(above); err != nil {
		t.Errorf("the directory is gone: %v", err)
	}
}
