package resource

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

var packets = regexp.MustCompile(`\[\d+:\d+\]|(?m)^#.*$`)

// iptState is what iptables-save shows of both variants and families, sorted: chains come in the order in which they
// were made. Asked for a table by name, the legacy one would make it.
func iptState(t testing.TB, w *kernel.World) string {
	t.Helper()
	return packets.ReplaceAllString(nstest.RunIn(t, w.Host.Path, "sh", "-c",
		"for f in iptables ip6tables; do for v in nft legacy; do echo $f $v; $f-$v-save 2>/dev/null | sort; done; done"), "")
}

func forwardOf(container string, backend string, addrs ...string) Forward {
	f := Forward{Owner: spec.Owner{Network: "net", ContainerID: container, IfName: "eth0"}, Backend: backend}
	for _, a := range addrs {
		f.Addrs = append(f.Addrs, netip.MustParseAddr(a))
	}
	return f
}

func TestForwardLaw(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, backend := range []string{BackendAuto, BackendIPTables} {
			t.Run(variant+"/"+backend, func(t *testing.T) {
				w := newWorld(t)
				for _, p := range []string{"iptables-", "ip6tables-"} {
					host(t, w, "%s%s -P FORWARD DROP", p, variant)
				}
				f := forwardOf("c1", backend, "10.1.2.5", "fd00::5")
				ensure(t, w, f) // the chains, which stay
				removeIt(t, w, f)
				lawBook{state: func(t testing.TB) string { return iptState(t, w) }}.hold(t, w, f,
					breakBy("accepts gone", func(t *testing.T) { host(t, w, "iptables-%s -F CNI-FORWARD", variant) }, `-s 10.1.2.5/32`),
					breakBy("jump gone", func(t *testing.T) { host(t, w, "ip6tables-%s -F FORWARD", variant) }, `-A FORWARD`),
					breakBy("administrator's chain gone", func(t *testing.T) {
						host(t, w, "ip6tables-%s -F CNI-FORWARD", variant)
						host(t, w, "ip6tables-%s -X CNI-ADMIN", variant)
					}, `CNI-ADMIN`))
			})
		}
	}
}

// TestForwardOwners: a late DEL does not take the accepts of whoever has the address now, a killed ADD's are found
// without a record, GC sweeps those of the dead, and an address that changed leaves nothing behind.
//
// clause: P12 P22
func TestForwardOwners(t *testing.T) {
	w := newWorld(t)
	host(t, w, "iptables-nft -P FORWARD DROP")
	a, b := forwardOf("c1", BackendAuto, "10.1.2.5"), forwardOf("c2", BackendAuto, "10.1.2.5")
	ensure(t, w, a)
	ensure(t, w, b)
	removeIt(t, w, a)
	verify(t, w, b)

	ensure(t, w, a)
	if err := w.Memory.Forget(forwardRecord, a.Owner); err != nil {
		t.Fatal(err)
	}
	removeIt(t, w, a)
	if s := iptState(t, w); strings.Contains(s, tagOf(a.Owner)) || !strings.Contains(s, tagOf(b.Owner)) {
		t.Errorf("after the DEL of one without a record:\n%s", s)
	}

	moved := forwardOf("c2", BackendAuto, "10.1.2.9")
	ensure(t, w, moved)
	if s := iptState(t, w); strings.Contains(s, "10.1.2.5") {
		t.Errorf("after the address changed:\n%s", s)
	}
	ensure(t, w, a)
	keep := kernel.OwnerHash(a.Owner)
	if err := SweepForward(t.Context(), w, "other", func([8]byte) bool { return false }); err != nil {
		t.Fatal(err)
	}
	verify(t, w, moved)
	if err := SweepForward(t.Context(), w, "net", func(o [8]byte) bool { return o == keep }); err != nil {
		t.Fatal(err)
	}
	verify(t, w, a)
	if s := iptState(t, w); strings.Contains(s, "10.1.2.9") {
		t.Errorf("left by GC:\n%s", s)
	}
}

// TestForwardDecidesAnew: what is cached is used until somebody changes the rules, and CHECK does not go by it.
func TestForwardDecidesAnew(t *testing.T) {
	w := newWorld(t)
	f := forwardOf("c1", BackendAuto, "10.1.2.5")
	if changed, err := f.Ensure(t.Context(), w); err != nil || changed {
		t.Fatalf("on a host without rules: changed %v, %v", changed, err)
	}
	verify(t, w, f)
	host(t, w, "iptables-nft -A FORWARD -j REJECT")
	if err := f.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "iptables-nft -t filter: rule") {
		t.Errorf("check after somebody began to reject: %v", err)
	}
	ensure(t, w, f)
	verify(t, w, f)
	removeIt(t, w, f)
}

func TestIPTIngressLaw(t *testing.T) {
	w := newWorld(t)
	wire(t, w)
	host(t, w, "ip link add br7 type bridge")
	host(t, w, "ip link set veth1 master br7")
	host(t, w, "ip link set br7 up")
	host(t, w, "ip addr add 10.7.0.1/24 dev br7")
	host(t, w, "ip addr add 10.8.0.1/16 dev br7")
	host(t, w, "iptables-legacy -P FORWARD ACCEPT")
	of := func(policy string, to ...netip.Prefix) IPTIngress {
		return IPTIngress{Owner: owner, Policy: policy, V4: true, V6: true, To: to}
	}
	for _, policy := range []string{PolicyOpen, PolicyIsolated, PolicyStrict, PolicySameBridge} {
		// It stays, so each policy takes the place of the one before.
		lawBook{state: func(t testing.TB) string { return iptState(t, w) }}.hold(t, w, of(policy, pfx("10.7.0.2/24")),
			breakBy("rules gone", func(t *testing.T) { host(t, w, "iptables-legacy -F CNI-ISOLATION-STRICT") }, "CNI-ISOLATION-STRICT"),
			breakBy("forged names pass", func(t *testing.T) { host(t, w, "iptables-legacy -F CNI-ISOLATION-SOURCE") }, "-s 10.7.0.0/24 ! -i br7"))
	}
	ensure(t, w, of(PolicySameBridge, pfx("10.8.0.2/16"), pfx("10.9.0.2/16"))) // the host has no way to the last one
	if s := iptState(t, w); !strings.Contains(s, "-s 10.7.0.0/24 ! -i br7") || !strings.Contains(s, "-s 10.8.0.0/16 ! -i br7") || strings.Contains(s, "10.9.") {
		t.Errorf("subnets behind br7:\n%s", s)
	}
	if s := iptState(t, w); strings.Contains(s, "policy: isolated)") || strings.Contains(s, "policy: strict)\" -j CNI") {
		t.Errorf("left of other policies:\n%s", s)
	}
	if err := SweepStages(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	verify(t, w, of(PolicySameBridge))

	// With the last attachment goes what the reference does not have; all of it where no container of its is there.
	ensure(t, w, of(PolicyStrict))
	removeIt(t, w, Policed{owner})
	if s := iptState(t, w); strings.Contains(s, "strict)") || !strings.Contains(s, "CNI-ISOLATION-STAGE-2 -o br7") {
		t.Errorf("left beside a container of the reference:\n%s", s)
	}
	ensure(t, w, of(PolicyStrict, pfx("10.7.0.2/24")))
	if err := w.Host.SetLink("veth1", kernel.LinkChange{Alias: kernel.Tag(owner)}); err != nil {
		t.Fatal(err)
	}
	for _, lift := range []func() error{
		func() error { return Policed{owner}.Remove(t.Context(), w) },
		func() error { return Sweep(t.Context(), w, "net", nil) },
	} {
		if err := lift(); err != nil {
			t.Fatal(err)
		}
		if s := iptState(t, w); strings.Contains(s, "br7") {
			t.Errorf("left:\n%s", s)
		}
		ensure(t, w, of(PolicyStrict, pfx("10.7.0.2/24")))
	}
	host(t, w, "ip link del br7")
	if err := SweepStages(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if s := iptState(t, w); strings.Contains(s, "br7") {
		t.Errorf("left of a bridge that is gone:\n%s", s)
	}
}
