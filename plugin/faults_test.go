package plugin_test

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// TestFaults lets each question that ADD, and then DEL, asks of the kernel about the container's namespace fail. What
// fails says so in an error document. A DEL has either done all its work, or says that it has not, and then the address
// is the container's for as long as its interface is, and the next DEL does the work.
func TestFaults(t *testing.T) {
	for _, c := range chains {
		if !slices.Contains([]string{"macvlan", "host-device", "bridge"}, c.name) {
			continue
		}
		numbers := []unix.Errno{unix.ENFILE, unix.EMFILE, unix.ENOBUFS, unix.ENOMEM, unix.EPERM}
		for _, verb := range []string{"ADD", "DEL"} {
			nstest.Apart(t, c.name+"/"+verb, func(t *testing.T) {
				r := c.runner(t)
				withoutBridges(t)
				warm := &attachment{id: "warm", netns: nstest.NewNS(t)}
				r.must("ADD", r.add(warm))
				r.must("DEL", r.del(warm))
				before := state(t)
				for i, call := range []string{"socket", "setns", "openat", "ioctl", "fstat", "getsockopt", "sendto"} {
					t.Run(call, func(t *testing.T) {
						nstest.Sample(t, 8, func(n int) (fired bool) {
							return fault(t, r.in(t), before, verb, call, n, numbers[(i+n)%len(numbers)])
						})
					})
				}
			})
		}
	}
}

func fault(t *testing.T, r *runner, before, verb, call string, n int, errno unix.Errno) (fired bool) {
	t.Helper()
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	if verb == "DEL" {
		r.must("ADD", r.add(a))
	}
	count := 0
	r.start = func(cmd *exec.Cmd) error {
		return nstest.WithFaults(cmd, func(s nstest.Syscall) unix.Errno {
			if s.Name != call || s.Name == "openat" && s.Path != a.netns && !strings.HasSuffix(s.Path, "/ns/net") {
				return 0
			}
			if count++; count != n {
				return 0
			}
			fired = true
			return errno
		}, call)
	}
	var err error
	if verb == "ADD" {
		err = r.add(a)
	} else {
		err = r.del(a)
	}
	r.start = nil
	what := fmt.Sprintf("%s whose %s number %d is %v", verb, call, n, unix.ErrnoName(errno))
	var document *spec.Error
	if err != nil && !errors.As(err, &document) {
		t.Errorf("%s: %v", what, err)
	}
	there := func() bool { return strings.Contains(nstest.RunIn(t, a.netns, "ip", "-br", "link"), "eth0") }
	leased := nstest.Run(t, "sh", "-c", "ls -d /var/lib/cni/networks/"+a.network+"/10.* 2>/dev/null || true") != ""
	switch {
	case verb == "ADD" && err == nil:
		if made := nstest.Run(t, "sh", "-c", "cat /run/cni/fairlead/memory/netns.*"); strings.Contains(made, `"Cookie":0`) {
			t.Errorf("%s has written down %s", what, made)
		}
	case verb == "ADD":
	case err == nil && there():
		t.Errorf("%s succeeds, and eth0 is there", what)
	case err == nil:
		same(t, what, before)
	case there() && !leased:
		t.Errorf("%s (%v) has given the address of a living interface away", what, err)
	}
	if err := r.del(a); err != nil {
		t.Errorf("the DEL after %s: %v", what, err)
	}
	if there() {
		t.Errorf("the DEL after %s succeeds, and eth0 is there", what)
	}
	if err != nil {
		same(t, "the DEL after "+what, before)
	}
	return fired
}
