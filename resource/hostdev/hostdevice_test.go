package hostdev

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// cards gives the host ens4, which is somebody's with all that a link can be, and ens5. They are veths, the other ends
// of which are in a LAN.
func cards(t *testing.T, w *kernel.World) {
	t.Helper()
	lan := strings.TrimPrefix(contract.OpenNS(t).Path, "/run/netns/")
	for _, l := range strings.Split(`ip link add br0 type bridge
		ip link add ens4 address 02:00:00:00:04:04 mtu 1450 type veth peer name wire4 netns LAN
		ip link add ens5 address 02:00:00:00:05:05 type veth peer name wire5 netns LAN
		sysctl -qw net.ipv6.conf.ens4.accept_ra=0
		sysctl -qw net.ipv4.conf.ens4.rp_filter=2 net.ipv4.conf.ens4.arp_announce=1 net.ipv6.conf.ens4.dad_transmits=0
		ip link set ens4 alias storage txqueuelen 77
		ip link property add dev ens4 altname enp0s4 altname rack7
		ip link set br0 up
		ip link set ens4 master br0
		bridge link set dev ens4 isolated on
		ip link set ens4 up
		ip addr add 203.0.113.4/24 dev ens4
		ip addr add 2001:db8:4::4/64 dev ens4 nodad
		ip addr add 192.0.2.4 peer 192.0.2.5 dev ens4 label ens4:peer metric 7
		ip route add 198.51.100.0/24 via 203.0.113.1 dev ens4 metric 50 mtu 1300
		ip route add 198.51.101.0/24 dev ens4 table 77
		ip -6 route add 2001:db8:77::/64 via 2001:db8:4::1 dev ens4 metric 5`, "\n") {
		contract.Host(t, w, "%s", strings.ReplaceAll(l, "LAN", lan))
	}
}

func aDevice(o spec.Owner, name string) HostDevice {
	return HostDevice{Owner: o, Name: "eth0", Device: Device{Key: "device", Link: name}}
}

func TestHostDevice(t *testing.T) {
	w := contract.NewWorld(t)
	cards(t, w)
	h := aDevice(contract.Owner, "ens4")
	h.MAC, h.MTU = "02:00:00:00:04:04", 1450
	contract.Terms{Once: true}.Test(t, w, h,
		contract.Break("mtu", contract.In(w, "ip link set eth0 mtu 1300"), "mtu is 1300, want 1450"),
		contract.Break("address", contract.In(w, "ip link set eth0 address 02:00:00:00:00:0b"),
			"address is 02:00:00:00:00:0b, want 02:00:00:00:04:04"),
		contract.Break("down", contract.In(w, "ip link set eth0 down"), "state is down, want up"),
		contract.Break("another one's name", contract.In(w, "ip link set eth0 alias x", "ip link set eth0 alias ens4",
			"ip link set eth0 down"), "state is down"),
		contract.Break("renamed", contract.In(w, "ip link set eth0 down", "ip link set eth0 name net7"),
			"link eth0: link does not exist"),
		contract.Break("under its own name", contract.In(w, "ip link set eth0 down", "ip link set eth0 name ens4"),
			"link eth0: link does not exist"),
	)
	for key, want := range map[string]string{"ipv6/conf/ens4/accept_ra": "0", "ipv6/conf/ens4/dad_transmits": "0",
		"ipv4/conf/ens4/rp_filter": "2", "ipv4/conf/ens4/arp_announce": "1"} {
		if got := contract.Sysctl(t, w.Host, "net/"+key); got != want {
			t.Errorf("%s is %s, was %s", key, got, want)
		}
	}
	if out := contract.Host(t, w, "ip -d link show ens4"); !strings.Contains(out, "isolated on") {
		t.Errorf("as a port it is not what it was: %s", out)
	}
	if left, err := os.ReadDir(w.Store.Dir); err != nil || len(left) != 0 {
		t.Errorf("records %v, %v", left, err)
	}
}

// TestHostDeviceReadable: in the container ip(8) says whose it is and what it was called; on the host nothing is left
// of that, also where it never went in.
func TestHostDeviceReadable(t *testing.T) {
	w := contract.NewWorld(t)
	cards(t, w)
	h := aDevice(contract.Owner, "ens4")
	contract.Must(t, w, h)
	out := contract.Container(t, w, "ip link show net:c1:eth0")
	for _, want := range []string{": eth0@", "alias ens4", "altname net:c1:eth0", "altname enp0s4", "altname rack7"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	if err := h.Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	before := contract.State(t, w)
	contract.Container(t, w, "ip link add x type bridge")
	contract.Container(t, w, "ip link property add dev x altname rack7") // which the kernel does not let two have
	if changed, err := h.Ensure(t.Context(), w); err == nil || changed {
		t.Errorf("an altname that is taken: changed %v, %v", changed, err)
	}
	contract.Container(t, w, "ip link del x")
	if after := contract.State(t, w); after != before {
		t.Errorf("%s", contract.Difference(before, after))
	}
	if strings.Contains(before, "net:c1:eth0") {
		t.Errorf("the altname is left:\n%s", before)
	}
}

// TestHostDeviceTaken: who asks for what another container has is told who has it. What that one left, is free.
func TestHostDeviceTaken(t *testing.T) {
	w := contract.NewWorld(t)
	cards(t, w)
	before := contract.State(t, w)
	contract.Must(t, w, aDevice(contract.Owner, "ens4"))
	second := &kernel.World{Host: w.Host, Container: contract.OpenNS(t), Store: w.Store}
	for _, d := range []Device{{Key: "device", Link: "ens4"}, {Key: "hwaddr", MAC: "02:00:00:00:04:04"}} {
		h := aDevice(spec.Owner{Network: "other", ContainerID: "c2", IfName: "eth0"}, "")
		h.Device = d
		_, err := h.Ensure(t.Context(), second)
		var e *spec.Error
		if !errors.As(err, &e) || e.Code != spec.CodeConfig ||
			!strings.Contains(e.Msg, "net/c1/eth0 has it, as eth0, in "+w.Container.Path) {
			t.Errorf("%v: %v", d, err)
		}
		if err := h.Remove(t.Context(), second); err != nil {
			t.Error(err)
		}
		if err := (KnownDevice{Device: d, Network: contract.Owner.Network}).Verify(t.Context(), second); err != nil {
			t.Errorf("STATUS: %v", err)
		}
		if err := (KnownDevice{Device: d, Network: "other"}).Verify(t.Context(), second); err == nil ||
			!strings.Contains(err.Error(), "net/c1/eth0 has it, as eth0, in "+w.Container.Path) {
			t.Errorf("STATUS of another network: %v", err)
		}
	}
	if err := aDevice(contract.Owner, "ens4").Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
	// GC takes it back from a container that lives, and has the path that it had.
	if err := contract.SweepKinds(t.Context(), &kernel.World{Host: w.Host, Store: w.Store}, []plan.Kind{DeviceKind(nil)},
		"net", func([8]byte) bool { return true }, nil); err != nil {
		t.Fatal(err)
	}
	if err := aDevice(contract.Owner, "ens4").Verify(t.Context(), w); err != nil {
		t.Errorf("after a GC that had to keep it: %v", err)
	}
	if err := contract.SweepKinds(t.Context(), &kernel.World{Host: w.Host, Store: w.Store}, []plan.Kind{DeviceKind(nil)},
		"net", func([8]byte) bool { return false }, nil); err != nil {
		t.Fatal(err)
	}
	if after := contract.State(t, w); after != before {
		t.Errorf("after GC:%s", contract.Difference(before, after))
	}
	if left, err := os.ReadDir(w.Store.Dir); err != nil || len(left) != 0 {
		t.Errorf("records %v, %v", left, err)
	}
}

// TestHostDeviceComesBack: the kernel brings a card back under the name that it had in its container. Here ip(8) does,
// for a veth goes with its container.
func TestHostDeviceComesBack(t *testing.T) {
	for name, finish := range map[string]func(*kernel.World) error{
		"DEL": func(w *kernel.World) error { return aDevice(contract.Owner, "ens4").Remove(t.Context(), w) },
		"GC": func(w *kernel.World) error {
			return contract.SweepKinds(t.Context(), w, []plan.Kind{DeviceKind(nil)}, "net", func([8]byte) bool { return false },
				nil)
		},
		"another ADD": func(w *kernel.World) error {
			second := &kernel.World{Host: w.Host, Container: contract.OpenNS(t), Store: w.Store}
			h := aDevice(spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"}, "ens4")
			contract.Must(t, second, h)
			return h.Remove(t.Context(), second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := contract.NewWorld(t)
			cards(t, w)
			before := contract.State(t, w)
			contract.Must(t, w, aDevice(contract.Owner, "ens4"))
			contract.Container(t, w, "ip link set eth0 address 02:00:00:00:00:0b mtu 1300 txqueuelen 5 promisc on allmulticast on")
			contract.Container(t, w, "ip link property del dev eth0 altname rack7")
			contract.Container(t, w, "ip link property add dev eth0 altname theirs")
			contract.Container(t, w, "ip link set eth0 netns %s", strings.TrimPrefix(w.Host.Path, "/run/netns/"))
			contract.Container(t, w, "ip link add eth0 type bridge") // nothing of ours
			mine := contract.State(t, &kernel.World{Host: w.Container, Container: w.Container})
			if err := finish(&kernel.World{Host: w.Host, Store: w.Store}); err != nil {
				t.Fatal(err)
			}
			if after := contract.State(t, &kernel.World{Host: w.Container, Container: w.Container}); after != mine {
				t.Errorf("in the container:%s", contract.Difference(mine, after))
			}
			contract.Container(t, w, "ip link del eth0")
			if after := contract.State(t, w); after != before {
				t.Errorf("%s", contract.Difference(before, after))
			}
		})
	}
}

// TestHostDeviceVLAN: a vlan dies with its container, and is made again with all that it was.
func TestHostDeviceVLAN(t *testing.T) {
	nstest.Need(t, "vlan", "id", "7")
	for name, finish := range map[string]func(*kernel.World) error{
		"DEL": func(w *kernel.World) error { return aDevice(contract.Owner, "ens5.7").Remove(t.Context(), w) },
		"GC": func(w *kernel.World) error {
			return contract.SweepKinds(t.Context(), w, []plan.Kind{DeviceKind(nil)}, "net", func([8]byte) bool { return false },
				nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := contract.NewWorld(t)
			cards(t, w)
			for _, l := range strings.Split(`ip link set ens5 up
				ip link add link ens5 name ens5.7 address 02:00:00:00:05:07 mtu 1400 type vlan id 7 protocol 802.1ad
				ip link set ens5.7 up alias office
				ip addr add 203.0.114.5/24 dev ens5.7
				ip route add 198.51.103.0/24 via 203.0.114.1 dev ens5.7`, "\n") {
				contract.Host(t, w, "%s", l)
			}
			show := func() string {
				return nstest.RunIn(t, w.Host.Path, "sh", "-ec", `{ ip -d -o link show dev ens5.7; ip -o addr show dev ens5.7 scope global; ip route show dev ens5.7; } | sed 's/^[0-9]*: //; s/qdisc [^ ]*//; s/state [^ ]*//'`)
			}
			before := show()
			contract.Must(t, w, aDevice(contract.Owner, "ens5.7"))
			path := w.Container.Path
			w.Container.Close()
			if err := nstest.RemoveNS(path); err != nil {
				t.Fatal(err)
			}
			for n := 1; ; n++ { // each waits for a while for the kernel, which ends one namespace after the other
				if err := finish(&kernel.World{Host: w.Host, Store: w.Store}); err != nil {
					t.Fatal(err)
				}
				if left, err := os.ReadDir(w.Store.Dir); err != nil || n == 50 {
					t.Fatalf("it is not back yet: %v, %v", left, err)
				} else if len(left) == 0 {
					break
				}
			}
			if after := show(); after != before {
				t.Errorf("now\n%s\nbefore\n%s", after, before)
			}
		})
	}
}

// TestHostDeviceForwarding: a host that began to forward while a device was away forwards by that, too; one by which it
// is not to forward stays so.
func TestHostDeviceForwarding(t *testing.T) {
	w := contract.NewWorld(t)
	cards(t, w)
	contract.Host(t, w, "sysctl -qw net.ipv4.conf.all.forwarding=1 net.ipv4.conf.ens5.forwarding=0")
	other := spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth5"}
	four, five := aDevice(contract.Owner, "ens4"), aDevice(other, "ens5")
	five.Name = "eth5"
	contract.Must(t, w, four, five)
	contract.Host(t, w, "sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.forwarding=0 net.ipv4.conf.all.forwarding=1")
	for _, h := range []HostDevice{four, five} {
		if err := h.Remove(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	for key, want := range map[string]string{"ipv4/conf/ens4": "1", "ipv6/conf/ens4": "1", "ipv4/conf/ens5": "0",
		"ipv6/conf/ens5": "1"} {
		if got := contract.Sysctl(t, w.Host, "net/"+key+"/forwarding"); got != want {
			t.Errorf("%s/forwarding is %s, want %s", key, got, want)
		}
	}
}

// TestHostDeviceNameClash: the container has a link of the device's name, and the host one of the container's.
func TestHostDeviceNameClash(t *testing.T) {
	w := contract.NewWorld(t)
	cards(t, w)
	contract.Container(t, w, "ip link add ens4 type bridge")
	contract.Host(t, w, "ip link add eth0 type bridge")
	before := contract.State(t, w)
	h := aDevice(contract.Owner, "ens4")
	for range 2 {
		contract.Must(t, w, h)
		if err := h.Verify(t.Context(), w); err != nil {
			t.Error(err)
		}
		if err := h.Remove(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if after := contract.State(t, w); after != before {
			t.Fatal(contract.Difference(before, after))
		}
	}
	// Somebody takes the device's name meanwhile: it keeps another one, and the rest is as it was.
	contract.Must(t, w, h)
	contract.Host(t, w, "ip link add ens4 type bridge")
	if err := h.Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	out := contract.Host(t, w, "ip -o link show rack7")
	if !strings.Contains(out, ": dev") || !strings.Contains(out, "alias storage") || !strings.Contains(out, "mtu 1450") ||
		!strings.Contains(out, "master br0") {
		t.Errorf("it is %s", out)
	}
	if left, err := os.ReadDir(w.Store.Dir); err != nil || len(left) != 0 {
		t.Errorf("records %v, %v", left, err)
	}
}

// TestHostDevicePortVLANs: a port of a bridge is in its VLANs again.
func TestHostDevicePortVLANs(t *testing.T) {
	contract.NeedBridgeVLANs(t)
	w := contract.NewWorld(t)
	cards(t, w)
	for _, l := range strings.Split(`ip link set br0 type bridge vlan_filtering 1
		bridge vlan del vid 1 dev ens4
		bridge vlan add vid 7 pvid untagged dev ens4
		bridge vlan add vid 20-30 dev ens4
		ip link set ens5 master br0`, "\n") {
		contract.Host(t, w, "%s", l)
	}
	state := func() string { // ports are in the order in which they came
		lines := strings.Split(contract.BridgeVLANState(w)(t)+contract.Host(t, w, "bridge vlan show dev ens4")+
			contract.Host(t, w, "bridge vlan show dev ens5"), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	before := state()
	for _, name := range []string{"ens4", "ens5"} {
		h := aDevice(contract.Owner, name)
		contract.Must(t, w, h)
		if err := h.Remove(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if after := state(); after != before {
			t.Errorf("%s:%s", name, contract.Difference(before, after))
		}
	}
}

// TestHostDeviceOfAnotherBoot: what is remembered of an earlier boot is not done to a device of this one.
func TestHostDeviceOfAnotherBoot(t *testing.T) {
	w := contract.NewWorld(t)
	cards(t, w)
	before := contract.State(t, w)
	h := aDevice(contract.Owner, "ens4")
	if err := w.Store.PutSynced(deviceMemory, contract.Owner,
		DeviceRecord{Owner: contract.Owner, Boot: "earlier",
			deviceState: deviceState{Kind: "veth", Link: "ens4", MAC: "02:00:00:00:04:04", MTU: 1300,
				Alias: "storage"}}); err != nil {
		t.Fatal(err)
	}
	if err := h.Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if after := contract.State(t, w); after != before {
		t.Errorf("%s", contract.Difference(before, after))
	}
	if all, err := w.Store.All(deviceMemory); err != nil || len(all) != 0 {
		t.Errorf("it is remembered: %s, %v", mustJSON(all), err)
	}
}

func mustJSON(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// TestHostDeviceOfReference: the reference's plugin keeps the name as the alias and nothing else. DEL gives such a
// device back too, if it is the one that the configuration means.
func TestHostDeviceOfReference(t *testing.T) {
	for _, d := range []Device{{Key: "device", Link: "ens5"}, {Key: "hwaddr", MAC: "02:00:00:00:05:05"}} {
		w := contract.NewWorld(t)
		cards(t, w)
		before := contract.State(t, w)
		contract.Host(t, w, "ip link set ens5 alias ens5 netns %s name eth0",
			strings.TrimPrefix(w.Container.Path, "/run/netns/"))
		contract.Container(t, w, "ip link set eth0 up")
		moved := contract.State(t, w)
		h := aDevice(contract.Owner, "ens4")
		if err := h.Remove(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if after := contract.State(t, w); after != moved {
			t.Errorf("another device:%s", contract.Difference(moved, after))
		}
		h.Device, h.Attached = d, true
		for range 2 {
			if err := h.Remove(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			if after := contract.State(t, w); after != before {
				t.Errorf("%v:%s", d, contract.Difference(before, after))
			}
		}
	}
}

// TestHostDeviceRefused: what cannot be moved stays as it was, and so does everything else.
func TestHostDeviceRefused(t *testing.T) {
	w := contract.NewWorld(t)
	cards(t, w)
	contract.Host(t, w, "ip link add veth0 type veth peer name veth1")
	nstest.RunIn(t, w.Host.Path, "ip", "link", "set", "veth0", "alias",
		identity.Tag(spec.Owner{Network: "net", ContainerID: "c9", IfName: "eth0"}))
	contract.Host(t, w, "ip link add ens6 address 02:00:00:00:04:04 type veth peer name ens7")
	before := contract.State(t, w)
	for _, c := range []struct {
		d   Device
		say string
	}{
		{Device{Key: "device", Link: "br0"}, `device: "br0": is a bridge, and the kernel lets it not leave its namespace`},
		{Device{Key: "device", Link: "veth0"}, `device: "veth0": is a link of net/c9/eth0, made for it`},
		{Device{Key: "device", Link: "ens44"}, `device: "ens44": no such device on the host; there is br0, ens4, ens5,`},
		{Device{Key: "hwaddr", MAC: "02:00:00:00:04:04"}, `hwaddr: "02:00:00:00:04:04": is that of ens4 and ens6; name one of them by device`},
		{Device{Key: "hwaddr", MAC: "02:00:00:00:04:05"}, `did you mean "02:00:00:00:0`},
		{Device{Key: "pciBusID", Bus: "pci", ID: "ffff:00:10.0"}, `pciBusID: "ffff:00:10.0": no such device on the host`},
		{Device{Key: "kernelpath", Path: "/sys/devices/none"}, `kernelpath: "/sys/devices/none": no such device on the host`},
	} {
		h := aDevice(contract.Owner, "")
		h.Device = c.d
		changed, err := h.Ensure(t.Context(), w)
		var e *spec.Error
		if changed || !errors.As(err, &e) || e.Code != spec.CodeConfig || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%v: changed %v, %v, want %s", c.d, changed, err, c.say)
		}
		if after := contract.State(t, w); after != before {
			t.Fatalf("%v:%s", c.d, contract.Difference(before, after))
		}
		if all, err := w.Store.All(deviceMemory); err != nil || len(all) != 0 {
			t.Errorf("%v: it is remembered: %s, %v", c.d, mustJSON(all), err)
		}
	}
}
