package link

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

func ids(first, last uint16) rtnl.PortVLAN { return rtnl.PortVLAN{First: first, Last: last} }

func TestRanges(t *testing.T) {
	for _, c := range []struct {
		in     []rtnl.PortVLAN
		native uint16
		want   string
	}{
		{nil, 1, ""},
		{[]rtnl.PortVLAN{ids(5, 5)}, 5, ""},
		{[]rtnl.PortVLAN{ids(30, 30), ids(10, 20), ids(15, 22), ids(23, 23)}, 0, "vid 10-23 vid 30"},
		{[]rtnl.PortVLAN{ids(1, 4094)}, 2, "vid 1 vid 3-4094"},
	} {
		if got := vlanText(Ranges(c.in, c.native)); got != c.want {
			t.Errorf("%v without %d: %q, want %q", c.in, c.native, got, c.want)
		}
	}
}

// TestVLANDiff: what is in place already is not set again, and what goes together goes in one range.
func TestVLANDiff(t *testing.T) {
	born := []rtnl.PortVLAN{{First: 1, Last: 1, PVID: true, Untagged: true}}
	trunk := []rtnl.PortVLAN{ids(10, 20), ids(30, 30)}
	for _, c := range []struct {
		v        VLANs
		have     []rtnl.PortVLAN
		del, add string
	}{
		{VLANs{Native: 100}, born, "vid 1", "vid 100 pvid untagged"},
		{VLANs{Native: 100, Default: true}, born, "", "vid 100 pvid untagged"},
		{VLANs{Native: 1, Tagged: trunk}, born, "", "vid 10-20 vid 30"},
		{VLANs{Tagged: trunk}, born, "vid 1", "vid 10-20 vid 30"},
		{VLANs{Tagged: trunk}, []rtnl.PortVLAN{ids(10, 12), {First: 13, Last: 13, Untagged: true}, ids(14, 19),
			ids(31, 40)}, "vid 31-40", "vid 13 vid 20 vid 30"},
		{VLANs{Native: 100}, []rtnl.PortVLAN{{First: 100, Last: 100, Untagged: true}}, "", "vid 100 pvid untagged"},
	} {
		del, add := c.v.diff(c.have, 1)
		if d, a := vlanText(del), vlanText(add); d != c.del || a != c.add {
			t.Errorf("%v where there is %s: delete %q, add %q; want %q, %q", c.v, vlanText(c.have), d, a, c.del, c.add)
		}
	}
}

func TestBridgeVLANs(t *testing.T) {
	contract.NeedBridgeVLANs(t)
	w := contract.NewWorld(t)
	b := Bridge{Name: "cni0", VLANs: true, Switch: true}
	contract.Terms{State: contract.BridgeVLANState(w)}.Test(t, w, b,
		contract.Break("off", contract.On(w, "ip link set cni0 type bridge vlan_filtering 0"),
			"vlan_filtering is false, want true"))
	if err := (Filtering{Bridge: "cni0"}).Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
}

// TestBridgeWithoutVLANs: a bridge that does not keep VLANs apart is refused and stays as it is.
func TestBridgeWithoutVLANs(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip link add cni0 up type bridge")
	before := contract.BridgeVLANState(w)(t)
	for _, err := range []error{
		func() error { _, err := Bridge{Name: "cni0", VLANs: true}.Ensure(t.Context(), w); return err }(),
		Filtering{Bridge: "cni0"}.Verify(t.Context(), w),
	} {
		var e *spec.Error
		say := "ip link set cni0 type bridge vlan_filtering 1"
		if rtnl.NoBridgeVLANs(w.Host) != nil { // then it would be of no use
			say = "cannot keep VLANs apart: the kernel has no VLANs on bridges (CONFIG_BRIDGE_VLAN_FILTERING)"
		}
		if !errors.As(err, &e) || e.Code != spec.CodeConfig || !strings.Contains(err.Error(), say) {
			t.Errorf("got %v", err)
		}
	}
	if err := (Filtering{Bridge: "other"}).Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
	if after := contract.BridgeVLANState(w)(t); after != before {
		t.Error(contract.Difference(before, after))
	}
	_, err := Bridge{Name: "cni0", VLANs: true, Switch: true}.Ensure(t.Context(), w)
	if err != nil && !errors.Is(err, rtnl.ErrNoBridgeVLANs) {
		t.Error(err)
	}
	_, err2 := Bridge{Name: "cni1", VLANs: true}.Ensure(t.Context(), w)
	if (err == nil) != (err2 == nil) || err2 != nil && !errors.Is(err2, rtnl.ErrNoBridgeVLANs) {
		t.Error(err2)
	}
}

// clause: P14
func TestPortVLANs(t *testing.T) {
	contract.NeedBridgeVLANs(t)
	breakers := func(w *kernel.World, link string) []contract.Breakage {
		return []contract.Breakage{
			contract.Break("another one", contract.On(w, "bridge vlan add dev "+link+" vid 7"), "vid 7"),
			contract.Break("not in it", contract.On(w, "bridge vlan del dev "+link+" vid 100"), "want vid 1"),
			contract.Break("otherwise", contract.On(w, "bridge vlan add dev "+link+" vid 100 untagged",
				"bridge vlan add dev "+link+" vid 10 untagged"), "untagged"),
		}
	}
	t.Run("veth", func(t *testing.T) {
		w := contract.NewWorld(t)
		contract.Must(t, w, Bridge{Name: "cni0", VLANs: true})
		veth := testVeth(contract.Owner, "cni0")
		veth.VLANs = VLANs{Native: 100, Tagged: []rtnl.PortVLAN{ids(10, 20)}}
		contract.Terms{Once: true, State: contract.BridgeVLANState(w)}.Test(t, w, veth, breakers(w, veth.Host)...)
	})
	t.Run("tap", func(t *testing.T) {
		w := contract.NewWorld(t)
		contract.Must(t, w, Bridge{Name: "cni0", VLANs: true})
		contract.Host(t, w, "ip link add tap0 up type veth peer name x")
		contract.Terms{State: contract.BridgeVLANState(w)}.Test(t, w,
			Port{Owner: contract.Owner, Link: "tap0", Master: "cni0", VLANs: VLANs{Native: 100}}, breakers(w, "tap0")[:2]...)
	})
	w := contract.NewWorld(t)
	contract.Must(t, w, Bridge{Name: "cni0", VLANs: true})
	for want, v := range map[string]VLANs{
		"vid 10-20 vid 100":                       {Tagged: []rtnl.PortVLAN{ids(10, 20), ids(100, 100)}},
		"vid 1 untagged vid 100 pvid untagged":    {Native: 100, Default: true},
		"vid 1 pvid untagged vid 100":             {Native: 1, Tagged: []rtnl.PortVLAN{ids(100, 100)}},
		"vid 2 vid 100 pvid untagged vid 101-102": {Native: 100, Tagged: []rtnl.PortVLAN{ids(2, 2), ids(101, 102)}},
	} {
		veth := testVeth(contract.Owner, "cni0")
		veth.VLANs = v
		contract.Must(t, w, veth)
		l, err := rtnl.LinkByName(w.Host, veth.Host)
		if err != nil {
			t.Fatal(err)
		}
		if list, err := rtnl.PortVLANs(w.Host, l.Index); err != nil || vlanText(list) != want {
			t.Errorf("%v: %s, %v, want %s", v, vlanText(list), err, want)
		}
		if err := veth.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
	}
}

// TestPortVLANsOfOthers: the many ports of other containers are not asked about, and stay in their VLANs.
func TestPortVLANsOfOthers(t *testing.T) {
	contract.NeedBridgeVLANs(t)
	w := contract.NewWorld(t)
	contract.Must(t, w, Bridge{Name: "cni0", VLANs: true})
	contract.Host(t, w, "ip link add tap0 master cni0 type veth peer name x")
	before := contract.Host(t, w, "bridge vlan show dev tap0")
	veth := testVeth(contract.Owner, "cni0")
	veth.VLANs = VLANs{Tagged: []rtnl.PortVLAN{ids(2, 4094)}}
	contract.Must(t, w, veth)
	l, err := rtnl.LinkByName(w.Host, veth.Host)
	if err != nil {
		t.Fatal(err)
	}
	list, err := rtnl.PortVLANs(w.Host, l.Index)
	if err != nil || vlanText(list) != "vid 2-4094" {
		t.Errorf("%s, %v", vlanText(list), err)
	}
	if after := contract.Host(t, w, "bridge vlan show dev tap0"); after != before {
		t.Errorf("%s became %s", before, after)
	}
}

func TestVLANGateway(t *testing.T) {
	contract.NeedBridgeVLANs(t)
	w := contract.NewWorld(t)
	contract.Must(t, w, Bridge{Name: "cni0", VLANs: true}, Bridge{Name: "other"})
	g := VLANGateway{Bridge: "cni0", VLAN: 100}
	contract.Terms{State: contract.BridgeVLANState(w)}.Test(t, w, g,
		contract.Break("down", contract.On(w, "ip link set cni0.100 down"), "state is down"),
		contract.Break("port down", contract.On(w, "ip link set "+g.port()+" down"), "port's state is down"),
		contract.Break("no port", contract.On(w, "ip link set "+g.port()+" nomaster"), "port's master is none, want cni0"),
		contract.Break("another VLAN", contract.On(w, "bridge vlan add dev "+g.port()+" vid 101 pvid untagged"), "vid 101"),
		contract.Break("gone", contract.On(w, "ip link del cni0.100"), "does not exist"),
		contract.Break("accept_ra", contract.On(w, "sysctl -qw net.ipv6.conf.cni0/100.accept_ra=2"), "accept_ra is 2"),
	)
	t.Run("of somebody else", func(t *testing.T) {
		contract.Host(t, w, "ip link add cni0.7 type bridge")
		contract.Host(t, w, "ip link add cni0.8 type veth peer name x8")
		contract.Host(t, w, "ip link set x8 master other")
		before := contract.BridgeVLANState(w)(t)
		for _, id := range []uint16{7, 8} {
			_, err := VLANGateway{Bridge: "cni0", VLAN: id}.Ensure(t.Context(), w)
			var e *spec.Error
			if !errors.As(err, &e) || e.Code != spec.CodeConfig ||
				!strings.Contains(err.Error(), fmt.Sprintf("ip link delete cni0.%d", id)) {
				t.Error(err)
			}
		}
		if after := contract.BridgeVLANState(w)(t); after != before {
			t.Error(contract.Difference(before, after))
		}
	})
	t.Run("of the reference", func(t *testing.T) {
		contract.Host(t, w, "ip link add cni0.9 up type veth peer name veth9")
		contract.Host(t, w, "ip link set veth9 up master cni0")
		contract.Must(t, w, VLANGateway{Bridge: "cni0", VLAN: 9})
		if out := contract.Host(t, w, "bridge vlan show dev veth9"); !strings.Contains(out, "9 PVID Egress Untagged") ||
			strings.Contains(out, " 1 ") {
			t.Error(out)
		}
	})
	t.Run("many at once", func(t *testing.T) {
		var wg sync.WaitGroup
		g := VLANGateway{Bridge: "cni0", VLAN: 4094}
		for range 20 {
			wg.Go(func() {
				if _, err := g.Ensure(t.Context(), w); err != nil {
					t.Error(err)
				}
				if err := g.Verify(t.Context(), w); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}
