package link

import (
	"errors"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestDummy(t *testing.T) {
	nstest.Need(t, "dummy")
	w := contract.NewWorld(t)
	d := Dummy{Inside: Inside{Owner: contract.Owner, Name: "eth0", MTU: 9000, MAC: "02:00:00:00:00:0A"}}
	again := func(t *testing.T) {
		if l, err := rtnl.LinkByName(w.Container, "eth0"); err == nil {
			if err := rtnl.DelLink(w.Container, l.Index); err != nil {
				t.Fatal(err)
			}
		}
		contract.Must(t, w, d)
	}
	contract.Terms{Once: true, Repair: again}.Test(t, w, d,
		contract.Break("mtu", contract.In(w, "ip link set eth0 mtu 1300"), "mtu is 1300, want 9000"),
		contract.Break("address", contract.In(w, "ip link set eth0 address 02:00:00:00:00:0b"),
			"address is 02:00:00:00:00:0b, want 02:00:00:00:00:0a"),
		contract.Break("down", contract.In(w, "ip link set eth0 down"), "state is down, want up"),
		contract.Break("gone", contract.In(w, "ip link del eth0"), "link eth0: link does not exist"),
		contract.Break("another kind", contract.In(w, "ip link del eth0", "ip link add eth0 type bridge"),
			"type is bridge, want dummy"),
	)

	// What nobody asked for is ours all the same: a MAC of the kernel's making is another one at each boot.
	d = Dummy{Inside: Inside{Owner: contract.Owner, Name: "eth0", Down: true}}
	contract.Must(t, w, d)
	if l, err := rtnl.LinkByName(w.Container, "eth0"); err != nil || l.Up ||
		l.MAC.String() != identity.MAC("cont", contract.Owner).String() || l.MTU != 1500 ||
		!resource.Owned(l, contract.Owner) || l.Alias != identity.Tag(contract.Owner) {
		t.Errorf("%+v, %v", l, err)
	}

	// Another owner's stays, when it is to be made and when it is to be removed.
	theirs := Dummy{Inside: Inside{Owner: spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"}, Name: "eth0"}}
	before := contract.State(t, w)
	if changed, err := theirs.Ensure(t.Context(), w); changed || !errors.Is(err, rtnl.ErrLinkExists) ||
		!strings.Contains(err.Error(), "in the container") {
		t.Errorf("changed %v, %v", changed, err)
	}
	if err := theirs.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	if after := contract.State(t, w); after != before {
		t.Error(contract.Difference(before, after))
	}
	// One without a mark is the reference's.
	contract.Container(t, w, "ip link del eth0")
	contract.Container(t, w, "ip link add eth0 type dummy")
	if err := theirs.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	if out := contract.Container(t, w, "ip -br link"); strings.Contains(out, "eth0") {
		t.Error(out)
	}
}
