package plugin_test

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// TestCallFaults lets calls of ADD and of DEL fail by which they ask or change the kernel or a file. What fails says so
// in an error document, and what succeeds has done its work. A failed ADD has no address any more. The next DEL leaves
// nothing.
func TestCallFaults(t *testing.T) {
	faults := nstest.Faults()
	for i, c := range chains {
		if !c.kill {
			continue
		}
		nstest.Apart(t, c.name, func(t *testing.T) {
			r := c.runner(t)
			withoutBridges(t)
			warm := &attachment{id: "warm", netns: nstest.NewNS(t)} // which leaves what stays with the network
			r.must("ADD", r.add(warm))
			r.must("DEL", r.del(warm))
			f := faulty{runner: r, before: state(t)}
			verbs := []string{"ADD", "DEL"}
			calls := []int{f.calls(t, verbs[0]), f.calls(t, verbs[1])}
			nstest.Sample(t, 60, func(n int) (there bool) {
				v, call := n%2, n/2
				if call < calls[v] {
					f.one(t, verbs[v], call, faults[(i+call)%len(faults)])
				}
				return call < max(calls[0], calls[1])
			})
		})
	}
}

// TestRemoveWhenEmptyFaults lets each message fail by which DEL removes a port and its bridge. The bridge goes with the
// next DEL.
func TestRemoveWhenEmptyFaults(t *testing.T) {
	r := listed(t, "bridge-empty").runner(t)
	withoutBridges(t)
	f := faulty{runner: r, before: state(t), only: "sendto"}
	all := f.calls(t, "DEL")
	nstest.Sample(t, 2, func(n int) (there bool) { // the link is asked for and deleted by successive ones
		if there = n <= all; there {
			f.one(t, "DEL", n-1, unix.ENOMEM)
		}
		return there
	})
}

// faulty makes calls of plugins of which one system call fails.
type faulty struct {
	*runner
	before string
	only   string // this system call; empty: all
}

// calls is how many system calls of a verb may fail.
func (f faulty) calls(t *testing.T, verb string) (n int) {
	t.Helper()
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	if verb == "DEL" {
		f.must("ADD", f.add(a))
	}
	f.must(verb, f.with(verb, a, func(nstest.Syscall) unix.Errno {
		n++
		return 0
	}))
	f.must("DEL", f.del(a))
	return n
}

// with makes a call, and asks fault of each system call by which it asks or changes something.
func (f faulty) with(verb string, a *attachment, fault func(nstest.Syscall) unix.Errno) error {
	f.start = func(cmd *exec.Cmd) error {
		return nstest.WithFaults(cmd, func(s nstest.Syscall) unix.Errno {
			if strings.HasPrefix(s.By, "iptables") || strings.HasPrefix(s.By, "ip6tables") {
				return 0 // which is not ours, and succeeds although it has failed
			}
			if f.only != "" && s.Name != f.only || !s.Room && slices.Contains([]string{"openat", "write", "pwrite64"}, s.Name) {
				return 0
			}
			return fault(s)
		}, "sendto", "openat", "write", "pwrite64", "mkdirat", "linkat", "renameat", "unlinkat", "socket", "setns")
	}
	defer func() { f.start = nil }()
	if verb == "DEL" {
		return f.del(a)
	}
	return f.add(a)
}

// one has the nth call fail, from 0.
func (f faulty) one(t *testing.T, verb string, n int, errno unix.Errno) {
	t.Helper()
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	if verb == "DEL" {
		f.must("ADD", f.add(a))
	}
	var failed nstest.Syscall
	at, what := 0, fmt.Sprintf("%s whose call %d is %s", verb, n, unix.ErrnoName(errno))
	err := f.with(verb, a, func(s nstest.Syscall) unix.Errno {
		if at++; at != n+1 {
			return 0
		}
		failed = s
		what += fmt.Sprintf(" (%s %s of %s)", s.Name, s.Path, s.By)
		return errno
	})
	if document := (*spec.Error)(nil); err != nil && !errors.As(err, &document) {
		t.Errorf("%s: no error document: %v", what, err)
	}
	if verb == "DEL" && err == nil {
		same(t, what+" succeeds, and", f.before)
	}
	if verb == "ADD" && err != nil && f.takesBack(failed) {
		if leases, _ := filepath.Glob("/var/lib/cni/networks/" + f.network() + "/[1-9f]*"); len(leases) > 0 {
			t.Errorf("%s (%v) keeps %q", what, err, leases)
		}
	}
	if again := f.del(a); again != nil {
		t.Errorf("DEL after %s (%v): %v", what, err, again)
	}
	same(t, fmt.Sprintf("DEL after %s (%v)", what, err), f.before)
}

// takesBack reports whether a plugin is to take back what it has done where a call fails: what later plugins of the list
// find stays until DEL. A thread that cannot leave the container's namespace may do nothing more, and a plugin that
// cannot write its answer has ended.
func (f faulty) takesBack(call nstest.Syscall) bool {
	byFirst := strings.Contains(f.chain.plugins[0], fmt.Sprintf(`"type":%q`, call.By))
	return byFirst && call.Name != "setns" && !strings.HasPrefix(call.Path, "pipe:")
}
