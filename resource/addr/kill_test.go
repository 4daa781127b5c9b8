package addr

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/link/linktest"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/spec"
)

func killPlan() plan.Plan {
	addr := netip.MustParsePrefix("10.1.0.2/16")
	return plan.Plan{
		plan.Shared(link.Bridge{Name: "cni0"}),
		plan.Shared(Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("10.1.0.1/16")}),
		link.Port{Owner: contract.Owner, Link: "tap0", Master: "cni0", Isolated: true},
		link.Veth{Owner: contract.Owner, Name: "eth0", Host: identity.LinkName("veth", contract.Owner), Master: "cni0",
			Hairpin: true},
		Addr{Link: "eth0", Prefix: addr},
		Route{Link: "eth0", Dst: contract.Default4, Via: netip.MustParseAddr("10.1.0.1")},
		Announce{Link: "eth0", Addrs: []netip.Prefix{addr}, Port: identity.LinkName("veth", contract.Owner)},
	}
}

// An addition that is killed at any moment leaves nothing that removing, or a sweep, does not find.
//
// clause: P11 P12 P22
func TestKilledAddition(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip link add tap0 type veth peer name tap1")
	p := killPlan()
	contract.Must(t, w, p[0], p[1])
	before := contract.State(t, w)
	shared, err := os.ReadDir(w.Store.Dir) // of the bridge, which stays
	if err != nil {
		t.Fatal(err)
	}

	run := func(after time.Duration) time.Duration { return contract.RunKilled(t, w, "links", after) }
	remove := []func() error{
		func() error { return engine.Undo(t.Context(), w, p) },
		func() error { return engine.Undo(t.Context(), &kernel.World{Host: w.Host, Store: w.Store}, p) },
		func() error {
			none, noName := func([8]byte) bool { return false }, func(*rtnl.Link) bool { return false }
			if err := contract.SweepKinds(t.Context(), w, []plan.Kind{link.PortKind(), link.VethKind("")},
				contract.Owner.Network, none, noName); err != nil {
				return err
			}
			return w.Store.Sweep(contract.Owner.Network, func(string, [8]byte) bool { return false })
		},
	}
	whole := run(-1)
	if err := remove[0](); err != nil {
		t.Fatal(err)
	}
	const n = 45
	halfway := 0
	for i := range n {
		run(whole * time.Duration(i) / n)
		if after := contract.State(t, w); after != before {
			halfway++
		}
		if err := remove[i%len(remove)](); err != nil {
			t.Fatalf("removing what was killed after %d/%d: %v", i, n, err)
		}
		if after := contract.State(t, w); after != before {
			t.Fatalf("killed after %d/%d, and removed:%s", i, n, contract.Difference(before, after))
		}
		if left, err := os.ReadDir(w.Store.Dir); err != nil || len(left) != len(shared) {
			t.Fatalf("killed after %d/%d, and removed: records %v, error %v", i, n, left, err)
		}
	}
	if halfway == 0 {
		t.Error("none was killed after it had made anything: the test shows nothing")
	}
	t.Logf("%d of %d had made something; one takes %v", halfway, n, whole)
	// And the next one finds nothing in its way.
	run(-1)
	if err := engine.Verify(t.Context(), w, p); err != nil {
		t.Error(err)
	}
}

func BenchmarkAttach(b *testing.B) {
	w := contract.NewWorld(b)
	contract.Must(b, w, link.Bridge{Name: "cni0"}, Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("10.1.0.1/16")})
	addr := netip.MustParsePrefix("10.1.0.2/16")
	for b.Loop() {
		b.StopTimer()
		o := spec.Owner{Network: "net", ContainerID: "bench", IfName: "eth0"}
		v := linktest.Veth(o, "cni0")
		path := nstest.NewNS(b)
		b.StartTimer()
		c, err := kernel.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		x := *w
		x.Container = c
		contract.Must(b, &x, link.Bridge{Name: "cni0"}, Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("10.1.0.1/16")},
			sysctl.Forwarding{}, v,
			Addr{Link: "eth0", Prefix: addr}, Route{Link: "eth0", Dst: contract.Default4, Via: netip.MustParseAddr("10.1.0.1")},
			Announce{Link: "eth0", Addrs: []netip.Prefix{addr}, Port: v.Host})
		b.StopTimer()
		if err := v.Remove(b.Context(), &x); err != nil {
			b.Fatal(err)
		}
		c.Close()
		b.StartTimer()
	}
}
