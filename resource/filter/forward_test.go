package filter

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
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
				w := contract.NewWorld(t)
				for _, p := range []string{"iptables-", "ip6tables-"} {
					contract.Host(t, w, "%s%s -P FORWARD DROP", p, variant)
				}
				f := forwardOf("c1", backend, "10.1.2.5", "fd00::5")
				contract.Ensure(t, w, f) // the chains, which stay
				contract.Remove(t, w, f)
				contract.Terms{State: func(t testing.TB) string { return iptState(t, w) }}.Test(t, w, f,
					contract.Break("accepts gone", func(t *testing.T) { contract.Host(t, w, "iptables-%s -F CNI-FORWARD", variant) }, `-s 10.1.2.5/32`),
					contract.Break("jump gone", func(t *testing.T) { contract.Host(t, w, "ip6tables-%s -F FORWARD", variant) }, `-A FORWARD`),
					contract.Break("administrator's chain gone", func(t *testing.T) {
						contract.Host(t, w, "ip6tables-%s -F CNI-FORWARD", variant)
						contract.Host(t, w, "ip6tables-%s -X CNI-ADMIN", variant)
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
	w := contract.NewWorld(t)
	contract.Host(t, w, "iptables-nft -P FORWARD DROP")
	a, b := forwardOf("c1", BackendAuto, "10.1.2.5"), forwardOf("c2", BackendAuto, "10.1.2.5")
	contract.Ensure(t, w, a)
	contract.Ensure(t, w, b)
	contract.Remove(t, w, a)
	contract.Verify(t, w, b)

	contract.Ensure(t, w, a)
	if err := w.Store.Delete(forwardRecord, a.Owner); err != nil {
		t.Fatal(err)
	}
	contract.Remove(t, w, a)
	if s := iptState(t, w); strings.Contains(s, tagOf(a.Owner)) || !strings.Contains(s, tagOf(b.Owner)) {
		t.Errorf("after the DEL of one without a record:\n%s", s)
	}

	moved := forwardOf("c2", BackendAuto, "10.1.2.9")
	contract.Ensure(t, w, moved)
	if s := iptState(t, w); strings.Contains(s, "10.1.2.5") {
		t.Errorf("after the address changed:\n%s", s)
	}
	contract.Ensure(t, w, a)
	keep := identity.OwnerHash(a.Owner)
	if err := SweepForward(t.Context(), w, "other", func([8]byte) bool { return false }); err != nil {
		t.Fatal(err)
	}
	contract.Verify(t, w, moved)
	if err := SweepForward(t.Context(), w, "net", func(o [8]byte) bool { return o == keep }); err != nil {
		t.Fatal(err)
	}
	contract.Verify(t, w, a)
	if s := iptState(t, w); strings.Contains(s, "10.1.2.9") {
		t.Errorf("left by GC:\n%s", s)
	}
}

// TestForwardDecidesAnew: what is cached is used until somebody changes the rules, and CHECK does not go by it.
func TestForwardDecidesAnew(t *testing.T) {
	w := contract.NewWorld(t)
	f := forwardOf("c1", BackendAuto, "10.1.2.5")
	if changed, err := f.Ensure(t.Context(), w); err != nil || changed {
		t.Fatalf("on a host without rules: changed %v, %v", changed, err)
	}
	contract.Verify(t, w, f)
	contract.Host(t, w, "iptables-nft -A FORWARD -j REJECT")
	if err := f.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "iptables-nft -t filter: rule") {
		t.Errorf("check after somebody began to reject: %v", err)
	}
	contract.Ensure(t, w, f)
	contract.Verify(t, w, f)
	contract.Remove(t, w, f)
}

func TestIPTIngressLaw(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	contract.Host(t, w, "ip link add br7 type bridge")
	contract.Host(t, w, "ip link set veth1 master br7")
	contract.Host(t, w, "ip link set br7 up")
	contract.Host(t, w, "ip addr add 10.7.0.1/24 dev br7")
	contract.Host(t, w, "ip addr add 10.8.0.1/16 dev br7")
	contract.Host(t, w, "iptables-legacy -P FORWARD ACCEPT")
	of := func(policy string, to ...netip.Prefix) IPTIngressPolicy {
		return IPTIngressPolicy{Owner: contract.Owner, Policy: policy, V4: true, V6: true, To: to}
	}
	for _, policy := range []string{PolicyOpen, PolicyIsolated, PolicyStrict, PolicySameBridge} {
		// It stays, so each policy takes the place of the one before.
		contract.Terms{State: func(t testing.TB) string { return iptState(t, w) }}.Test(t, w,
			of(policy, contract.Prefix("10.7.0.2/24")),
			contract.Break("rules gone", func(t *testing.T) { contract.Host(t, w, "iptables-legacy -F CNI-ISOLATION-STRICT") },
				"CNI-ISOLATION-STRICT"),
			contract.Break("forged names pass", func(t *testing.T) {
				contract.Host(t, w,
					"iptables-legacy -F CNI-ISOLATION-SOURCE")
			}, "-s 10.7.0.0/24 ! -i br7"))
	}
	// the host has no way to the last one
	contract.Ensure(t, w, of(PolicySameBridge, contract.Prefix("10.8.0.2/16"), contract.Prefix("10.9.0.2/16")))
	if s := iptState(t, w); !strings.Contains(s, "-s 10.7.0.0/24 ! -i br7") ||
		!strings.Contains(s, "-s 10.8.0.0/16 ! -i br7") || strings.Contains(s, "10.9.") {
		t.Errorf("subnets behind br7:\n%s", s)
	}
	if s := iptState(t, w); strings.Contains(s, "policy: isolated)") || strings.Contains(s, "policy: strict)\" -j CNI") {
		t.Errorf("left of other policies:\n%s", s)
	}
	if err := SweepStages(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	contract.Verify(t, w, of(PolicySameBridge))

	// With the last attachment goes what the reference does not have; all of it where no container of its is there.
	contract.Ensure(t, w, of(PolicyStrict))
	contract.Remove(t, w, PolicyReference{contract.Owner})
	if s := iptState(t, w); strings.Contains(s, "strict)") || !strings.Contains(s, "CNI-ISOLATION-STAGE-2 -o br7") {
		t.Errorf("left beside a container of the reference:\n%s", s)
	}
	contract.Ensure(t, w, of(PolicyStrict, contract.Prefix("10.7.0.2/24")))
	if err := rtnl.SetLink(w.Host, "veth1", rtnl.LinkChange{Alias: identity.Tag(contract.Owner)}); err != nil {
		t.Fatal(err)
	}
	for _, lift := range []func() error{
		func() error { return PolicyReference{contract.Owner}.Remove(t.Context(), w) },
		func() error { return sweep(t.Context(), w, "net", nil) },
	} {
		if err := lift(); err != nil {
			t.Fatal(err)
		}
		if s := iptState(t, w); strings.Contains(s, "br7") {
			t.Errorf("left:\n%s", s)
		}
		contract.Ensure(t, w, of(PolicyStrict, contract.Prefix("10.7.0.2/24")))
	}
	contract.Host(t, w, "ip link del br7")
	if err := SweepStages(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if s := iptState(t, w); strings.Contains(s, "br7") {
		t.Errorf("left of a bridge that is gone:\n%s", s)
	}
}
