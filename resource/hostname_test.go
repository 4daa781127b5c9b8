package resource

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// A pair whose end on the host has a name that somebody chose obeys the laws of any pair.
//
// clause: P10 P12 P14
func TestChosenName(t *testing.T) {
	w := newWorld(t)
	v := testVeth(owner, "")
	v.Host = "web0"
	lawBook{once: true, repair: func(t *testing.T) {
		if _, err := w.Container.Link("eth0"); err == nil {
			cont(t, w, "ip link del eth0")
		}
		must(t, w, v)
	}}.hold(t, w, v,
		breakBy("renamed", on(w, "ip link set web0 down", "ip link set web0 name web1 up"), "link web0: link does not exist; it is called web1 now"),
		breakBy("host end down", on(w, "ip link set web0 down"), "host state is down"),
	)

	forgotten := func(t *testing.T) {
		t.Helper()
		if known, err := w.Memory.Recall(hostNameRecord, owner, new(string)); known || err != nil {
			t.Errorf("a name is remembered still (%v)", err)
		}
	}
	gone := func(t *testing.T, name string) {
		t.Helper()
		if _, err := w.Host.Link(name); !errors.Is(err, kernel.ErrNoLink) {
			t.Errorf("%s: %v", name, err)
		}
	}
	forgotten(t)
	plain := testVeth(owner, "")
	alone := &kernel.World{Host: w.Host, Memory: w.Memory}

	t.Run("removed by who knows neither name nor namespace", func(t *testing.T) {
		must(t, w, v)
		if err := plain.Remove(t.Context(), alone); err != nil {
			t.Fatal(err)
		}
		gone(t, "web0")
		forgotten(t)
	})
	t.Run("removed though nothing is remembered", func(t *testing.T) {
		for _, by := range []Veth{v, plain} { // by its name, and by the container
			must(t, w, v)
			if err := w.Memory.Forget(hostNameRecord, owner); err != nil {
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
			before.Container = openNS(t)
			must(t, &before, v)
			n := v
			n.Host = next
			must(t, w, n)
			gone(t, "web0")
			if err := n.Remove(t.Context(), alone); err != nil {
				t.Fatal(err)
			}
			gone(t, next)
			forgotten(t)
		}
	})
	t.Run("a living one stays", func(t *testing.T) {
		must(t, w, v)
		n := v
		n.Host = "web1"
		if _, err := n.Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), "in the container: eth0: an interface of that name exists already") {
			t.Error(err)
		}
		n.Name = "eth1"
		if _, err := n.Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), "link web0 already leads into the container") {
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
			if err := w.Memory.Remember(hostNameRecord, o, "web0"); err != nil { // as it is before the pair is made
				t.Fatal(err)
			}
			if err := w.Host.AddVeth(kernel.VethPair{Host: "web0", Name: "eth0", NS: w.Container, HostMAC: kernel.MAC("host", o), Group: kernel.LinkGroup(o.Network)}); err != nil {
				t.Fatal(err)
			}
		}
		other := spec.Owner{Network: owner.Network, ContainerID: "c2", IfName: "eth0"}
		half(other) // of the same network, and made at the same time: the name says nothing
		if err := v.Remove(t.Context(), alone); err != nil {
			t.Fatal(err)
		}
		if err := (HostName{owner, "web0", "hostInterfaceName"}).Verify(t.Context(), w); err == nil {
			t.Error("another's is taken for our own")
		}
		valid := []spec.Owner{other}
		if err := Sweep(t.Context(), w, owner.Network, valid); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Host.Link("web0"); err != nil {
			t.Fatalf("a sweep that has to keep it: %v", err)
		}
		if err := Sweep(t.Context(), w, owner.Network, nil); err != nil {
			t.Fatal(err)
		}
		gone(t, "web0")
		half(owner)
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
	w := newWorld(t)
	host(t, w, "ip link add web0 type bridge")
	host(t, w, "ip link property add dev web0 altname a-long-name-of-it")
	v := testVeth(spec.Owner{Network: "net", ContainerID: "c9", IfName: "eth0"}, "")
	v.Host = "web9"
	must(t, w, v)
	status := spec.Owner{Network: "net"}
	for _, tt := range []struct {
		h   HostName
		say string
	}{
		{HostName{owner, "web1", "hostInterfaceName"}, ""},
		{HostName{status, "web1", "hostInterfaceName"}, ""},
		{HostName{v.Owner, "web9", "hostInterfaceName"}, ""},
		{HostName{status, "web9", "hostInterfaceName"}, ""},
		{HostName{spec.Owner{Network: "other"}, "web9", "hostInterfaceName"}, `hostInterfaceName: "web9": net/c9/eth0 has it; a name is for one link at a time`},
		{HostName{owner, "web9", "args.cni.hostInterfaceName"}, `args.cni.hostInterfaceName: "web9": net/c9/eth0 has it; a name is for one link at a time`},
		{HostName{owner, "web0", "hostInterfaceName"}, `hostInterfaceName: "web0": a bridge of the host's`},
		{HostName{status, "web0", "hostInterfaceName"}, `hostInterfaceName: "web0": a bridge of the host's`},
		{HostName{owner, "lo", "hostInterfaceName"}, `"lo": lo of the host's`},
	} {
		changed, err := tt.h.Ensure(t.Context(), w)
		if changed || tt.say == "" && err != nil || tt.say != "" && (err == nil || !strings.Contains(err.Error(), tt.say)) {
			t.Errorf("%v of %v: changed %v, error %v, want %q", tt.h, tt.h.Owner, changed, err, tt.say)
		}
	}
	n := testVeth(owner, "")
	n.Name, n.Host = "eth7", "web0" // past the check: somebody was faster
	if _, err := n.Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), `hostInterfaceName: "web0": a bridge of the host's; a name is for one link at a time`) {
		t.Error(err)
	}
	if known, err := w.Memory.Recall(hostNameRecord, owner, new(string)); known || err != nil {
		t.Errorf("a name that it did not get is remembered (%v)", err)
	}
}

// Whoever looks at a link on the host sees whose it is, however long the names are.
func TestWhoseItIs(t *testing.T) {
	w := newWorld(t)
	long := spec.Owner{Network: strings.Repeat("n", 100), ContainerID: strings.Repeat("c", 64), IfName: "eth0"}
	for _, o := range []spec.Owner{owner, long} {
		v := testVeth(o, "")
		must(t, w, v, IFB{Owner: o, Where: Host, For: v.Host})
		for name, alt := range map[string]string{v.Host: altName(o), ifbName(o): altName(o) + ":ifb"} {
			out := host(t, w, "ip link show %s", name)
			if !strings.Contains(out, "alias "+kernel.Tag(o)) || !strings.Contains(out, "altname "+alt+"\n") {
				t.Errorf("%s", out)
			}
			if l, err := w.Host.Link(name); err != nil || len(alt) > 127 || len(l.Alias) > 255 {
				t.Errorf("%d bytes of altname, %+v, %v", len(alt), l, err)
			}
		}
		if err := v.Remove(context.Background(), w); err != nil {
			t.Error(err)
		}
	}
	if out := host(t, w, "ip link"); strings.Count(out, "net:c1:eth0:ifb") != 1 {
		t.Errorf("the ifb: %s", out)
	}
}
