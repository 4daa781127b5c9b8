package link

import (
	"errors"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// A pair whose end on the host has a name that somebody chose obeys the laws of any pair.
//
// clause: P10 P12 P14
func TestChosenName(t *testing.T) {
	w := contract.NewWorld(t)
	v := testVeth(contract.Owner, "")
	v.Host = "web0"
	contract.Terms{Once: true, Repair: func(t *testing.T) {
		if _, err := rtnl.LinkByName(w.Container, "eth0"); err == nil {
			contract.Container(t, w, "ip link del eth0")
		}
		contract.Must(t, w, v)
	}}.Test(t, w, v,
		contract.Break("renamed", contract.On(w, "ip link set web0 down", "ip link set web0 name web1 up"),
			"link web0: link does not exist; it is called web1 now"),
		contract.Break("host end down", contract.On(w, "ip link set web0 down"), "host state is down"),
	)

	forgotten := func(t *testing.T) {
		t.Helper()
		if known, err := w.Store.Get(hostNameRecord, contract.Owner, new(string)); known || err != nil {
			t.Errorf("a name is remembered still (%v)", err)
		}
	}
	gone := func(t *testing.T, name string) {
		t.Helper()
		if _, err := rtnl.LinkByName(w.Host, name); !errors.Is(err, rtnl.ErrNoLink) {
			t.Errorf("%s: %v", name, err)
		}
	}
	forgotten(t)
	plain := testVeth(contract.Owner, "")
	alone := &kernel.World{Host: w.Host, Store: w.Store}

	t.Run("removed by who knows neither name nor namespace", func(t *testing.T) {
		contract.Must(t, w, v)
		if err := plain.Remove(t.Context(), alone); err != nil {
			t.Fatal(err)
		}
		gone(t, "web0")
		forgotten(t)
	})
	t.Run("forgotten by GC, the link being gone", func(t *testing.T) {
		contract.Must(t, w, v)
		contract.Host(t, w, "ip link del web0")
		gc := func(valid ...spec.Owner) {
			t.Helper()
			if err := engine.Collect(t.Context(), alone, []plan.Kind{VethKind("")}, contract.Owner.Network, valid); err != nil {
				t.Fatal(err)
			}
		}
		gc(contract.Owner)
		if known, err := w.Store.Get(hostNameRecord, contract.Owner, new(string)); !known || err != nil {
			t.Errorf("GC took the name of a valid attachment (%v)", err)
		}
		gc()
		forgotten(t)
	})
	t.Run("removed though nothing is remembered", func(t *testing.T) {
		for _, by := range []Veth{v, plain} { // by its name, and by the container
			contract.Must(t, w, v)
			if err := w.Store.Delete(hostNameRecord, contract.Owner); err != nil {
				t.Fatal(err)
			}
			if err := by.Remove(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			gone(t, "web0")
		}
	})
	t.Run("named another way in the container's next life", func(t *testing.T) {
		for _, next := range []string{"web1", plain.Host, "web2"} {
			before := *w
			before.Container = contract.OpenNS(t)
			contract.Must(t, &before, v)
			n := v
			n.Host = next
			contract.Must(t, w, n)
			gone(t, "web0")
			if err := n.Remove(t.Context(), alone); err != nil {
				t.Fatal(err)
			}
			gone(t, next)
			forgotten(t)
		}
	})
	t.Run("a living one stays", func(t *testing.T) {
		contract.Must(t, w, v)
		n := v
		n.Host = "web1"
		if _, err := n.Ensure(t.Context(), w); err == nil ||
			!strings.Contains(err.Error(), "in the container: eth0: an interface of that name exists already") {
			t.Error(err)
		}
		n.Name = "eth1"
		if _, err := n.Ensure(t.Context(), w); err == nil ||
			!strings.Contains(err.Error(), "link web0 already leads into the container") {
			t.Error(err)
		}
		if err := v.Verify(t.Context(), w); err != nil {
			t.Error(err)
		}
		if err := plain.Remove(t.Context(), alone); err != nil {
			t.Fatal(err)
		}
		gone(t, "web0")
	})
	t.Run("killed before it was marked", func(t *testing.T) {
		half := func(o spec.Owner) {
			t.Helper()
			if err := w.Store.Put(hostNameRecord, o, "web0"); err != nil { // as it is before the pair is made
				t.Fatal(err)
			}
			if err := rtnl.AddVeth(w.Host, rtnl.VethPair{Host: "web0", Name: "eth0", NS: w.Container,
				HostMAC: identity.MAC("host", o),
				Group:   identity.LinkGroup(o.Network)}); err != nil {
				t.Fatal(err)
			}
		}
		other := spec.Owner{Network: contract.Owner.Network, ContainerID: "c2", IfName: "eth0"}
		half(other) // of the same network, and made at the same time: the name says nothing
		if err := v.Remove(t.Context(), alone); err != nil {
			t.Fatal(err)
		}
		if err := (HostName{contract.Owner, "web0", "hostInterfaceName"}).Verify(t.Context(), w); err == nil {
			t.Error("another's is taken for our own")
		}
		valid := []spec.Owner{other}
		if err := sweep(t.Context(), w, contract.Owner.Network, valid); err != nil {
			t.Fatal(err)
		}
		if _, err := rtnl.LinkByName(w.Host, "web0"); err != nil {
			t.Fatalf("a sweep that has to keep it: %v", err)
		}
		if err := sweep(t.Context(), w, contract.Owner.Network, nil); err != nil {
			t.Fatal(err)
		}
		gone(t, "web0")
		half(contract.Owner)
		if err := v.Remove(t.Context(), alone); err != nil {
			t.Fatal(err)
		}
		gone(t, "web0")
	})
}

// A name that somebody has is refused in words that say who.
//
// clause: K13
func TestHostName(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip link add web0 type bridge")
	contract.Host(t, w, "ip link property add dev web0 altname a-long-name-of-it")
	v := testVeth(spec.Owner{Network: "net", ContainerID: "c9", IfName: "eth0"}, "")
	v.Host = "web9"
	contract.Must(t, w, v)
	status := spec.Owner{Network: "net"}
	for _, tt := range []struct {
		h   HostName
		say string
	}{
		{HostName{contract.Owner, "web1", "hostInterfaceName"}, ""},
		{HostName{status, "web1", "hostInterfaceName"}, ""},
		{HostName{v.Owner, "web9", "hostInterfaceName"}, ""},
		{HostName{status, "web9", "hostInterfaceName"}, ""},
		{HostName{spec.Owner{Network: "other"}, "web9", "hostInterfaceName"}, `hostInterfaceName: "web9": net/c9/eth0 has it; a name is for one link at a time`},
		{HostName{contract.Owner, "web9", "args.cni.hostInterfaceName"}, `args.cni.hostInterfaceName: "web9": net/c9/eth0 has it; a name is for one link at a time`},
		{HostName{contract.Owner, "web0", "hostInterfaceName"}, `hostInterfaceName: "web0": a bridge of the host's`},
		{HostName{status, "web0", "hostInterfaceName"}, `hostInterfaceName: "web0": a bridge of the host's`},
		{HostName{contract.Owner, "lo", "hostInterfaceName"}, `"lo": lo of the host's`},
	} {
		changed, err := plan.Required(tt.h).Ensure(t.Context(), w)
		if changed || tt.say == "" && err != nil || tt.say != "" && (err == nil || !strings.Contains(err.Error(), tt.say)) {
			t.Errorf("%v of %v: changed %v, error %v, want %q", tt.h, tt.h.Owner, changed, err, tt.say)
		}
	}
	n := testVeth(contract.Owner, "")
	n.Name, n.Host = "eth7", "web0" // past the check: somebody was faster
	if _, err := n.Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), `hostInterfaceName: "web0": a bridge of the host's; a name is for one link at a time`) {
		t.Error(err)
	}
	if known, err := w.Store.Get(hostNameRecord, contract.Owner, new(string)); known || err != nil {
		t.Errorf("a name that it did not get is remembered (%v)", err)
	}
}
