package plugin_test

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// TestNoRoom lets the disk be full at each call of ADD that may need room, and for good from then on. An ADD that fails has left
// nothing: no address is reserved, and no link is there.
//
// clause: P12
func TestNoRoom(t *testing.T) {
	for _, c := range chains {
		if !slices.Contains([]string{"bridge", "ptp-chain" + inChain, "tuning" + inChain, "macvlan", "tap",
			"portmap-iptables"}, c.name) {
			continue
		}
		nstest.Apart(t, c.name, func(t *testing.T) {
			r := c.runner(t)
			withoutBridges(t)
			warm := &attachment{id: "warm", netns: nstest.NewNS(t)}
			r.must("ADD", r.add(warm))
			r.must("DEL", r.del(warm))
			before := state(t)
			for when, onwards := range map[string]bool{"at a call": false, "from a call on": true} {
				t.Run(when, func(t *testing.T) {
					nstest.Sample(t, 8, func(n int) (fired bool) { return full(t, r.in(t), before, n, onwards) })
				})
			}
		})
	}
}

// full has the nth call of the last plugin's ADD that may need room fail, and all further ones if onwards is true.
func full(t *testing.T, r *runner, before string, n int, onwards bool) (fired bool) {
	t.Helper()
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	empty := nstest.RunIn(t, a.netns, "ip", "-d", "addr")
	count, call := 0, ""
	run := func(cmd *exec.Cmd) error {
		return nstest.WithFaults(cmd, func(s nstest.Syscall) unix.Errno {
			if !s.Room {
				return 0
			}
			if count++; count == n {
				fired, call = true, s.Name+" "+s.Path
			}
			if count == n || count > n && onwards {
				return unix.ENOSPC
			}
			return 0
		}, "openat", "mkdirat", "linkat", "write", "pwrite64")
	}
	r.start = run
	err := r.add(a)
	r.start = nil
	what := fmt.Sprintf("ADD whose call number %d (%s) finds no room (further ones: %v; %v)", n, call, onwards, err)
	if err == nil {
		r.must("DEL", r.del(a))
		return fired
	}
	if len(r.chain.plugins) > 1 {
		r.must("DEL", r.del(a))
	}
	same(t, what, before)
	if left := nstest.RunIn(t, a.netns, "ip", "-d", "addr"); left != empty {
		t.Errorf("%s left in the container\n%s", what, left)
	}
	return fired
}
