package policy_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
)

func TestIPTIngressLaw(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	contract.Host(t, w, "ip link add br7 type bridge")
	contract.Host(t, w, "ip link set veth1 master br7")
	contract.Host(t, w, "ip link set br7 up")
	contract.Host(t, w, "ip addr add 10.7.0.1/24 dev br7")
	contract.Host(t, w, "ip addr add 10.8.0.1/16 dev br7")
	contract.Host(t, w, "iptables-legacy -P FORWARD ACCEPT")
	of := func(mode string, to ...netip.Prefix) policy.IngressIPTables {
		return policy.IngressIPTables{Owner: contract.Owner, Policy: mode, V4: true, V6: true, To: to}
	}
	for _, mode := range []string{policy.Open, policy.Isolated, policy.Strict, policy.SameBridge} {
		// It stays, so each policy takes the place of the one before.
		contract.Terms{State: func(t testing.TB) string { return filtertest.IPTablesState(t, w) }}.Test(t, w,
			of(mode, contract.Prefix("10.7.0.2/24")),
			contract.Break("rules gone", func(t *testing.T) {
				contract.Host(t, w,
					"iptables-legacy -F CNI-ISOLATION-STRICT")
			},
				"CNI-ISOLATION-STRICT"),
			contract.Break("forged names pass", func(t *testing.T) {
				contract.Host(t, w,
					"iptables-legacy -F CNI-ISOLATION-SOURCE")
			}, "-s 10.7.0.0/24 ! -i br7"))
	}
	// the host has no way to the last one
	contract.Ensure(t, w, of(policy.SameBridge, contract.Prefix("10.8.0.2/16"), contract.Prefix("10.9.0.2/16")))
	if s := filtertest.IPTablesState(t, w); !strings.Contains(s, "-s 10.7.0.0/24 ! -i br7") ||
		!strings.Contains(s, "-s 10.8.0.0/16 ! -i br7") || strings.Contains(s, "10.9.") {
		t.Errorf("subnets behind br7:\n%s", s)
	}
	if s := filtertest.IPTablesState(t, w); strings.Contains(s, "policy: isolated)") ||
		strings.Contains(s, "policy: strict)\" -j CNI") {
		t.Errorf("left of other policies:\n%s", s)
	}
	if err := policy.SweepStages(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	contract.Verify(t, w, of(policy.SameBridge))

	// With the last attachment goes what the reference does not have; all of it where no container of its is there.
	contract.Ensure(t, w, of(policy.Strict))
	if err := policy.Kind().Remove(t.Context(), w, plan.TagOf(contract.Owner)); err != nil {
		t.Fatal(err)
	}
	if s := filtertest.IPTablesState(t, w); strings.Contains(s, "strict)") ||
		!strings.Contains(s, "CNI-ISOLATION-STAGE-2 -o br7") {
		t.Errorf("left beside a container of the reference:\n%s", s)
	}
	contract.Ensure(t, w, of(policy.Strict, contract.Prefix("10.7.0.2/24")))
	if err := rtnl.SetLink(w.Host, "veth1", rtnl.LinkChange{Alias: identity.Tag(contract.Owner)}); err != nil {
		t.Fatal(err)
	}
	for _, lift := range []func() error{
		func() error { return policy.Kind().Remove(t.Context(), w, plan.TagOf(contract.Owner)) },
		func() error { return filtertest.Sweep(t.Context(), w, "net", nil) },
	} {
		if err := lift(); err != nil {
			t.Fatal(err)
		}
		if s := filtertest.IPTablesState(t, w); strings.Contains(s, "br7") {
			t.Errorf("left:\n%s", s)
		}
		contract.Ensure(t, w, of(policy.Strict, contract.Prefix("10.7.0.2/24")))
	}
	contract.Host(t, w, "ip link del br7")
	if err := policy.SweepStages(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if s := filtertest.IPTablesState(t, w); strings.Contains(s, "br7") {
		t.Errorf("left of a bridge that is gone:\n%s", s)
	}
}
