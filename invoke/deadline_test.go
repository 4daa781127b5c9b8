package invoke_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// trigger calls f once text has been written to it.
type trigger struct {
	mu   sync.Mutex
	seen bytes.Buffer
	text string
	f    func()
}

func (g *trigger) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen.Write(p)
	if g.f != nil && strings.Contains(g.seen.String(), g.text) {
		g.f()
		g.f = nil
	}
	return len(p), nil
}

// lifeline is a pipe that plugins hold open while they live.
func lifeline(t *testing.T) (path string, pipe *os.File) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "alive")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pipe.Close() })
	return path, pipe
}

// allGone waits until nobody holds the pipe open any more.
func allGone(t *testing.T, pipe *os.File) {
	t.Helper()
	if err := pipe.SetReadDeadline(nstest.Deadline(t)); err != nil {
		t.Fatal(err)
	}
	if n, err := pipe.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("read %d, %v: a process still lives", n, err)
	}
}

// A runtime that is killed takes its plugins along: its locks are gone, so nobody may go on.
//
// clause: R8
func TestCallerKilled(t *testing.T) {
	dir := plugin(t, "runtime", "orderly")
	alive, pipe := lifeline(t)
	cmd := exec.Command(filepath.Join(dir, "runtime"))
	cmd.Env = append(os.Environ(), "ALIVE="+alive)
	cmd.Stderr = &trigger{text: "ready", f: func() { _ = cmd.Process.Kill() }}
	cmd.WaitDelay = 20 * time.Second
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.String() != "signal: killed" {
		t.Fatalf("%v: want the runtime killed", err)
	}
	allGone(t, pipe)
}

// clause: R12
func TestDeadline(t *testing.T) {
	dir := plugin(t, "orderly", "stubborn", "family")
	gone := errors.New("the caller went away")
	for _, tc := range []struct {
		name   string
		status int
		signal syscall.Signal
		doc    bool
		grace  time.Duration
	}{
		{"orderly", 1, 0, true, time.Hour}, // SIGTERM, and time to clean up
		{"stubborn", -1, syscall.SIGKILL, false, 50 * time.Millisecond},
		{"family", 1, 0, false, 5 * time.Second}, // its delegate ignores SIGTERM and is killed all the same
	} {
		t.Run(tc.name, func(t *testing.T) {
			alive, pipe := lifeline(t)
			ctx, cancel := context.WithCancelCause(bounded(t))
			defer cancel(nil)
			c := call()
			c.Env = append(os.Environ(), "ALIVE="+alive)
			c.Grace = tc.grace
			c.Stderr = &trigger{text: "ready", f: func() { cancel(gone) }}
			_, err := invoke.Run(ctx, filepath.Join(dir, tc.name), c)
			var e *invoke.ExecError
			if !errors.As(err, &e) || !errors.Is(err, gone) {
				t.Fatalf("%v: want an ExecError, and why the context ended", err)
			}
			if e.Status != tc.status || e.Signal != tc.signal {
				t.Errorf("status %d, signal %d, want %d, %d", e.Status, e.Signal, tc.status, tc.signal)
			}
			var doc *spec.Error
			if errors.As(err, &doc) != tc.doc {
				t.Errorf("%v: document %v, want %v", err, doc, tc.doc)
			}
			allGone(t, pipe)
		})
	}
	t.Run("passed before", func(t *testing.T) {
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		_, err := invoke.Run(ctx, filepath.Join(dir, "orderly"), call())
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "orderly") {
			t.Error(err)
		}
	})
}

// A delegate stays in the process group of the plugin that runs it, any other plugin leads its own.
func TestGroup(t *testing.T) {
	dir := plugin(t, "group")
	for _, delegate := range []bool{false, true} {
		c := call()
		c.Delegate = delegate
		out, err := invoke.Run(bounded(t), filepath.Join(dir, "group"), c)
		if err != nil {
			t.Fatal(err)
		}
		var ids struct{ Pid, Group int }
		if err := json.Unmarshal(out, &ids); err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{false: ids.Pid, true: syscall.Getpgrp()}[delegate]; ids.Group != want {
			t.Errorf("delegate %v: group %d, want %d", delegate, ids.Group, want)
		}
	}
}

// A daemon that a plugin leaves behind, its stderr still open, costs no more than the grace.
func TestDaemonLeftBehind(t *testing.T) {
	dir := plugin(t, "leaver", "stubborn")
	alive := filepath.Join(t.TempDir(), "alive")
	if err := syscall.Mkfifo(alive, 0o600); err != nil {
		t.Fatal(err)
	}
	c := call()
	c.Env = append(os.Environ(), "ALIVE="+alive)
	c.Grace = 20 * time.Millisecond
	out, err := invoke.Run(bounded(t), filepath.Join(dir, "leaver"), c)
	if err != nil || string(out) != `{"cniVersion":"1.1.0"}` {
		t.Errorf("%q, %v", out, err)
	}
	// The daemon waits for a reader of the pipe; it ends as soon as one has come and gone.
	pipe, err := os.OpenFile(alive, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	pipe.Close()
}
