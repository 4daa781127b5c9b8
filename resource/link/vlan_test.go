package link

import (
	"errors"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

func aVLAN(o spec.Owner, master string, id int) VLAN {
	v := VLAN{Stacked: stacked(o, "vlan", master), ID: id}
	v.Master.Taken, v.Master.Ether = false, true
	return v
}

func TestVLAN(t *testing.T) {
	nstest.Need(t, "vlan", "id", "7")
	for protocol, other := range map[string]string{"": "802.1ad", "802.1ad": "802.1q"} {
		t.Run(protocol, func(t *testing.T) {
			w := contract.NewWorld(t)
			masters(t, w)
			v := aVLAN(contract.Owner, "ens3", 100)
			v.Protocol, v.MTU, v.MAC = protocol, 1400, "02:00:00:00:00:0A"
			again := func(t *testing.T) {
				if err := v.Remove(t.Context(), w); err != nil {
					t.Fatal(err)
				}
				contract.Host(t, w, "ip link set ens3 up mtu 1500")
				if l, err := rtnl.LinkByName(w.Container, "eth0"); err == nil { // of another kind
					if err := rtnl.DelLink(w.Container, l.Index); err != nil {
						t.Fatal(err)
					}
				}
				contract.Must(t, w, v)
			}
			instead := func(master, protocol, id string) func(*testing.T) {
				return func(t *testing.T) {
					contract.Container(t, w, "ip link del eth0")
					contract.Host(t, w, "ip link add link %s name eth0 address 02:00:00:00:00:0a mtu 1400 netns %s type vlan protocol %s id %s", master, strings.TrimPrefix(w.Container.Path, "/run/netns/"), protocol, id)
					contract.Container(t, w, "ip link set eth0 up")
				}
			}
			contract.Terms{Once: true, Repair: again}.Test(t, w, v,
				contract.Break("mtu", contract.In(w, "ip link set eth0 mtu 1300"), "mtu is 1300, want 1400"),
				contract.Break("address", contract.In(w, "ip link set eth0 address 02:00:00:00:00:0b"),
					"address is 02:00:00:00:00:0b, want 02:00:00:00:00:0a"),
				contract.Break("down", contract.In(w, "ip link set eth0 down"), "state is down, want up"),
				contract.Break("gone", contract.In(w, "ip link del eth0"), "link eth0: link does not exist"),
				contract.Break("master down", contract.On(w, "ip link set ens3 down"), "master ens3 is down"),
				contract.Break("another master", instead("ens4", v.protocol(), "100"), "master is ens4, want ens3"),
				contract.Break("another number", instead("ens3", v.protocol(), "101"), "id is 101, want 100"),
				contract.Break("another protocol", instead("ens3", other, "100"), "protocol is "+other+", want "+v.protocol()),
				contract.Break("another kind", contract.In(w, "ip link del eth0", "ip link add eth0 type bridge"),
					"type is bridge, want vlan"),
			)
		})
	}
}

// TestVLANOnce: a master carries a VLAN once, and who asks again is told who has it. A tag of the other kind is
// another.
func TestVLANOnce(t *testing.T) {
	nstest.Need(t, "vlan", "id", "7")
	w := contract.NewWorld(t)
	masters(t, w)
	second := &kernel.World{Host: w.Host, Container: contract.OpenNS(t), Store: w.Store}
	c2 := aVLAN(spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"}, "ens3", 100)
	refused := func(say ...string) {
		t.Helper()
		before := contract.State(t, second)
		changed, err := c2.Ensure(t.Context(), second)
		var e *spec.Error
		if changed || !errors.As(err, &e) || e.Code != spec.CodeConfig {
			t.Fatalf("changed %v, %v", changed, err)
		}
		for _, s := range append(say, "vlanId: 100: ", "ens3", "(802.1q)", "a link carries a VLAN once") {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%v: lacks %q", err, s)
			}
		}
		if after := contract.State(t, second); after != before {
			t.Errorf("%s", contract.Difference(before, after))
		}
	}
	contract.Host(t, w, "ip link add link ens3 name lan100 type vlan id 100")
	refused("link lan100")
	contract.Host(t, w, "ip link del lan100")

	v := aVLAN(contract.Owner, "ens3", 100)
	contract.Must(t, w, v)
	refused("a link in another network namespace")
	c2.Protocol = "802.1ad"
	contract.Must(t, second, c2)
	if err := c2.Remove(t.Context(), second); err != nil {
		t.Fatal(err)
	}

	// One whose container is gone has it until the kernel has taken that apart, which is waited for.
	c2.Protocol = ""
	w.Container.Close()
	if err := nstest.RemoveNS(w.Container.Path); err != nil {
		t.Fatal(err)
	}
	contract.Must(t, second, c2)

	// In the container itself, the name is what is taken.
	before := contract.State(t, second)
	if _, err := c2.Ensure(t.Context(), second); !errors.Is(err, rtnl.ErrLinkExists) ||
		!strings.Contains(err.Error(), "in the container") {
		t.Errorf("the name is taken: %v", err)
	}
	same := aVLAN(spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth1"}, "ens3", 100)
	if _, err := same.Ensure(t.Context(), second); err == nil ||
		!strings.Contains(err.Error(), "link eth0 of net/c2/eth0 of ens3 has it") {
		t.Errorf("the container has the VLAN: %v", err)
	}
	if after := contract.State(t, second); after != before {
		t.Errorf("%s", contract.Difference(before, after))
	}
}

// TestVLANInVLAN puts a customer's VLAN in a provider's, both in the container.
func TestVLANInVLAN(t *testing.T) {
	nstest.Need(t, "vlan", "id", "7", "protocol", "802.1ad")
	w := contract.NewWorld(t)
	masters(t, w)
	outer := aVLAN(spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth1"}, "ens3", 100)
	outer.Protocol = "802.1ad"
	contract.Must(t, w, outer)
	inner := aVLAN(contract.Owner, "eth1", 100)
	inner.Master.Where = resource.Container
	contract.Terms{Once: true}.Test(t, w, inner,
		contract.Break("another master", func(t *testing.T) {
			contract.Container(t, w, "ip link del eth0")
			contract.Host(t, w, "ip link add link ens4 name eth0 netns %s type vlan id 100",
				strings.TrimPrefix(w.Container.Path, "/run/netns/"))
			contract.Container(t, w, "ip link set eth0 up")
		}, "want eth1"))
	if err := outer.Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
}

// TestVLANMaster: what cannot carry VLANs is refused, and nothing is changed.
func TestVLANMaster(t *testing.T) {
	w := contract.NewWorld(t)
	masters(t, w)
	contract.Host(t, w, "ip link add br0 up type bridge")
	contract.Host(t, w, "ip link set ens4 master br0")
	before := contract.State(t, w)
	for master, say := range map[string]string{
		"lo":   `master: "lo": is lo, which has no Ethernet headers, and vlan needs them`,
		"ens5": `master: "ens5": no such link on the host; there is`,
	} {
		if _, err := aVLAN(contract.Owner, master, 100).Ensure(t.Context(), w); err == nil ||
			!strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v", master, err)
		}
	}
	if _, _, err := aVLAN(contract.Owner, "ens4", 100).Master.Find(w); err != nil {
		t.Errorf("a port of a bridge may have VLANs of its own: %v", err)
	}
	if after := contract.State(t, w); after != before {
		t.Errorf("%s", contract.Difference(before, after))
	}
}
