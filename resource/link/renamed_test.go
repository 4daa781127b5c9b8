package link

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// containedLinks are the links that stand in a container, by ip(8)'s type.
func containedLinks(o spec.Owner) map[string]plan.Remover {
	s := Stacked{Inside: Inside{Owner: o, Name: o.IfName}, Master: Master{Where: resource.Host, Link: "ens3", Kind: "x"}}
	return map[string]plan.Remover{
		"tun":     Tap{Inside: Inside{Owner: o, Name: o.IfName}},
		"dummy":   Dummy{Inside: Inside{Owner: o, Name: o.IfName}},
		"macvlan": Macvlan{Stacked: s},
		"macvtap": Macvlan{Stacked: s, Tap: true},
		"ipvlan":  IPvlan{Stacked: s},
		"vlan":    VLAN{Stacked: s, ID: 7},
	}
}

func needKind(t *testing.T, kind string) {
	t.Helper()
	switch kind {
	case "tun":
		needTap(t)
	case "vlan":
		nstest.Need(t, "vlan", "id", "7")
	default:
		nstest.Need(t, kind)
	}
}

// A link that was renamed in its container is found by its mark, there and nowhere else, and what other owners have
// there stays.
//
// clause: P11 P12 P22
func TestRenamed(t *testing.T) {
	for kind, r := range containedLinks(contract.Owner) {
		t.Run(kind, func(t *testing.T) {
			needKind(t, kind)
			w := contract.NewWorld(t)
			contract.Host(t, w, "ip link add ens3 up type veth peer name wire")
			contract.Host(t, w, "ip link set wire up")
			rename := func() {
				t.Helper()
				contract.Must(t, w, r)
				contract.Container(t, w, "ip link set eth0 down")
				contract.Container(t, w, "ip link set eth0 name net9 up")
			}
			there := func(ns *kernel.NS, name string) bool {
				_, err := rtnl.LinkByName(ns, name)
				if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
					t.Fatal(err)
				}
				return err == nil
			}
			rename()
			if err := r.Verify(t.Context(), w); err == nil ||
				!strings.Contains(err.Error(), "eth0: link does not exist; it is called net9 now") {
				t.Errorf("verify says %v", err)
			}

			// Another attachment's in the same container, and on the host what has this one's mark by whoever wrote it.
			other := contract.Owner
			other.IfName = "net1"
			if kind != "vlan" { // of which a master has one
				contract.Must(t, w, containedLinks(other)[kind])
			}
			contract.Host(t, w, "ip link add forged type veth peer name forged2")
			if err := rtnl.SetLink(w.Host, "forged", rtnl.LinkChange{Alias: identity.Tag(contract.Owner)}); err != nil {
				t.Fatal(err)
			}
			contract.Container(t, w, "ip link add eth0 type bridge") // the container's own, and no link of the owner's
			if err := r.Remove(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			switch {
			case there(w.Container, "net9"):
				t.Error("remove left net9")
			case !there(w.Container, "eth0"):
				t.Error("remove took the container's own eth0")
			case kind != "vlan" && !there(w.Container, "net1"):
				t.Error("remove took another owner's net1")
			case !there(w.Host, "forged"):
				t.Error("remove took a link of the host")
			}
			contract.Container(t, w, "ip link del eth0")

			rename()
			id, err := w.Container.Identity()
			if err == nil {
				err = w.Store.Put(resource.MadeRecord, contract.Owner, resource.Made{Identity: id, Path: w.Container.Path})
			}
			if err != nil {
				t.Fatal(err)
			}
			gc := &kernel.World{Host: w.Host, Store: w.Store}
			keep := true
			sweep := func() {
				t.Helper()
				if err := contract.SweepKinds(t.Context(), gc, containedKinds(), contract.Owner.Network,
					func([8]byte) bool { return keep }, nil); err != nil {
					t.Fatal(err)
				}
			}
			if sweep(); !there(w.Container, "net9") {
				t.Error("GC took what is valid")
			}
			keep = false
			wrong := id
			wrong.Ino++
			if err := w.Store.Put(resource.MadeRecord, contract.Owner,
				resource.Made{Identity: wrong, Path: w.Container.Path}); err != nil {
				t.Fatal(err)
			}
			if sweep(); !there(w.Container, "net9") {
				t.Error("GC acted in a namespace that only has the path")
			}
			if err := w.Store.Put(resource.MadeRecord, contract.Owner,
				resource.Made{Identity: id, Path: w.Container.Path}); err != nil {
				t.Fatal(err)
			}
			if sweep(); there(w.Container, "net9") {
				t.Error("GC left net9")
			}
			if kind != "vlan" && !there(w.Container, "net1") {
				t.Error("GC took another owner's net1")
			}

			// What an ADD made that was killed before it wrote the link down has its name, and the network's group or its
			// address.
			contract.Must(t, w, r)
			if err := errors.Join(rtnl.SetLink(w.Container, "eth0", rtnl.LinkChange{Alias: identity.Tag(other)}),
				w.Store.Delete(linkRecord, contract.Owner), w.Store.Put(resource.MadeRecord, contract.Owner,
					resource.Made{Identity: id, Path: w.Container.Path, Owner: contract.Owner})); err != nil {
				t.Fatal(err)
			}
			if sweep(); there(w.Container, "eth0") {
				t.Error("GC left what a killed ADD made")
			}
			if kind != "vlan" && !there(w.Container, "net1") {
				t.Error("GC took another owner's net1")
			}
		})
	}
}

// A host has links of its own, and one of them may be called as the container's is to be: older kernels, asked from the
// host for a link in the container, look for the name on the host.
//
// clause: P8 P10 P11
func TestNameOnHost(t *testing.T) {
	for kind, r := range containedLinks(contract.Owner) {
		t.Run(kind, func(t *testing.T) {
			needKind(t, kind)
			w := contract.NewWorld(t)
			contract.Host(t, w, "ip link add ens3 up type veth peer name wire")
			contract.Host(t, w, "ip link set wire up")
			contract.Host(t, w, "ip link add eth0 type veth peer name other")
			contract.Must(t, w, r)
			if err := r.Verify(t.Context(), w); err != nil {
				t.Error(err)
			}
			if _, err := r.Ensure(t.Context(), w); err == nil {
				t.Error("it is made twice")
			}
			if err := r.Remove(t.Context(), w); err != nil {
				t.Error(err)
			}
			if l, err := rtnl.LinkByName(w.Container, "eth0"); err == nil {
				t.Errorf("the container keeps %+v", l)
			}
			if l, err := rtnl.LinkByName(w.Host, "eth0"); err != nil || l.Kind != "veth" {
				t.Errorf("the host's own link is %+v, %v", l, err)
			}
		})
	}
}

// A macvlan that is attached under another name is said to be there, not to have an address that somebody configured.
//
// clause: P10
func TestRenamedAddedAgain(t *testing.T) {
	nstest.Need(t, "macvlan")
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip link add ens3 up type veth peer name wire")
	m := containedLinks(contract.Owner)["macvlan"].(Macvlan)
	m.MAC = identity.MAC("cont", contract.Owner).String()
	contract.Must(t, w, m)
	contract.Container(t, w, "ip link set eth0 down")
	contract.Container(t, w, "ip link set eth0 name net9 up")
	if _, err := m.Ensure(context.Background(), w); !errors.Is(err, rtnl.ErrLinkExists) ||
		!strings.Contains(err.Error(), "it is called net9 now") {
		t.Errorf("%v", err)
	}
	if err := m.Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	contract.Must(t, w, m)
}
