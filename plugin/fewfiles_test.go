package plugin_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestFewFiles gives ADD so few descriptors that it fails sooner or later. It has then left nothing.
//
// clause: P12
func TestFewFiles(t *testing.T) {
	for _, c := range chains {
		if !slices.Contains([]string{"bridge", "ptp", "macvlan", "macvtap", "ipvlan", "tap", "host-device", "vlan", "dummy",
			"ptp-chain" + inChain}, c.name) {
			continue
		}
		nstest.Apart(t, c.name, func(t *testing.T) {
			r := c.runner(t)
			withoutBridges(t)
			warm := &attachment{id: "warm", netns: nstest.NewNS(t)}
			r.must("ADD", r.add(warm))
			r.must("DEL", r.del(warm))
			before := state(t)
			inherited, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer inherited.Close()
			r.start = func(cmd *exec.Cmd) error {
				cmd.ExtraFiles = slices.Repeat([]*os.File{inherited}, 30)
				return cmd.Run()
			}
			succeeded := 0
			nstest.Sample(t, 8, func(n int) bool {
				limit := 4 + n
				if limit > 128 {
					t.Fatal("ADD never succeeds")
				}
				a := &attachment{id: "c1", netns: nstest.NewNS(t)}
				empty := nstest.RunIn(t, a.netns, "ip", "-d", "addr")
				err := r.add(a, "sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$@"`, limit), "sh")
				if err == nil {
					r.must("DEL", r.del(a))
					succeeded++
					return succeeded < 2
				}
				what := fmt.Sprintf("ADD with %d files (%v)", limit, err)
				same(t, what, before)
				if left := nstest.RunIn(t, a.netns, "ip", "-d", "addr"); left != empty {
					t.Errorf("%s left in the container\n%s", what, left)
				}
				return true
			})
		})
	}
}
