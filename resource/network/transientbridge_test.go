package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/link/linktest"
	"github.com/fairlead-cni/fairlead/spec"
)

func transient(name string) TransientBridge {
	return TransientBridge{Bridge: link.Bridge{Name: name}, Network: "net"}
}

func TestTransientBridge(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Test(t, w, transient("cni0"),
		contract.Break("down", contract.On(w, "ip link set cni0 down"), "state is down"),
		contract.Break("gone", contract.On(w, "ip link del cni0"), "does not exist"),
		contract.Break("no tag", func(t *testing.T) {
			nstest.RunIn(t, w.Host.Path, "ip", "link", "set", "cni0", "alias",
				"")
		}, "alias is none"),
	)
}

// TestTransientBridgeStays: somebody may be using it, or it is somebody's.
//
// clause: P12 P22
func TestTransientBridgeStays(t *testing.T) {
	for _, tt := range []struct {
		name  string
		make  []string // in its place, before it is ensured
		use   []string
		spare []string // ends the use
	}{
		{name: "a port", use: []string{"ip link add p0 master br7 type veth peer name p1"},
			spare: []string{"ip link del p0"}},
		{name: "an uplink", use: []string{"ip link set ens3 master br7"}, spare: []string{"ip link set ens3 nomaster"}},
		{name: "a link on top", use: []string{"ip link add shim link br7 type macvlan mode bridge"},
			spare: []string{"ip link del shim"}},
		{name: "a link on top, elsewhere", use: []string{"ip link add shim link br7 type macvlan mode bridge",
			"ip link set shim netns CONT", "ip -n CONT link set shim up"}, spare: []string{"ip -n CONT link del shim"}},
		{name: "the host's own way in", use: []string{"ip link add br7.100 type veth peer name p1",
			"ip link set p1 master br7"}, spare: []string{"ip link del br7.100"}},
		{name: "somebody else's IPv4 address", use: []string{"ip addr add 10.9.9.9/24 dev br7"},
			spare: []string{"ip addr del 10.9.9.9/24 dev br7"}},
		{name: "somebody else's IPv6 address", use: []string{"ip addr add fd09::9/64 dev br7 nodad"},
			spare: []string{"ip addr del fd09::9/64 dev br7"}},
		{name: "somebody else's link-local address", use: []string{"ip addr add fe80::9/64 dev br7 nodad"},
			spare: []string{"ip addr del fe80::9/64 dev br7"}},
		{name: "somebody else's", make: []string{"ip link add br7 type bridge"}},
		{name: "renamed by somebody", use: []string{"ip link set br7 alias uplink-of-rack-7"}},
		{name: "another address", use: []string{"ip link set br7 address 02:00:00:00:00:07"}},
		{name: "no bridge", make: []string{"ip link add br7 type veth peer name p1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := contract.NewWorld(t)
			do := func(lines []string) {
				for _, l := range lines {
					contract.Host(t, w, "%s", strings.ReplaceAll(l, "CONT", strings.TrimPrefix(w.Container.Path, "/run/netns/")))
				}
			}
			contract.Host(t, w, "ip link add ens3 up type veth peer name wire")
			do(tt.make)
			b := transient("br7")
			if tt.name != "no bridge" {
				contract.Must(t, w, b)
			}
			do(tt.use)
			before := contract.State(t, w)
			remove := func(stays bool) {
				t.Helper()
				if err := b.Remove(t.Context(), w); err != nil {
					t.Error(err)
				}
				if err := TransientBridgeKind().(plan.Tidier).Tidy(t.Context(), w, "net", true); err != nil {
					t.Error(err)
				}
				if now := contract.State(t, w); stays && now != before {
					t.Error(contract.Difference(before, now))
				}
			}
			remove(true)
			if tt.spare == nil {
				return
			}
			do(tt.spare)
			remove(false)
			if _, err := rtnl.LinkByName(w.Host, "br7"); !errors.Is(err, rtnl.ErrNoLink) {
				t.Errorf("it stays when nobody uses it any more: %v", err)
			}
		})
	}
}

// TestTransientBridgeSwept: GC of the network that it was made for removes it, by its tag, and no other network's does.
//
// clause: P22
func TestTransientBridgeSwept(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, transient("br7"), link.Bridge{Name: "br8"})
	for network, stays := range map[string]bool{"other": true} {
		if err := sweep(t.Context(), w, network, nil); err != nil {
			t.Error(err)
		}
		if _, err := rtnl.LinkByName(w.Host, "br7"); (err == nil) != stays {
			t.Errorf("after GC of %s: %v", network, err)
		}
	}
	v := linktest.Veth(contract.Owner, "br7")
	v.Recreate = transient("br7")
	contract.Must(t, w, v)
	if err := sweep(t.Context(), w, "net", nil); err != nil {
		t.Error(err)
	}
	if links := contract.Host(t, w, "ip -br link"); strings.Contains(links, "br7") || !strings.Contains(links, "br8") {
		t.Errorf("after GC: %s", links)
	}
}

// TestTransientBridgePolicy: with the bridge goes what the packet filter has for it.
func TestTransientBridgePolicy(t *testing.T) {
	w := contract.NewWorld(t)
	v := linktest.Veth(contract.Owner, "br7")
	contract.Must(t, w, transient("br7"), v,
		policy.Ingress{Owner: contract.Owner, Link: "br7",
			Policy: policy.Strict}, policy.FailClosed{Owner: contract.Owner, Link: "br7", Policy: policy.Strict, To: []netip.Prefix{contract.Prefix("10.7.0.2/24")}})
	contract.Host(t, w, "ip link del %s", v.Host) // as when its container is gone, which no DEL was sent for
	if err := transient("br7").Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	for _, show := range []string{"ip rule", "ip route show table all", "nft list ruleset", "ip link"} {
		for line := range strings.Lines(contract.Host(t, w, "%s", show)) {
			// What marks packets into a subnet is the prune's, as ever.
			if strings.Contains(line, "br7") || strings.Contains(line, "10.7.0") && !strings.Contains(line, "jump marking_") {
				t.Errorf("%s: %s is left", show, line)
			}
		}
	}
}

// TestTransientBridgeVLANs: the gateways of VLANs, which are ports too, go with it and do not keep it.
func TestTransientBridgeVLANs(t *testing.T) {
	contract.NeedBridgeVLANs(t)
	w := contract.NewWorld(t)
	b := TransientBridge{Bridge: link.Bridge{Name: "cni0", VLANs: true}, Network: "net"}
	v := linktest.Veth(contract.Owner, "cni0")
	v.VLANs = link.VLANs{Native: 100}
	before := contract.BridgeVLANState(w)(t)
	p := plan.Plan{b, v, plan.Shared(link.VLANGateway{Bridge: "cni0", VLAN: 100}),
		plan.Shared(link.VLANGateway{Bridge: "cni0", VLAN: 200})}
	tx := engine.Begin(w)
	if err := tx.Apply(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := b.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	if err := engine.Verify(t.Context(), w, p); err != nil {
		t.Errorf("removed while there is a port: %v", err)
	}
	if err := engine.Undo(t.Context(), w, p); err != nil {
		t.Error(err)
	}
	if after := contract.BridgeVLANState(w)(t); after != before {
		t.Error(contract.Difference(before, after))
	}
}

// TestTransientBridgeRace attaches and detaches many at once. Whoever comes while the bridge goes has one all the same,
// and nothing is left in the end.
//
// clause: P12 P20
func TestTransientBridgeRace(t *testing.T) {
	w := contract.NewWorld(t)
	before := contract.State(t, w)
	const workers, rounds = 3, 60
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			o := spec.Owner{Network: "net", ContainerID: fmt.Sprint("c", i), IfName: fmt.Sprint("eth", i)}
			v := linktest.Veth(o, "br7")
			b := transient("br7")
			v.Recreate = b
			var br plan.Resource = b
			if i%3 == 2 { // a network that leaves it where it is, and finds it gone
				v.Recreate = plan.Shared(b.Bridge)
				br = v.Recreate
			}
			p := plan.Plan{br, v}
			for n := range rounds {
				tx := engine.Begin(w)
				err := tx.Apply(context.Background(), p)
				if err == nil {
					err = engine.Verify(context.Background(), w, p)
				}
				if err != nil {
					t.Errorf("%s, round %d: %v", o.ContainerID, n, err)
				}
				if err := engine.Undo(context.Background(), w, p); err != nil {
					t.Errorf("%s, round %d: remove: %v", o.ContainerID, n, err)
				}
			}
		})
	}
	wg.Wait()
	if err := transient("br7").Remove(t.Context(), w); err != nil { // who was last may have been one that leaves it
		t.Error(err)
	}
	if after := contract.State(t, w); after != before {
		t.Error(contract.Difference(before, after))
	}
}
