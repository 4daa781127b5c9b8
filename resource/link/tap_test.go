package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// needTap skips where there are no taps: most distributions let everybody open the device, some let only root.
func needTap(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		nstest.Skip(t, err)
	}
	f.Close()
}

// clause: P10 P12 P14
func TestTap(t *testing.T) {
	needTap(t)
	w := contract.NewWorld(t)
	root := uint32(0)
	const br0 = "ip link add br0 index 100 address 02:00:00:00:01:00 type bridge"
	contract.Container(t, w, br0)
	contract.Container(t, w, "ip link add br1 address 02:00:00:00:01:01 type bridge")
	tap := Tap{Inside: Inside{Owner: contract.Owner, Name: "eth0", MTU: 1400, MAC: "02:00:00:00:00:01"}, MultiQueue: true, User: &root,
		Group: &root, Bridge: "br0"}
	another := func(how string) func(*testing.T) {
		return contract.In(w, "ip link del eth0", "ip tuntap add eth0 mode "+how,
			"ip link set eth0 address 02:00:00:00:00:01", "ip link set eth0 mtu 1400", "ip link set eth0 up")
	}
	repair := func(t *testing.T) {
		contract.Container(t, w, "ip link del eth0")
		contract.Container(t, w, "ip link del br0")
		contract.Container(t, w, br0)
		contract.Must(t, w, tap)
	}
	contract.Terms{Once: true, Repair: repair}.Test(t, w, tap,
		contract.Break("down", contract.In(w, "ip link set eth0 down"), "state is down"),
		contract.Break("address", contract.In(w, "ip link set eth0 address 02:00:00:00:00:99"),
			"address is 02:00:00:00:00:99"),
		contract.Break("mtu", contract.In(w, "ip link set eth0 mtu 1300"), "mtu is 1300, want 1400"),
		contract.Break("another bridge", contract.In(w, "ip link set eth0 master br1"), "master is br1, want br0"),
		contract.Break("no bridge", contract.In(w, "ip link set eth0 nomaster"), "master is none, want br0"),
		contract.Break("the bridge is gone", func(t *testing.T) {
			contract.Container(t, w, "ip link del br0")
			contract.Container(t, w, "ip link add br0 type veth peer name x")
		}, `bridge: "br0": is a veth in the container`),
		contract.Break("one queue", another("tap user root group root"), "multi_queue is false, want true"),
		contract.Break("nobody's", another("tap multi_queue"), "owner is none, want user 0"),
		contract.Break("no frames", contract.In(w, "ip link del eth0",
			"ip tuntap add eth0 mode tun multi_queue user root group root"), "tap is false, want true"),
		contract.Break("another kind", contract.In(w, "ip link del eth0", "ip link add eth0 type bridge"),
			"type is bridge, want tun"),
	)
	t.Run("as ip(8) makes it", func(t *testing.T) {
		for _, multi := range []bool{false, true} {
			mine := tap
			mine.Bridge, mine.MultiQueue = "", multi
			contract.Must(t, w, mine)
			contract.Container(t, w, "ip tuntap add theirs mode tap user root group root%s",
				map[bool]string{true: " multi_queue"}[multi])
			if a, b := tunFacts(t, w, "eth0"), tunFacts(t, w, "theirs"); a != b {
				t.Errorf("%s, ip(8) makes %s", a, b)
			}
			contract.Container(t, w, "ip link del theirs")
			if err := mine.Remove(t.Context(), w); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("what is there stays", func(t *testing.T) {
		for _, add := range []string{"ip tuntap add eth0 mode tap", "ip link add eth0 type bridge"} {
			contract.Container(t, w, "%s", add)
			before := contract.State(t, w)
			if _, err := tap.Ensure(t.Context(), w); !errors.Is(err, rtnl.ErrLinkExists) {
				t.Errorf("%s: %v", add, err)
			}
			if after := contract.State(t, w); after != before {
				t.Errorf("%s: %s", add, contract.Difference(before, after))
			}
			contract.Container(t, w, "ip link del eth0")
		}
	})
	t.Run("what was not asked for is the kernel's", func(t *testing.T) {
		contract.Must(t, w, Tap{Inside: Inside{Owner: contract.Owner, Name: "eth0"}})
		l, err := rtnl.LinkByName(w.Container, "eth0")
		if err != nil || l.MTU != 1500 || l.MAC.String() != identity.MAC("cont", contract.Owner).String() {
			t.Errorf("%+v, %v", l, err)
		}
		if facts := tunFacts(t, w, "eth0"); strings.Contains(facts, "user") || strings.Contains(facts, "group") {
			t.Errorf("%s belongs to somebody", facts)
		}
	})
	t.Run("who may remove it", func(t *testing.T) {
		other := contract.Owner
		other.ContainerID = "c2"
		contract.Container(t, w, "ip link del eth0")
		for _, made := range []bool{false, true} { // by the other one; else by the reference's plugin, or by a killed ADD
			for _, alias := range []string{"", identity.Tag(contract.Owner), identity.Tag(other)} {
				if made {
					contract.Must(t, w, Tap{Inside: Inside{Owner: other, Name: "eth0"}})
				} else {
					contract.Container(t, w, "ip tuntap add eth0 mode tap")
				}
				if err := rtnl.SetLink(w.Container, "eth0", rtnl.LinkChange{Alias: alias}); err != nil {
					t.Fatal(err)
				}
				if err := (Tap{Inside: Inside{Owner: contract.Owner, Name: "eth0"}}).Remove(t.Context(), w); err != nil {
					t.Error(err)
				}
				if _, err := rtnl.IndexOf(w.Container, "eth0"); (err == nil) != made {
					t.Errorf("the other one's: %v, alias %q: %v", made, alias, err)
				}
				if err := (Tap{Inside: Inside{Owner: other, Name: "eth0"}}).Remove(t.Context(), w); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// A tap that cannot be finished goes as it came.
//
// clause: P11
func TestTapFails(t *testing.T) {
	needTap(t)
	w := contract.NewWorld(t)
	contract.Container(t, w, "ip link add v0 type veth peer name v1")
	contract.Container(t, w, "ip link add br0 type bridge")
	before := contract.State(t, w)
	for name, c := range map[string]struct {
		tap  Tap
		say  string
		code spec.Code
	}{
		"no bridge":      {Tap{Bridge: "br7"}, `bridge: "br7": no such link in the container; there is br0; did you mean "br0"?`, spec.CodeConfig},
		"not a bridge":   {Tap{Bridge: "v0"}, `bridge: "v0": is a veth in the container, not a bridge`, spec.CodeConfig},
		"a group's MAC":  {Tap{Inside: Inside{MAC: "03:00:00:00:00:01"}}, "set link eth0", 0},
		"too large":      {Tap{Inside: Inside{MTU: 65522}}, "set link eth0", 0},
		"unknown label":  {Tap{Label: "nobody_u:nothing_r:never_t:s0"}, "SELinux refuses the context", spec.CodeConfig},
		"namespace gone": {Tap{}, kernel.ErrNoNamespace.Error(), 0},
	} {
		c.tap.Owner, c.tap.Name = contract.Owner, "eth0"
		x := *w
		if name == "namespace gone" {
			x.Container = nil
		}
		changed, err := c.tap.Ensure(t.Context(), &x)
		if changed || err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: changed %v, error %v", name, changed, err)
		}
		var e *spec.Error
		if c.code != 0 && (!errors.As(err, &e) || e.Code != c.code) {
			t.Errorf("%s: %v has not code %d", name, err, c.code)
		}
		if after := contract.State(t, w); after != before {
			t.Errorf("%s left %s", name, contract.Difference(before, after))
		}
	}
}

// tunFacts are what ip(8) tells of a tap's kind.
func tunFacts(t *testing.T, w *kernel.World, name string) string {
	t.Helper()
	var list []struct {
		LinkInfo struct {
			Kind string         `json:"info_kind"`
			Data map[string]any `json:"info_data"`
		} `json:"linkinfo"`
	}
	if err := json.Unmarshal([]byte(contract.Container(t, w, "ip -d -j link show %s", name)), &list); err != nil ||
		len(list) != 1 {
		t.Fatalf("%v: %v", err, list)
	}
	return fmt.Sprint(list[0].LinkInfo.Kind, list[0].LinkInfo.Data)
}
