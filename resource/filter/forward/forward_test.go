package forward_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/forward"
	"github.com/fairlead-cni/fairlead/spec"
)

func forwardOf(container string, backend string, addrs ...string) forward.Forward {
	f := forward.Forward{Owner: spec.Owner{Network: "net", ContainerID: container, IfName: "eth0"}, Backend: backend}
	for _, a := range addrs {
		f.Addrs = append(f.Addrs, netip.MustParseAddr(a))
	}
	return f
}

func TestForwardLaw(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, backend := range []string{forward.Auto, forward.IPTables} {
			t.Run(variant+"/"+backend, func(t *testing.T) {
				w := contract.NewWorld(t)
				for _, p := range []string{"iptables-", "ip6tables-"} {
					contract.Host(t, w, "%s%s -P FORWARD DROP", p, variant)
				}
				f := forwardOf("c1", backend, "10.1.2.5", "fd00::5")
				contract.Ensure(t, w, f) // the chains, which stay
				contract.Remove(t, w, f)
				contract.Terms{State: func(t testing.TB) string { return filtertest.IPTablesState(t, w) }}.Test(t, w, f,
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
	a, b := forwardOf("c1", forward.Auto, "10.1.2.5"), forwardOf("c2", forward.Auto, "10.1.2.5")
	contract.Ensure(t, w, a)
	contract.Ensure(t, w, b)
	contract.Remove(t, w, a)
	contract.Verify(t, w, b)

	contract.Ensure(t, w, a)
	if err := w.Store.Delete("forward", a.Owner); err != nil {
		t.Fatal(err)
	}
	contract.Remove(t, w, a)
	if s := filtertest.IPTablesState(t, w); strings.Contains(s, filter.CommentOf(a.Owner)) ||
		!strings.Contains(s, filter.CommentOf(b.Owner)) {
		t.Errorf("after the DEL of one without a record:\n%s", s)
	}

	moved := forwardOf("c2", forward.Auto, "10.1.2.9")
	contract.Ensure(t, w, moved)
	if s := filtertest.IPTablesState(t, w); strings.Contains(s, "10.1.2.5") {
		t.Errorf("after the address changed:\n%s", s)
	}
	contract.Ensure(t, w, a)
	keep := identity.OwnerHash(a.Owner)
	if err := forward.Sweep(t.Context(), w, "other", func([8]byte) bool { return false }); err != nil {
		t.Fatal(err)
	}
	contract.Verify(t, w, moved)
	if err := forward.Sweep(t.Context(), w, "net", func(o [8]byte) bool { return o == keep }); err != nil {
		t.Fatal(err)
	}
	contract.Verify(t, w, a)
	if s := filtertest.IPTablesState(t, w); strings.Contains(s, "10.1.2.9") {
		t.Errorf("left by GC:\n%s", s)
	}
}

// TestForwardDecidesAnew: what is cached is used until somebody changes the rules, and CHECK does not go by it.
func TestForwardDecidesAnew(t *testing.T) {
	w := contract.NewWorld(t)
	f := forwardOf("c1", forward.Auto, "10.1.2.5")
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
