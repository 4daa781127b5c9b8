package attach_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// clause: R10
func TestAddTwice(t *testing.T) {
	w := newWorld(t)
	a := web(t)
	l := chain(t, "1.0.0", three[:1], nil)
	if _, err := w.Add(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	w.told()
	other := a
	other.Netns = nstest.NewNS(t) // another namespace makes it no other attachment
	for _, again := range []attach.Attachment{a, other} {
		_, err := w.Add(bounded(t), l, again)
		if !errors.Is(err, attach.ErrAttached) || !strings.Contains(err.Error(), "delete it first") {
			t.Errorf("a second ADD: %v", err)
		}
	}
	w.expect("")
	second := a
	second.IfName = "eth1"
	if _, err := w.Add(bounded(t), l, second); err != nil {
		t.Error(err)
	}
	if err := w.Del(bounded(t), l, a); err != nil {
		t.Error(err)
	}
	if _, err := w.Add(bounded(t), l, a); err != nil {
		t.Errorf("after DEL: %v", err)
	}
}

// A container that comes back after its namespace went, as after a reboot, is no second ADD.
//
// clause: R10
func TestAddAgainAfterNamespaceWent(t *testing.T) {
	for name, other := range map[string]bool{"gone": false, "another at its path": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			l := chain(t, "1.0.0", three[:2], nil)
			a := attach.Attachment{ContainerID: "web", Netns: "/run/netns/came-back", IfName: "eth0",
				Args: [][2]string{{"A", "1"}}}
			if err := nstest.MakeNS(a.Netns); err != nil {
				t.Fatal(err)
			}
			_, err := w.Add(bounded(t), l, a)
			if remove := nstest.RemoveNS(a.Netns); err != nil || remove != nil {
				t.Fatal(err, remove)
			}
			again := a
			again.Args = nil
			keep := nstest.NewNS(t) // so that the inode is not used again at once
			if other {
				if err := nstest.MakeNS(a.Netns); err != nil {
					t.Fatal(err)
				}
				defer nstest.RemoveNS(a.Netns)
			} else {
				again.Netns = keep
			}
			w.told()
			if _, err := w.Add(bounded(t), l, again); err != nil {
				t.Fatal(err)
			}
			calls := w.told()
			var names []string
			for _, c := range calls {
				names = append(names, c.String())
			}
			if got := strings.Join(names, ", "); got != "DEL second, DEL first, ADD first, ADD second" {
				t.Fatalf("plugins: %s", got)
			}
			want := a.Netns
			if other {
				want = "" // it is not the one that ADD saw
			}
			if e := calls[0].Env; e["CNI_NETNS"] != want || e["CNI_ARGS"] != "A=1" {
				t.Errorf("DEL was told namespace %q, args %q, want %q, A=1", e["CNI_NETNS"], e["CNI_ARGS"], want)
			}
		})
	}
}
