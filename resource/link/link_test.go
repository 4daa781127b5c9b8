package link

import (
	"errors"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestUp(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Container(t, w, "ip link set lo down")
	contract.Test(t, w, Up{Link: "lo"}, contract.Break("down", contract.In(w, "ip link set lo down"), "state is down"))
	contract.Host(t, w, "ip link set lo down")
	contract.Test(t, w, Up{Where: resource.Host, Link: "lo"},
		contract.Break("down", contract.On(w, "ip link set lo down"), "state is down"))
	if _, err := (Up{Link: "none0"}).Ensure(t.Context(), w); !errors.Is(err, rtnl.ErrNoLink) {
		t.Error(err)
	}
	if _, err := (Up{Link: "lo"}).Ensure(t.Context(), &kernel.World{Host: w.Host}); !errors.Is(err,
		kernel.ErrNoNamespace) {
		t.Error(err)
	}
}

func TestAutoMTU(t *testing.T) {
	w := contract.NewWorld(t)
	if mtu, err := resource.AutoMTU.Resolve(w); err != nil || mtu != 0 {
		t.Errorf("without a way out: %d, %v", mtu, err)
	}
	contract.Host(t, w, "ip link add up0 mtu 1450 type bridge")
	contract.Host(t, w, "ip link add up1 mtu 1420 type bridge")
	contract.Host(t, w, "ip link add up2 mtu 1300 type bridge")
	for _, l := range []string{"up0", "up1", "up2"} {
		contract.Host(t, w, "ip link set %s up", l)
	}
	contract.Host(t, w, "ip route add default dev up0")
	contract.Host(t, w, "ip route add 192.0.2.0/24 dev up2")
	contract.Must(t, w, Bridge{Name: "cni0", MTU: resource.AutoMTU}, testVeth(contract.Owner, "cni0"))
	v := testVeth(spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth1"}, "")
	v.MTU = resource.AutoMTU
	contract.Must(t, w, v)
	if l, _ := rtnl.LinkByName(w.Container, "eth1"); l.MTU != 1450 {
		t.Errorf("mtu %d", l.MTU)
	}
	contract.Host(t, w, "ip -6 route add default dev up1")
	if mtu, err := resource.AutoMTU.Resolve(w); err != nil || mtu != 1420 {
		t.Errorf("least of both families: %d, %v", mtu, err)
	}
	contract.Host(t, w, "ip route replace default dev up0 mtu 1400")
	if mtu, err := resource.AutoMTU.Resolve(w); err != nil || mtu != 1400 {
		t.Errorf("the route's own: %d, %v", mtu, err)
	}
	if err := v.Verify(t.Context(), w); err != nil {
		t.Errorf("an uplink that changed later is no drift: %v", err)
	}
}

// clause: P22
func TestSweepLinks(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, Bridge{Name: "cni0"})
	at := func(network, id, ifName string) spec.Owner {
		return spec.Owner{Network: network, ContainerID: id, IfName: ifName}
	}
	owners := []spec.Owner{at("net", "stays", "eth0"), at("net", "goes", "eth1"), at("net", "goes", "eth2"),
		at("other", "goes", "eth3"),
		at("net", "killed", "eth4"), at("net", "being-made", "eth5"), at("net", "stays", "eth6")}
	for _, o := range owners {
		contract.Must(t, w, testVeth(o, "cni0"))
	}
	name := func(i int) string { return identity.LinkName("veth", owners[i]) }
	contract.Host(t, w, "ip link set %s alias x", name(4)) // killed before the alias was written
	contract.Host(t, w, "ip link set %s alias x", name(5))
	// A sweep that was killed has left these two half-way.
	deletion := deletionGroup("net")
	contract.Host(t, w, "ip link set %s group %d", name(2), deletion)
	contract.Host(t, w, "ip link set %s group %d", name(6), deletion)
	contract.Host(t, w, "ip link add foreign0 type veth peer name foreign1")

	keep := map[[8]byte]bool{identity.OwnerHash(owners[0]): true, identity.OwnerHash(owners[6]): true}
	err := sweepLinks(t.Context(), w, "net", func(o [8]byte) bool { return keep[o] },
		func(l *rtnl.Link) bool { return l.Name == name(5) })
	if err != nil {
		t.Fatal(err)
	}
	for i, stays := range []bool{true, false, false, true, false, true, true} {
		if l, err := rtnl.LinkByName(w.Host, name(i)); (err == nil) != stays || stays && l.Group == deletion {
			t.Errorf("%v: there %v, want %v", owners[i], err == nil, stays)
		}
	}
	if _, err := rtnl.LinkByName(w.Host, "foreign1"); err != nil {
		t.Error(err)
	}
}
