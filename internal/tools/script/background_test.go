package script

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// killDescendants kills what a script that failed has left in the background. What ran to its end has left nothing. What such
// a process has started would hold its output open, and testscript would wait for it until the deadline.
func killDescendants(fatal func(string, ...any)) {
	var stopped []int
	for more := true; more; {
		more = false
		for _, pid := range descendants(fatal) {
			if !slices.Contains(stopped, pid) {
				unix.Kill(pid, unix.SIGSTOP) // so that it starts nothing more
				stopped, more = append(stopped, pid), true
			}
		}
	}
	for _, pid := range stopped {
		unix.Kill(pid, unix.SIGKILL)
	}
}

// descendants are the processes that this one has started, those that they have started, and so on.
func descendants(fatal func(string, ...any)) (all []int) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		fatal("%v", err)
	}
	children := map[int][]int{}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		var pid, parent int
		var state string
		name := strings.LastIndexByte(string(text), ')') // which may have any characters
		_, err = fmt.Sscan(string(text), &pid)
		if err == nil {
			_, err = fmt.Sscan(string(text[name+1:]), &state, &parent)
		}
		if err != nil {
			fatal("%s: %v", path, err)
		}
		children[parent] = append(children[parent], pid)
	}

	all = children[os.Getpid()]
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// A failing script ends its own goroutine, and no test.
type failing struct {
	oneScript
	said *strings.Builder
}

func (f failing) Run(_ string, fn func(testscript.T)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(f)
	}()
	<-done
}

func (f failing) FailNow()          { runtime.Goexit() }
func (f failing) Fatal(args ...any) { f.Log(args...); f.FailNow() }
func (f failing) Log(args ...any)   { fmt.Fprintln(f.said, args...) }

// A script that fails ends, though a process in its background has started one that would not.
func TestFailedScriptEnds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fails.txtar")
	text := "exec sh -c 'sleep 86400 & echo begun >begun; wait' &\nexec sh -c 'until [ -s begun ]; do :; done'\nexec false\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	script(t, failing{oneScript{t}, &said}, file)
	if !strings.Contains(said.String(), "[exec false] failed") && !strings.Contains(said.String(), "exit status 1") {
		t.Errorf("it says:\n%s", said.String())
	}
}
