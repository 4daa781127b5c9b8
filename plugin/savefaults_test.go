package plugin_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// TestHalfSaved lets each question fail that iptables-save asks of the kernel. It then prints a part of the rules, or
// none, and succeeds. What ADD does not read it does not make a second time.
func TestHalfSaved(t *testing.T) {
	for _, call := range []string{"sendto", "recvmsg"} {
		nstest.Apart(t, call, func(t *testing.T) {
			r := listed(t, "firewall-iptables").runner(t)
			withoutBridges(t)
			r.must("ADD", r.add(&attachment{id: "first", netns: nstest.NewNS(t)}))
			before := state(t)
			nstest.Sample(t, 12, func(n int) (fired bool) { return halfSaved(t, r, before, call, n) })
		})
	}
}

func halfSaved(t *testing.T, r *runner, before, call string, n int) (fired bool) {
	t.Helper()
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	count := 0
	r.start = func(cmd *exec.Cmd) error {
		return nstest.WithFaults(cmd, func(s nstest.Syscall) unix.Errno {
			if s.Name != call || !strings.HasPrefix(s.By, "iptables-nft-sa") && !strings.HasPrefix(s.By, "ip6tables-nft-s") {
				return 0
			}
			if count++; count != n {
				return 0
			}
			fired = true
			return unix.ENOBUFS
		}, call)
	}
	err := r.add(a)
	r.start = nil
	what := fmt.Sprintf("ADD whose iptables-save gets ENOBUFS at %s number %d (%v)", call, n, err)
	lines := map[string]bool{}
	for _, save := range []string{"iptables-nft-save", "ip6tables-nft-save"} {
		for line := range strings.Lines(nstest.Run(t, save)) {
			if key := save + line; strings.HasPrefix(line, "-A") {
				if lines[key] {
					t.Errorf("%s made twice: %s", what, key)
				}
				lines[key] = true
			}
		}
	}
	r.must("DEL", r.del(a))
	same(t, "the DEL after "+what, before)
	return fired
}
