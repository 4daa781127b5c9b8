package plugin_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestRecycledNamespace: where CNI_NETNS leads to another namespace than the one that ADD saw, as the path of a dead
// process does, DEL leaves what is in it alone, also a link that looks like the attachment's own, and all else goes.
//
// clause: P12
func TestRecycledNamespace(t *testing.T) {
	needTap(t)
	for _, prev := range []bool{true, false} {
		r := newRunner(t, chain{name: "recycled", plugins: []string{`"type":"tap",` + hostLocal}})
		a := &attachment{id: "c1", netns: nstest.NewNS(t)}
		r.must("add", r.add(a))
		show := func() string { return nstest.RunIn(t, a.netns, "ip", "-o", "link", "show", "eth0") }
		mac := strings.Fields(show()[strings.Index(show(), "link/ether"):])[1]
		if err := nstest.RemoveNS(a.netns); err != nil {
			t.Fatal(err)
		}
		if err := nstest.MakeNS(a.netns); err != nil {
			t.Fatal(err)
		}
		nstest.RunIn(t, a.netns, "sh", "-ec", "ip tuntap add eth0 mode tap; ip link set eth0 address "+mac+" up")
		d := *a
		if !prev {
			d.prev = nil
		}
		r.must("del", r.del(&d))
		if out := show(); !strings.Contains(out, mac) {
			t.Errorf("eth0 of another namespace is now %s", out)
		}
		if s := state(t); strings.Contains(s, "/networks/life-recycled/10.") {
			t.Errorf("del left\n%s", s)
		}
		nstest.RunIn(t, a.netns, "ip", "link", "del", "eth0")
	}
}
