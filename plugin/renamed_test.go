package plugin_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A container that is not valid any more, and lives on, keeps no link, whatever it has made of its name.
//
// clause: P22
func TestGCRenamed(t *testing.T) {
	for _, c := range chains {
		if len(c.breaks) == 0 || !hasRenamed(c) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := newRunner(t, c)
			withoutBridges(t)
			a := &attachment{id: "c1", netns: nstest.NewNS(t)}
			r.must("add", r.add(a))
			renamed.run(t, a)
			r.must("gc", r.gc("c1"))
			left := func() bool { return strings.Contains(nstest.RunIn(t, a.netns, "ip", "-br", "link"), "net9") }
			if !left() {
				t.Error("gc took what is valid")
			}
			r.must("gc of all", r.gc())
			if left() {
				t.Error("gc of all left net9")
			}
			r.must("del", r.del(a))
		})
	}
}

func hasRenamed(c chain) bool {
	for _, b := range c.breaks {
		if b.what == renamed.what && b.say == renamed.say {
			return true
		}
	}
	return false
}
