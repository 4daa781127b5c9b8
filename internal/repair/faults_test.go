package repair_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// TestFaults lets calls of a repair fail by which it asks or changes the kernel or a file. No port is published then
// without the guard of 127.0.0.0/8. A repair that succeeds has done its work. One that fails says why, and the next one
// does the rest.
func TestFaults(t *testing.T) {
	s := newSite(t)
	red := s.network("red", "10.9.1.0/24", `{"type":"firewall","ingressPolicy":"strict"}`)
	all := []*box{s.add(red, "a", "127.0.0.1:8000:80"), s.add(red, "b", "8001:80")}
	before := elements(t)
	faults := nstest.Faults()
	for i, call := range []string{"sendto", "openat", "write", "renameat", "unlinkat", "mkdirat", "socket", "setns"} {
		t.Run(call, func(t *testing.T) {
			nstest.Sample(t, 15, func(n int) bool {
				errno := faults[(i+n)%len(faults)]
				what := fmt.Sprintf("a repair whose %s number %d is %s", call, n, unix.ErrnoName(errno))
				nstest.Run(t, "nft", "flush", "ruleset")
				fired, said, err := s.faulty(call, n, errno)
				rules := elements(t)
				if strings.Contains(rules, "8000") && strings.Count(rules, `127.0.0.0/8 drop comment`) != 2 {
					t.Errorf("%s: ports are published and 127.0.0.0/8 is not guarded:\n%s", what, rules)
				}
				if err == nil && rules != before {
					t.Errorf("%s succeeds, and there is\n%s\nwant\n%s", what, rules, before)
				}
				if err != nil && said == "" {
					t.Errorf("%s: %v, and not a word", what, err)
				}
				s.repair()
				if after := elements(t); after != before {
					t.Errorf("after %s (%v: %s) and another repair there is\n%s\nwant\n%s", what, err, said, after, before)
				}
				return fired
			})
		})
	}
	s.whole("repaired", all...)
}

// faulty repairs in a process of its own, and has the nth call of a name fail. Of files, those count that it changes.
func (s *site) faulty(call string, n int, errno unix.Errno) (fired bool, said string, err error) {
	exe, err := os.Executable()
	if err != nil {
		return false, "", err
	}
	cmd, count := exec.Command(exe), 0
	cmd.Env = append(os.Environ(), repairVar+"=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = nstest.WithFaults(cmd, func(c nstest.Syscall) unix.Errno {
		if (call == "openat" || call == "write") && !c.Room {
			return 0
		}
		if count++; count != n {
			return 0
		}
		fired = true
		return errno
	}, call)
	return fired, out.String(), err
}
