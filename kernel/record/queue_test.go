package record

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// holder is another process that has the lock of that name.
func holder(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	unlock, err := Lock(t.Context(), name) // which makes the file
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	path := filepath.Join(RunDir, name+".lock")
	cmd := exec.Command("flock", "--no-fork", path, "sh", "-c", "echo; exec sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// A holder that is stopped is passed by, by all who wait, and they keep their order: one at a time has the lock.
func TestQueuePassesStopped(t *testing.T) {
	stopped := holder(t, "passed")
	if err := stopped.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	const waiting = 20
	inside := make(chan struct{}, 1)
	done := make(chan error, waiting)
	for range waiting {
		go func() {
			held, err := Queue(t.Context(), time.Hour, "passed", false)
			if err == nil {
				select {
				case inside <- struct{}{}:
					<-inside
				default:
					err = errors.New("two have the lock")
				}
				if held.Lost() {
					err = errors.New("the lock is lost")
				}
				held.Release()
			}
			done <- err
		}()
	}
	for range waiting {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// A holder in another PID namespace, which /proc does not show here, is an error for those who have to see it.
func TestQueueUnseen(t *testing.T) {
	if os.Getenv(inPIDNamespace) == "" {
		t.Setenv(inPIDNamespace, "yes")
		holder(t, "unseen")
		cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", os.Args[0], "-test.run=^TestQueueUnseen$", "-test.v")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: TestQueueUnseen") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if _, err := Queue(t.Context(), time.Hour, "unseen", false); !errors.Is(err, ErrUnseen) {
		t.Errorf("with a holder that cannot be seen: %v", err)
	}
}

// A lock that goes from one to the next has no holder for a moment, which may be when it is looked at.
func TestQueueBetweenHolders(t *testing.T) {
	unlock, err := Lock(t.Context(), "between")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	w := watch{path: filepath.Join(RunDir, "between.lock"), bound: time.Hour, since: time.Now()}
	if err := unix.Stat(w.path, &w.file); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := w.look(); err != nil {
			t.Errorf("without a holder: %v", err)
		}
	}
}

// A lock that goes from one to the next all the time has a holder whenever it is looked at, and none that can be told.
func TestQueueOfFastHolders(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	path := filepath.Join(RunDir, "fast.lock")
	f, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		var err error
		for ctx.Err() == nil && err == nil {
			err = errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_EX), unix.Flock(int(f.Fd()), unix.LOCK_UN))
		}
		ended <- errors.Join(err, f.Close())
	}()
	w := watch{path: path, bound: time.Hour, since: time.Now()}
	if err := unix.Stat(path, &w.file); err != nil {
		t.Fatal(err)
	}
	for n := range 5_000 {
		if err := w.look(); err != nil {
			t.Errorf("look %d: %v", n, err)
			break
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A queue that goes on is waited for, however long it is: each holder has the bound for itself.
func TestQueueGoesOn(t *testing.T) {
	w := watch{bound: time.Hour}
	var holders []*exec.Cmd
	for range 3 {
		holders = append(holders, holder(t, "goes-on"))
		w.path = filepath.Join(RunDir, "goes-on.lock")
		if err := unix.Stat(w.path, &w.file); err != nil {
			t.Fatal(err)
		}
		w.since = time.Now().Add(-2 * time.Hour) // when the former holder got it
		if err := w.look(); err != nil {
			t.Errorf("with another holder: %v", err)
		}
		for { // a look that saw no holder, which /proc/locks may miss, knows none that has had it before
			w.since = time.Now().Add(-2 * time.Hour)
			err := w.look()
			if errors.Is(err, context.DeadlineExceeded) {
				break
			}
			if t.Context().Err() != nil {
				t.Fatalf("with a holder that has had it for two hours: %v", err)
			}
		}
		last := holders[len(holders)-1]
		_ = last.Process.Kill()
		_ = last.Wait()
	}
}

// A lock whose holder was stopped is waited for, and no longer than the bound: the holder goes on later with what it has read.
func TestFlockOfStopped(t *testing.T) {
	stopped := holder(t, "ledger")
	if err := stopped.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	open := func() *os.File {
		f, err := os.Open(filepath.Join(RunDir, "ledger.lock"))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	err := flockWithin(t.Context(), 2*time.Second, open())
	advice := fmt.Sprintf("kill -CONT %d", stopped.Process.Pid)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), advice) {
		t.Errorf("%v, want %q", err, advice)
	}
	_ = stopped.Process.Kill()
	_ = stopped.Wait()
	f := open()
	if err := Flock(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// A holder that goes on is waited for, however long it takes.
func TestQueueWaits(t *testing.T) {
	busy := holder(t, "busy")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := Queue(ctx, time.Hour, "busy", false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a holder that goes on: %v", err)
	}
	if err := busy.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	held, err := Queue(t.Context(), time.Hour, "busy", false)
	if err != nil {
		t.Fatal(err)
	}
	held.Release()
}

// Whoever has the lock is told when it has been passed by, and who opened the file before that takes the new one.
func TestQueueLost(t *testing.T) {
	held, err := Queue(t.Context(), time.Hour, "lost", false)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	var st unix.Stat_t
	path := filepath.Join(RunDir, "lost.lock")
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	passBy(t.Context(), path, st)
	if !held.Lost() {
		t.Error("the lock is not lost")
	}
	next, err := Queue(t.Context(), time.Hour, "lost", false)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Release()
	passBy(t.Context(), path, st) // which is not that file
	if next.Lost() {
		t.Error("who took the lock then has lost it, too")
	}
}

// The state of a thread is read by proc(5)'s words.
func TestStoppedState(t *testing.T) {
	for state, want := range map[string]bool{"T (stopped)": true, "t (tracing stop)": true, "S (sleeping)": false} {
		status := "Name:\tx\nState:\t" + state + "\nvoluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n"
		if switches, is := stoppedState(status); is != want || strings.TrimSpace(switches) != "3 4" {
			t.Errorf("%s: %q, %v", state, switches, is)
		}
	}
}
