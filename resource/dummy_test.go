package resource

import (
	"errors"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestDummy(t *testing.T) {
	nstest.Need(t, "dummy")
	w := newWorld(t)
	d := Dummy{Owner: owner, Name: "eth0", MTU: 9000, MAC: "02:00:00:00:00:0A"}
	again := func(t *testing.T) {
		if l, err := w.Container.Link("eth0"); err == nil {
			if err := w.Container.DelLink(l.Index); err != nil {
				t.Fatal(err)
			}
		}
		must(t, w, d)
	}
	lawBook{once: true, repair: again}.hold(t, w, d,
		breakBy("mtu", in(w, "ip link set eth0 mtu 1300"), "mtu is 1300, want 9000"),
		breakBy("address", in(w, "ip link set eth0 address 02:00:00:00:00:0b"), "address is 02:00:00:00:00:0b, want 02:00:00:00:00:0a"),
		breakBy("down", in(w, "ip link set eth0 down"), "state is down, want up"),
		breakBy("gone", in(w, "ip link del eth0"), "link eth0: link does not exist"),
		breakBy("another kind", in(w, "ip link del eth0", "ip link add eth0 type bridge"), "type is bridge, want dummy"),
	)

	// What nobody asked for is ours all the same: a MAC of the kernel's making is another one at each boot.
	d = Dummy{Owner: owner, Name: "eth0", Down: true}
	must(t, w, d)
	if l, err := w.Container.Link("eth0"); err != nil || l.Up || l.MAC.String() != kernel.MAC("cont", owner).String() || l.MTU != 1500 || !owned(l, owner) || l.Alias != kernel.Tag(owner) {
		t.Errorf("%+v, %v", l, err)
	}

	// Another owner's stays, when it is to be made and when it is to be removed.
	theirs := Dummy{Owner: spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"}, Name: "eth0"}
	before := linkState(t, w)
	if changed, err := theirs.Ensure(t.Context(), w); changed || !errors.Is(err, kernel.ErrLinkExists) || !strings.Contains(err.Error(), "in the container") {
		t.Errorf("changed %v, %v", changed, err)
	}
	if err := theirs.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	if after := linkState(t, w); after != before {
		t.Error(difference(before, after))
	}
	// One without a mark is the reference's.
	cont(t, w, "ip link del eth0")
	cont(t, w, "ip link add eth0 type dummy")
	if err := theirs.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	if out := cont(t, w, "ip -br link"); strings.Contains(out, "eth0") {
		t.Error(out)
	}
}
