package hostdev

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// lent is a device that the host lends, and what somebody who is root in the container makes in its place: a link of
// its kind, index and other end's index, if the kernel lets him.
type lent struct{ name, make, decoy string }

func lentOnes(t *testing.T, w *kernel.World) []lent {
	cards(t, w)
	contract.Host(t, w, "ip link add vx4 type vxlan id 5 dstport 4789")
	contract.Host(t, w, "ip link add link ens5 name mac4 type macvlan")
	return []lent{
		{"ens4", "", "ip link add eth0 index %d type veth peer name mine0 index %d"},
		{"vx4", "", "ip link add eth0 index %d type vxlan id 6 dstport 4790"},
		{"mac4", "", "ip link add link below0 name eth0 index %d type macvlan"},
	}
}

// swap takes the device out of the container, and puts a decoy in its place.
func (d lent) swap(t *testing.T, w *kernel.World, l *rtnl.Link) (elsewhere *kernel.NS) {
	t.Helper()
	elsewhere = contract.OpenNS(t)
	contract.Container(t, w, "ip link set dev %s netns %s", l.Name, strings.TrimPrefix(elsewhere.Path, "/run/netns/"))
	decoy := fmt.Sprintf(d.decoy, l.Index)
	if strings.Contains(d.decoy, "veth") {
		decoy = fmt.Sprintf(d.decoy, l.Index, l.Peer)
	}
	if strings.Contains(decoy, "below0") {
		contract.Container(t, w, "ip link add below0 index %d type veth peer name below1", l.Peer)
	}
	contract.Container(t, w, "%s", decoy)
	return elsewhere
}

// TestHostDeviceSwapped: a container whose root swaps the device for a link of his own while it is being moved home has
// that link again, and the host has nothing of it. The device comes home when it is found.
//
// clause: P12
func TestHostDeviceSwapped(t *testing.T) {
	for i := range 3 {
		for _, taken := range []bool{false, true} {
			w := contract.NewWorld(t)
			d := lentOnes(t, w)[i]
			before := hostState(t, w)
			contract.Must(t, w, aDevice(contract.Owner, d.name))
			if taken {
				contract.Host(t, w, "ip link add %s type bridge", d.name)
			}
			without := hostState(t, w)
			r, _, err := recallDevice(w, contract.Owner)
			if err != nil {
				t.Fatal(err)
			}
			l, err := rtnl.LinkByName(w.Container, "eth0")
			if err != nil {
				t.Fatal(err)
			}
			elsewhere := d.swap(t, w, l)
			contract.Container(t, w, "ip link property add dev eth0 altname mine9")
			if got, err := r.bring(w, w.Container, l); err == nil ||
				!strings.Contains(err.Error(), "has put another link in its place") {
				t.Errorf("%s, name taken %v: brought %+v, %v", d.name, taken, got, err)
			}
			if after := hostState(t, w); after != without {
				t.Errorf("%s, name taken %v: %s", d.name, taken, contract.Difference(without, after))
			}
			if back, err := rtnl.LinkByIndex(w.Container, l.Index); err != nil || back.Kind != l.Kind || back.Up ||
				back.Alias != "" {
				t.Errorf("%s, name taken %v: in the container: %+v, %v", d.name, taken, back, err)
			}
			if err := aDevice(contract.Owner, d.name).Remove(t.Context(), w); err != nil {
				t.Errorf("%s: DEL while it is hidden: %v", d.name, err)
			}
			if _, known, err := recallDevice(w, contract.Owner); !known || err != nil {
				t.Errorf("%s: it is forgotten, %v", d.name, err)
			}
			if taken {
				contract.Host(t, w, "ip link del %s", d.name)
			}
			contract.Container(t, w, "ip link del dev %s", nameAt(t, w.Container, l.Index))
			contract.Container(t, &kernel.World{Container: elsewhere}, "ip link set dev eth0 netns %s",
				strings.TrimPrefix(w.Container.Path, "/run/netns/"))
			if err := aDevice(contract.Owner, d.name).Remove(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			if after := hostState(t, w); indexless(after) != indexless(before) {
				t.Errorf("%s: %s", d.name, contract.Difference(before, after))
			}
			if left, err := w.Store.All(deviceMemory); err != nil || len(left) != 0 {
				t.Errorf("records %v, %v", left, err)
			}
		}
	}
}

func nameAt(t *testing.T, ns *kernel.NS, index int) string {
	t.Helper()
	l, err := rtnl.LinkByIndex(ns, index)
	if err != nil {
		t.Fatal(err)
	}
	return l.Name
}

// TestHostDeviceSwappedEarly: an addition that was killed right after its move has not written down what the
// container's namespace says of the device. Nobody takes another one for it, and one that has been put in its place on
// the host, by a DEL that was killed right after its own, is not made what the device was.
//
// clause: P12
func TestHostDeviceSwappedEarly(t *testing.T) {
	for i := range 3 {
		for verb, finish := range finishes(t) {
			w := contract.NewWorld(t)
			d := lentOnes(t, w)[i]
			h := aDevice(contract.Owner, d.name)
			if verb == "DEL" {
				finish = func(w *kernel.World) error { return h.Remove(t.Context(), w) }
			}
			contract.Must(t, w, h)
			r, _, err := recallDevice(w, contract.Owner)
			if err != nil {
				t.Fatal(err)
			}
			r.Is.In = nil
			if err := w.Store.Put(deviceMemory, contract.Owner, r); err != nil {
				t.Fatal(err)
			}
			l, err := rtnl.LinkByName(w.Container, "eth0")
			if err != nil {
				t.Fatal(err)
			}
			d.swap(t, w, l)
			before := contract.State(t, w)
			if err := finish(w); err != nil {
				t.Errorf("%s, %s: %v", d.name, verb, err)
			}
			if after := contract.State(t, w); after != before {
				t.Errorf("%s, %s: %s", d.name, verb, contract.Difference(before, after))
			}
			if err := r.arrived(w, "eth0"); err == nil {
				t.Errorf("%s: an addition takes the decoy for it", d.name)
			}
			contract.Container(t, w, "ip link set dev eth0 address %s netns %s", r.MAC,
				strings.TrimPrefix(w.Host.Path, "/run/netns/"))
			contract.Host(t, w, "ip link set dev eth0 name %s alias %[1]s", d.name)
			before = hostState(t, w)
			if err := finish(w); err != nil {
				t.Errorf("%s, %s: %v", d.name, verb, err)
			}
			if after := hostState(t, w); after != before {
				t.Errorf("%s, %s, a decoy on the host: %s", d.name, verb, contract.Difference(before, after))
			}
			if _, known, err := recallDevice(w, contract.Owner); !known || err != nil {
				t.Errorf("%s: it is forgotten, %v", d.name, err)
			}
		}
	}
}

// TestHostDeviceOfReferenceSwapped: likewise for a device that the reference's plugin moved.
//
// clause: P12
func TestHostDeviceOfReferenceSwapped(t *testing.T) {
	w := contract.NewWorld(t)
	cards(t, w)
	contract.Host(t, w, "ip link set ens5 alias ens5 netns %s name eth0",
		strings.TrimPrefix(w.Container.Path, "/run/netns/"))
	h := aDevice(contract.Owner, "ens5")
	h.Attached = true
	r, in, l, err := h.byReference(w)
	if err != nil || in == nil {
		t.Fatalf("it is not known: %v", err)
	}
	lent{name: "ens5", decoy: "ip link add eth0 index %d type veth peer name mine0 index %d"}.swap(t, w, l)
	contract.Container(t, w, "ip link set eth0 alias ens5")
	before := hostState(t, w)
	if got, err := r.bring(w, in, l); err == nil {
		t.Errorf("brought %+v", got)
	}
	if after := hostState(t, w); after != before {
		t.Error(contract.Difference(before, after))
	}
	contract.Container(t, w, "ip link set dev %s name eth0", nameAt(t, w.Container, l.Index))
	contract.Container(t, w, "ip link set eth0 alias ens5")
	if err := h.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	if after := hostState(t, w); after != before {
		t.Errorf("its other end is in the container: %s", contract.Difference(before, after))
	}
}

// TestHostDeviceParams: what a device's kind keeps of it is as it was, too.
func TestHostDeviceParams(t *testing.T) {
	w := contract.NewWorld(t)
	cards(t, w)
	for name, c := range map[string]struct{ add, change, there string }{
		"vx5": {"ip link add vx5 type vxlan id 5 dstport 4789 remote 192.0.2.1 ttl 9",
			"ip link set eth0 type vxlan id 5 remote 192.0.2.66 local 192.0.2.7 ttl 3", "192.0.2.66"},
		"vx6": {"ip link add vx6 type vxlan id 6 dstport 4789",
			"ip link set eth0 type vxlan id 6 remote 192.0.2.66 ageing 5 nolearning", "192.0.2.66"},
		"mv5": {"ip link add link ens5 name mv5 type macvlan mode private", "ip link set eth0 type macvlan mode bridge",
			"mode bridge"},
	} {
		contract.Host(t, w, "%s", c.add)
		show := func() string { return strings.Join(steady(contract.Host(t, w, "ip -d -o link show %s", name)), " ") }
		before := show()
		contract.Must(t, w, aDevice(contract.Owner, name))
		contract.Container(t, w, "%s", c.change)
		if there := contract.Container(t, w, "ip -d -o link show eth0"); !strings.Contains(there, c.there) {
			t.Fatalf("nothing was changed: %s", there)
		}
		if err := aDevice(contract.Owner, name).Remove(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if after := show(); after != before {
			t.Errorf("now\n%s\nbefore\n%s", after, before)
		}
	}
}
