package hostdev

import (
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

func hostState(t *testing.T, w *kernel.World) string {
	t.Helper()
	return contract.State(t, &kernel.World{Host: w.Host, Container: w.Host})
}

// hide is what whoever is root in the container does to what the device was known by.
func hide(t *testing.T, w *kernel.World) {
	for _, l := range []string{"ip link set eth0 down", "ip link set eth0 name mine", "ip link set mine alias x",
		"ip link property del dev mine altname net:c1:eth0"} {
		contract.Container(t, w, "%s", l)
	}
}

// TestHostDeviceHidden: the device comes back from under whatever name and alias, and a link that has its name and
// alias by now, and is none of the host's, does not.
//
// clause: P12
func TestHostDeviceHidden(t *testing.T) {
	tag := identity.Tag(spec.Owner{Network: "net", ContainerID: "zz", IfName: "eth0"})
	for what, do := range map[string]func(t *testing.T, w *kernel.World){
		"renamed": hide,
		"a forged tag": func(t *testing.T, w *kernel.World) {
			nstest.RunIn(t, w.Container.Path, "ip", "link", "set", "eth0", "alias", tag)
			contract.Container(t, w, "ip link property del dev eth0 altname net:c1:eth0")
		},
		"with a decoy": func(t *testing.T, w *kernel.World) {
			hide(t, w)
			contract.Container(t, w, "ip link add eth0 type veth peer name tap0")
			contract.Container(t, w, "ip link set eth0 alias ens4")
			contract.Container(t, w, "ip link property add dev eth0 altname net:c1:eth0")
		},
		"with an altname that the host has": func(t *testing.T, w *kernel.World) {
			contract.Container(t, w, "ip link property add dev eth0 altname br0")
			contract.Container(t, w, "ip link property add dev eth0 altname ens5")
		},
		"with the device's name as an altname": func(t *testing.T, w *kernel.World) {
			contract.Container(t, w, "ip link property add dev eth0 altname ens4")
		},
	} {
		for verb, finish := range finishes(t) {
			t.Run(what+", "+verb, func(t *testing.T) {
				w := contract.NewWorld(t)
				cards(t, w)
				before := hostState(t, w)
				contract.Must(t, w, aDevice(contract.Owner, "ens4"))
				do(t, w)
				if err := finish(w); err != nil {
					t.Fatal(err)
				}
				if after := hostState(t, w); after != before {
					t.Error(contract.Difference(before, after))
				}
				if out := contract.Container(t, w, "ip -o link"); strings.Contains(out, "mine") ||
					strings.Contains(what, "decoy") != strings.Contains(out, "eth0@tap0") {
					t.Errorf("in the container: %s", out)
				}
				if left, err := w.Store.All(deviceMemory); err != nil || len(left) != 0 {
					t.Errorf("records %v, %v", left, err)
				}
			})
		}
	}
}

func finishes(t *testing.T) map[string]func(*kernel.World) error {
	return map[string]func(*kernel.World) error{
		"DEL": func(w *kernel.World) error { return aDevice(contract.Owner, "ens4").Remove(t.Context(), w) },
		"GC": func(w *kernel.World) error {
			return sweep(t.Context(), &kernel.World{Host: w.Host, Store: w.Store}, "net", nil)
		},
	}
}

// TestHostDeviceKept: a device that the container has put out of sight is not forgotten, whatever it shows instead, and
// comes back when it is there again, under another index, or when its namespace is gone.
//
// clause: P12
func TestHostDeviceKept(t *testing.T) {
	for verb, finish := range finishes(t) {
		t.Run(verb, func(t *testing.T) {
			w := contract.NewWorld(t)
			cards(t, w)
			before := hostState(t, w)
			contract.Must(t, w, aDevice(contract.Owner, "ens4"))
			l, err := rtnl.LinkByName(w.Container, "eth0")
			if err != nil {
				t.Fatal(err)
			}
			hide(t, w)
			elsewhere := contract.OpenNS(t)
			contract.Container(t, w, "ip link set mine netns %s", strings.TrimPrefix(elsewhere.Path, "/run/netns/"))
			contract.Container(t, w, "ip link add eth0 index %d type veth peer name tap0 index %d", l.Index, l.Peer)
			contract.Container(t, w, "ip link set eth0 alias ens4")
			if err := finish(w); err != nil {
				t.Fatal(err)
			}
			if _, err := rtnl.LinkByName(w.Host, "ens4"); err == nil {
				t.Fatal("the host has what the container made")
			}
			second := &kernel.World{Host: w.Host, Container: contract.OpenNS(t), Store: w.Store}
			other := aDevice(spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"}, "ens4")
			if _, err := other.Ensure(t.Context(), second); err == nil || !strings.Contains(err.Error(), "net/c1/eth0 had it") {
				t.Errorf("another one asks for it: %v", err)
			}
			contract.Container(t, &kernel.World{Container: elsewhere}, "ip link set mine netns %s name back",
				strings.TrimPrefix(w.Container.Path, "/run/netns/"))
			if err := finish(w); err != nil {
				t.Fatal(err)
			}
			if after := hostState(t, w); strings.Contains(after, "tap0") || indexless(after) != indexless(before) {
				t.Error(contract.Difference(before, after))
			}
			if left, err := w.Store.All(deviceMemory); err != nil || len(left) != 0 {
				t.Errorf("records %v, %v", left, err)
			}
		})
	}
}

// indexless is a state without numbers of links, which another namespace may have changed.
func indexless(state string) string {
	var lines []string
	for _, l := range strings.Split(state, "\n") {
		before, rest, ok := strings.Cut(l, `"ifindex":`)
		if i := strings.IndexAny(rest, ",}"); ok && i >= 0 {
			l = before + rest[i:]
		}
		lines = append(lines, l)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestHostDeviceForged: a DEL of somebody who has no device brings the host none that his container has made.
//
// clause: P12
func TestHostDeviceForged(t *testing.T) {
	w := contract.NewWorld(t)
	cards(t, w)
	has := &kernel.World{Host: w.Host, Container: contract.OpenNS(t), Store: w.Store}
	other := aDevice(spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"}, "ens4")
	h := aDevice(contract.Owner, "ens4")
	contract.Container(t, w, "ip link add eth0 type veth peer name p0")
	contract.Container(t, w, "ip link set eth0 alias ens4 up")
	mine := contract.State(t, w)
	nothing := func(what string) {
		t.Helper()
		for _, attached := range []bool{false, true} {
			h.Attached = attached
			before := contract.State(t, w)
			if err := h.Remove(t.Context(), w); err != nil {
				t.Error(what, err)
			}
			if after := contract.State(t, w); after != before {
				t.Errorf("%s, attached %v: %s", what, attached, contract.Difference(before, after))
			}
		}
	}
	nothing("the host has the device")
	contract.Must(t, has, other)
	nothing("another container has it")
	if err := other.Remove(t.Context(), has); err != nil {
		t.Fatal(err)
	}
	if after := contract.State(t, w); after != mine {
		t.Error(contract.Difference(mine, after))
	}
	contract.Host(t, w, "ip link del ens4")
	h.Attached = false
	if err := h.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	if _, err := rtnl.LinkByName(w.Host, "ens4"); err == nil {
		t.Error("nobody has it, and no result says that the container got one")
	}
}

// TestHostDeviceCutShort: a DEL that was killed between its move and the rest is finished by the next one, whatever the
// container did to what the device is known by.
//
// clause: P12
func TestHostDeviceCutShort(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip tuntap add tap4 mode tap") // which nothing but its alias tells from others
	before := contract.State(t, w)
	contract.Must(t, w, aDevice(contract.Owner, "tap4"))
	contract.Container(t, w, "ip link set eth0 alias zz group %d", identity.LinkGroup("lan"))
	contract.Container(t, w, "ip link property del dev eth0 altname net:c1:eth0")
	r, _, err := recallDevice(w, contract.Owner)
	if err != nil {
		t.Fatal(err)
	}
	l, err := rtnl.LinkByName(w.Container, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	if l, err = r.bring(w, w.Container, l); err != nil || l == nil || l.Group != 0 || l.Alias != "tap4" {
		t.Fatalf("%+v, %v", l, err)
	}
	if err := aDevice(contract.Owner, "tap4").Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if after := contract.State(t, w); after != before {
		t.Error(contract.Difference(before, after))
	}
}

// TestHostDeviceTraits: what hardly anybody changes is as it was, too.
func TestHostDeviceTraits(t *testing.T) {
	w := contract.NewWorld(t)
	cards(t, w)
	contract.Host(t, w, "ip link set ens4 gso_max_segs 50 group 7")
	show := func() string {
		return strings.Join(steady(contract.Host(t, w, "ip -d -o link show ens4")), " ")
	}
	before := show()
	contract.Must(t, w, aDevice(contract.Owner, "ens4"))
	contract.Container(t, w, "ip link set eth0 group %d", identity.LinkGroup("lan"))
	for _, change := range []string{"arp off", "multicast off", "dynamic on", "trailers on", "broadcast 02:00:00:00:00:05",
		"mode dormant", "gso_max_size 3000", "gso_max_segs 3", "gro_max_size 3000", "protodown on"} {
		// not every kernel and driver has all of them
		nstest.RunIn(t, w.Container.Path, "sh", "-c", "ip link set dev eth0 "+change+" || true")
	}
	if there := strings.Join(steady(contract.Container(t, w, "ip -d -o link show eth0")), " "); !strings.Contains(there,
		"NOARP") || !strings.Contains(there, "02:00:00:00:00:05") {
		t.Fatalf("nothing was changed: %s", there)
	}
	if err := aDevice(contract.Owner, "ens4").Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if after := show(); after != before {
		t.Errorf("now\n%s\nbefore\n%s", after, before)
	}
}

// steady are the words of ip(8) on a link but for what settles by itself.
func steady(out string) (words []string) {
	f := strings.Fields(out)
	for i := 0; i < len(f); i++ {
		if f[i] == "state" || f[i] == "qdisc" {
			i++
			continue
		}
		words = append(words, f[i])
	}
	return words
}

// TestHostDeviceOfEarlierVersion: what is in a container when we are replaced by a newer version comes back.
//
// clause: P12
func TestHostDeviceOfEarlierVersion(t *testing.T) {
	for verb, finish := range finishes(t) {
		w := contract.NewWorld(t)
		cards(t, w)
		before := contract.State(t, w)
		contract.Must(t, w, aDevice(contract.Owner, "ens4"))
		r, _, err := recallDevice(w, contract.Owner)
		if err != nil {
			t.Fatal(err)
		}
		r.Is, r.Traits = nil, nil
		if err := w.Store.Put(deviceMemory, contract.Owner, r); err != nil {
			t.Fatal(err)
		}
		if err := aDevice(contract.Owner, "ens4").Verify(t.Context(), w); err != nil {
			t.Error(err)
		}
		contract.Container(t, w, "ip link set eth0 group %d", identity.LinkGroup("lan"))
		if err := finish(w); err != nil {
			t.Fatal(err)
		}
		if after := contract.State(t, w); after != before {
			t.Errorf("%s: %s", verb, contract.Difference(before, after))
		}
	}
}

// TestHostDeviceNameTaken: the device's name is another link's in the container and on the host.
func TestHostDeviceNameTaken(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip tuntap add tap4 mode tap")
	contract.Must(t, w, aDevice(contract.Owner, "tap4"))
	contract.Container(t, w, "ip link add tap4 type bridge")
	contract.Container(t, w, "ip link property del dev eth0 altname net:c1:eth0")
	contract.Container(t, w, "ip link set eth0 alias zz")
	contract.Host(t, w, "ip link add tap4 type bridge")
	if err := aDevice(contract.Owner, "tap4").Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if out := contract.Host(t, w, "ip -d -o link show type tun"); !strings.Contains(out, ": dev") ||
		strings.Contains(out, "alias") {
		t.Errorf("it is %s", out)
	}
	if left, err := w.Store.All(deviceMemory); err != nil || len(left) != 0 {
		t.Errorf("records %v, %v", left, err)
	}
}
