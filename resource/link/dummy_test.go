package link

import (
	"errors"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/lawtest"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestDummy(t *testing.T) {
	nstest.Need(t, "dummy")
	w := lawtest.NewWorld(t)
	d := Dummy{Owner: lawtest.Owner, Name: "eth0", MTU: 9000, MAC: "02:00:00:00:00:0A"}
	again := func(t *testing.T) {
		if l, err := w.Container.Link("eth0"); err == nil {
			if err := w.Container.DelLink(l.Index); err != nil {
				t.Fatal(err)
			}
		}
		lawtest.Must(t, w, d)
	}
	lawtest.Book{Once: true, Repair: again}.Hold(t, w, d,
		lawtest.Break("mtu", lawtest.In(w, "ip link set eth0 mtu 1300"), "mtu is 1300, want 9000"),
		lawtest.Break("address", lawtest.In(w, "ip link set eth0 address 02:00:00:00:00:0b"), "address is 02:00:00:00:00:0b, want 02:00:00:00:00:0a"),
		lawtest.Break("down", lawtest.In(w, "ip link set eth0 down"), "state is down, want up"),
		lawtest.Break("gone", lawtest.In(w, "ip link del eth0"), "link eth0: link does not exist"),
		lawtest.Break("another kind", lawtest.In(w, "ip link del eth0", "ip link add eth0 type bridge"), "type is bridge, want dummy"),
	)

	// What nobody asked for is ours all the same: a MAC of the kernel's making is another one at each boot.
	d = Dummy{Owner: lawtest.Owner, Name: "eth0", Down: true}
	lawtest.Must(t, w, d)
	if l, err := w.Container.Link("eth0"); err != nil || l.Up || l.MAC.String() != kernel.MAC("cont", lawtest.Owner).String() || l.MTU != 1500 || !resource.Owned(l, lawtest.Owner) || l.Alias != kernel.Tag(lawtest.Owner) {
		t.Errorf("%+v, %v", l, err)
	}

	// Another owner's stays, when it is to be made and when it is to be removed.
	theirs := Dummy{Owner: spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"}, Name: "eth0"}
	before := lawtest.State(t, w)
	if changed, err := theirs.Ensure(t.Context(), w); changed || !errors.Is(err, kernel.ErrLinkExists) || !strings.Contains(err.Error(), "in the container") {
		t.Errorf("changed %v, %v", changed, err)
	}
	if err := theirs.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	if after := lawtest.State(t, w); after != before {
		t.Error(lawtest.Difference(before, after))
	}
	// One without a mark is the reference's.
	lawtest.Container(t, w, "ip link del eth0")
	lawtest.Container(t, w, "ip link add eth0 type dummy")
	if err := theirs.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	if out := lawtest.Container(t, w, "ip -br link"); strings.Contains(out, "eth0") {
		t.Error(out)
	}
}
