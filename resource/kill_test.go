package resource

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// killMe makes this binary do one addition, in the two namespaces that it names, and nothing else.
const killMe = "FAIRLEAD_TEST_ADD"

// Main runs the tests of a package, or the one addition that killMe asks for.
func Main(m *testing.M) {
	if os.Getenv(killMe) != "" {
		if err := addOnce(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	nstest.Main(m)
}

func addOnce() error {
	h, err := kernel.Open(os.Getenv(killMe + "_HOST"))
	if err != nil {
		return err
	}
	c, err := kernel.Open(os.Getenv(killMe + "_CONT"))
	if err != nil {
		return err
	}
	w := &kernel.World{Host: h, Container: c, Memory: kernel.Memory{Dir: os.Getenv(killMe + "_MEMORY")}}
	fmt.Println("open") // from here on it may be killed
	p := killPlans[os.Getenv(killMe)]()
	if os.Getenv(killMe+"_VERB") == "DEL" {
		return p.Remove(context.Background(), w)
	}
	for _, r := range p {
		if _, err := r.Ensure(context.Background(), w); err != nil {
			return err
		}
	}
	fmt.Println("done")
	return nil
}

// killPlans are what a package's tests kill the addition of, by name.
var killPlans map[string]func() plan.Plan

// policyPlan is a strict network's on br7.
func policyPlan(id string) plan.Plan {
	o := spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"}
	to := []netip.Prefix{netip.MustParsePrefix("10.7.0.2/24")}
	return plan.Plan{Ingress{Owner: o, Link: "br7", Policy: PolicyStrict, To: to},
		FailClosed{Owner: o, Link: "br7", Policy: PolicyStrict, Subnets: to}}
}

func killPlan() plan.Plan {
	addr := netip.MustParsePrefix("10.1.0.2/16")
	return plan.Plan{
		plan.Shared(Bridge{Name: "cni0"}),
		plan.Shared(Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("10.1.0.1/16")}),
		Port{Owner: owner, Link: "tap0", Master: "cni0", Isolated: true},
		Veth{Owner: owner, Name: "eth0", Host: kernel.LinkName("veth", owner), Master: "cni0", Hairpin: true},
		Addr{Link: "eth0", Prefix: addr},
		Route{Link: "eth0", Dst: default4, Via: netip.MustParseAddr("10.1.0.1")},
		Announce{Link: "eth0", Addrs: []netip.Prefix{addr}, Port: kernel.LinkName("veth", owner)},
	}
}

// runKilled kills an addition some time after it has begun, or lets it end where after is negative.
func runKilled(t *testing.T, w *kernel.World, which string, after time.Duration) (took time.Duration) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), killMe+"="+which, killMe+"_HOST="+w.Host.Path, killMe+"_CONT="+w.Container.Path, killMe+"_MEMORY="+w.Memory.Dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if after >= 0 {
		for time.Since(begin) < after { // a timer is too coarse for this
		}
		_ = cmd.Process.Kill()
	}
	_, _ = out.Read(make([]byte, 5))
	took = time.Since(begin)
	if err := cmd.Wait(); err != nil && after < 0 {
		t.Fatal(err)
	}
	return took
}

// An addition that is killed at any moment leaves nothing that removing, or a sweep, does not find.
//
// clause: P11 P12 P22
func TestKilledAddition(t *testing.T) {
	w := newWorld(t)
	host(t, w, "ip link add tap0 type veth peer name tap1")
	p := killPlan()
	must(t, w, p[0], p[1])
	before := linkState(t, w)
	shared, err := os.ReadDir(w.Memory.Dir) // of the bridge, which stays
	if err != nil {
		t.Fatal(err)
	}

	run := func(after time.Duration) time.Duration { return runKilled(t, w, "links", after) }
	remove := []func() error{
		func() error { return p.Remove(t.Context(), w) },
		func() error { return p.Remove(t.Context(), &kernel.World{Host: w.Host, Memory: w.Memory}) },
		func() error {
			none, noName := func([8]byte) bool { return false }, func(*kernel.Link) bool { return false }
			if err := SweepLinks(t.Context(), w, owner.Network, none, noName); err != nil {
				return err
			}
			return w.Memory.Sweep(owner.Network, func(string, [8]byte) bool { return false })
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
		if after := linkState(t, w); after != before {
			halfway++
		}
		if err := remove[i%len(remove)](); err != nil {
			t.Fatalf("removing what was killed after %d/%d: %v", i, n, err)
		}
		if after := linkState(t, w); after != before {
			t.Fatalf("killed after %d/%d, and removed:%s", i, n, difference(before, after))
		}
		if left, err := os.ReadDir(w.Memory.Dir); err != nil || len(left) != len(shared) {
			t.Fatalf("killed after %d/%d, and removed: records %v, error %v", i, n, left, err)
		}
	}
	if halfway == 0 {
		t.Error("none was killed after it had made anything: the test shows nothing")
	}
	t.Logf("%d of %d had made something; one takes %v", halfway, n, whole)
	// And the next one finds nothing in its way.
	run(-1)
	if err := p.Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
}

func BenchmarkAttach(b *testing.B) {
	w := newWorld(b)
	must(b, w, Bridge{Name: "cni0"}, Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("10.1.0.1/16")})
	addr := netip.MustParsePrefix("10.1.0.2/16")
	for b.Loop() {
		b.StopTimer()
		o := spec.Owner{Network: "net", ContainerID: "bench", IfName: "eth0"}
		v := testVeth(o, "cni0")
		path := nstest.NewNS(b)
		b.StartTimer()
		c, err := kernel.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		x := *w
		x.Container = c
		must(b, &x, Bridge{Name: "cni0"}, Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("10.1.0.1/16")}, Forwarding{}, v,
			Addr{Link: "eth0", Prefix: addr}, Route{Link: "eth0", Dst: default4, Via: netip.MustParseAddr("10.1.0.1")},
			Announce{Link: "eth0", Addrs: []netip.Prefix{addr}, Port: v.Host})
		b.StopTimer()
		if err := v.Remove(b.Context(), &x); err != nil {
			b.Fatal(err)
		}
		c.Close()
		b.StartTimer()
	}
}
