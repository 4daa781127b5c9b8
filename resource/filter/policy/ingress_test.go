package policy_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestIngressLaw(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	contract.Host(t, w, "ip link add br7 type bridge")
	filtertest.Test(t, w, policy.Ingress{Owner: contract.Owner, Policy: policy.Isolated},
		contract.Break("policy lifted", func(t *testing.T) { filtertest.NFT(t, w, "flush set inet fairlead isolated") },
			"isolated"),
		contract.Break("another policy", func(t *testing.T) {
			filtertest.NFT(t, w,
				"add element inet fairlead strict { veth1 }")
		},
			"strict { veth1 } is too much"),
		contract.Break("rule gone", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead forward") },
			"forward"),
		contract.Break("table gone", func(t *testing.T) { filtertest.NFT(t, w, "delete table inet fairlead") },
			"inet fairlead is missing"))
	filtertest.Test(t, w, policy.IsolatedPort{Owner: contract.Owner, Addrs: []netip.Addr{
		netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")}},
		contract.Break("not guarded", func(t *testing.T) {
			filtertest.NFT(t, w, "flush set bridge fairlead guarded_ports")
		}, "guarded_ports"),
		contract.Break("address of everybody", func(t *testing.T) {
			filtertest.NFT(t, w, "flush set bridge fairlead addresses_ip6")
		}, "addresses_ip6 { fd00::3 } is missing"),
		contract.Break("pair gone", func(t *testing.T) {
			filtertest.NFT(t, w, "flush set bridge fairlead port_addresses_ip")
		}, "port_addresses_ip"),
		contract.Break("no comparison", func(t *testing.T) {
			filtertest.NFT(t, w, "flush chain bridge fairlead prerouting")
		}, "address of another container"),
		contract.Break("not isolated", func(t *testing.T) {
			filtertest.NFT(t, w,
				"flush set bridge fairlead isolated_ports")
		},
			"isolated_ports"),
		contract.Break("rule gone", func(t *testing.T) { filtertest.NFT(t, w, "flush chain bridge fairlead forward") },
			"forward"))
}

// TestIngressOfNetwork puts a policy on a bridge: it stays while an attachment that was made with it is there, follows
// the configuration, and goes with the last one, whatever else has a port there. What another network has on the
// bridge stays.
//
// clause: P22
func TestIngressOfNetwork(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	contract.Host(t, w, "ip link add br7 type bridge")
	contract.Host(t, w, "ip link set veth1 master br7")
	filtertest.MakeTables(t, w)
	before := filtertest.Elements(t, w)
	in := func(mode string) policy.Ingress {
		return policy.Ingress{Owner: contract.Owner, Link: "br7", Policy: mode}
	}
	for _, mode := range []string{policy.Strict, policy.Open, policy.SameBridge, policy.Isolated} {
		contract.Ensure(t, w, in(mode))
		contract.Verify(t, w, policy.Ingress{Owner: contract.Owner, Policy: mode}) // finds the bridge by itself
	}
	if err := in(policy.Open).Verify(t.Context(), w); err == nil ||
		!strings.Contains(err.Error(), "policed { br7 } is too much") {
		t.Errorf("check under another policy: %v", err)
	}
	other := policy.Ingress{Owner: spec.Owner{Network: "other", ContainerID: "c9", IfName: "eth0"}, Link: "br7",
		Policy: policy.Isolated}
	contract.Ensure(t, w, other)
	contract.Verify(t, w, in(policy.Isolated))

	second := policy.Ingress{Owner: spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"}, Link: "br7",
		Policy: policy.Isolated}
	contract.Ensure(t, w, second)
	contract.Remove(t, w, in(policy.Isolated))
	contract.Verify(t, w, second)
	contract.Remove(t, w, second)
	contract.Verify(t, w, other) // whose the elements are now
	contract.Remove(t, w, other)
	if got := filtertest.Elements(t, w); got != before {
		t.Errorf("left:%s", contract.Difference(before, got))
	}

	// The list of an attachment lost its plugin firewall: the plugin that made the bridge takes the policy off, or GC.
	rules := func() string {
		return contract.Host(t, w, "ip rule") + contract.Host(t, w, "ip route show table all type prohibit")
	}
	unruled := rules()
	for _, lift := range []func() error{
		func() error { return policy.Kind().Remove(t.Context(), w, plan.TagOf(contract.Owner)) },
		func() error { return filtertest.Sweep(t.Context(), w, "net", []spec.Owner{second.Owner}) },
	} {
		contract.Ensure(t, w, in(policy.Strict))
		contract.Ensure(t, w, policy.FailClosed{Owner: contract.Owner, Link: "br7", Policy: policy.Strict,
			To: []netip.Prefix{netip.MustParsePrefix("10.7.0.2/24")}})
		if err := lift(); err != nil {
			t.Fatal(err)
		}
		if got := filtertest.Elements(t, w); got != before {
			t.Errorf("left:%s", contract.Difference(before, got))
		}
		if got := rules(); got != unruled {
			t.Errorf("left:%s", contract.Difference(unruled, got))
		}
	}
	contract.Ensure(t, w, in(policy.Strict))
	if err := filtertest.Sweep(t.Context(), w, "net", []spec.Owner{contract.Owner}); err != nil {
		t.Fatal(err)
	}
	contract.Verify(t, w, in(policy.Strict))

	sweep := func(network string, used bool) {
		t.Helper()
		if err := policy.SweepNetwork(t.Context(), w, network, used); err != nil {
			t.Fatal(err)
		}
	}
	contract.Ensure(t, w, in(policy.Strict))
	contract.Host(t, w, "ip link del br7")
	sweep("net", true)
	if got := filtertest.Elements(t, w); got != before {
		t.Errorf("left of a bridge that is gone:%s", contract.Difference(before, got))
	}
}

// TestIngressOfTwoNetworks puts two networks on one bridge. What one keeps out the other cannot let in, whoever comes
// first; and who has a policy lifts it.
func TestIngressOfTwoNetworks(t *testing.T) {
	other := spec.Owner{Network: "other", ContainerID: "c9", IfName: "eth0"}
	for _, lax := range []string{policy.Open, policy.SameBridge, policy.Strict} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprint(lax, first), func(t *testing.T) {
				w := contract.NewWorld(t)
				contract.Wire(t, w)
				contract.Host(t, w, "ip link add br7 type bridge")
				a, b := policy.Ingress{Owner: contract.Owner, Link: "br7",
					Policy: policy.Isolated}, policy.Ingress{Owner: other,
					Link: "br7", Policy: lax}
				contract.Ensure(t, w, a)
				if !first {
					filtertest.MakeTables(t, w)
					a, b = b, a
					filtertest.NFT(t, w, "delete table inet fairlead")
					contract.Ensure(t, w, a)
				}
				contract.Ensure(t, w, b)
				got := filtertest.NFT(t, w, "list table inet fairlead")
				for _, set := range []string{"isolated", "policed"} {
					if !strings.Contains(setText(got, set), `"br7"`) {
						t.Errorf("%s does not have the bridge:\n%s", set, setText(got, set))
					}
				}
				if text := setText(got, "within"); strings.Contains(text, "br7") {
					t.Errorf("let in within the bridge:\n%s", text)
				}
				if text := setText(got, "strict"); strings.Contains(text, "br7") != (lax == policy.Strict) {
					t.Errorf("strict:\n%s", text)
				}
				contract.Verify(t, w, a)
				contract.Verify(t, w, b)
				if a.Policy != policy.Isolated {
					a, b = b, a
				}
				a.Policy = policy.Open
				contract.Ensure(t, w, a)
				contract.Ensure(t, w, b)
				if text := setText(filtertest.NFT(t, w, "list table inet fairlead"), "isolated"); strings.Contains(text,
					"br7") {
					t.Errorf("not lifted by who had it:\n%s", text)
				}
				contract.Verify(t, w, a)
				contract.Verify(t, w, b)
			})
		}
	}
}

// setText is what nft(8) lists of a set.
func setText(list, name string) string {
	_, text, _ := strings.Cut(list, "set "+name+" {")
	text, _, _ = strings.Cut(text, "\n\t}")
	return text
}

// TestIngressWithoutLink asks for a policy where no link of this host could be told: that is an error, and open
// is not.
func TestIngressWithoutLink(t *testing.T) {
	w := contract.NewWorld(t)
	if changed, err := (policy.Ingress{Owner: contract.Owner, Policy: policy.Open}).Ensure(t.Context(),
		w); err != nil ||
		changed {
		t.Errorf("open: changed %v, %v", changed, err)
	}
	_, err := (policy.Ingress{Owner: contract.Owner, Policy: policy.Strict}).Ensure(t.Context(), w)
	if err == nil || !strings.HasPrefix(err.Error(), `ingressPolicy: "strict": eth0 has no host-side interface`) {
		t.Errorf("strict: %v", err)
	}
	if got := filtertest.Elements(t, w); got != "" {
		t.Errorf("something was made: %s", got)
	}
}

// TestPolicyLiftedBesideAnother: who lifts a policy that another network on the bridge has as well leaves that one what
// it needs, whoever came first, and by a new configuration as by its last DEL; the last one takes all.
//
// clause: P22
func TestPolicyLiftedBesideAnother(t *testing.T) {
	type network struct {
		in policy.Ingress
		c  policy.FailClosed
	}
	of := func(name, mode, subnet string) network {
		o := spec.Owner{Network: name, ContainerID: "c1", IfName: "eth0"}
		return network{policy.Ingress{Owner: o, Link: "br7", Policy: mode},
			policy.FailClosed{Owner: o, Link: "br7", Policy: mode, To: []netip.Prefix{contract.Prefix(subnet)}}}
	}
	for _, policies := range [][2]string{
		{policy.Isolated, policy.Isolated}, {policy.Strict, policy.Strict}, {policy.Strict,
			policy.Isolated}, {policy.SameBridge,
			policy.SameBridge},
		{policy.Isolated, policy.SameBridge}, {policy.SameBridge, policy.Strict},
	} {
		for _, first := range []int{0, 1} {
			for _, subnet := range []string{"10.7.0.3/24", "10.8.0.3/24"} { // one for both, or each its own
				for _, del := range []bool{false, true} {
					t.Run(fmt.Sprint(policies, first, subnet, del), func(t *testing.T) {
						w := contract.NewWorld(t)
						contract.Host(t, w, "ip link add br7 type bridge")
						reach(t, w, "br7", "10.7.0.0/24", "10.8.0.0/24")
						nets := []network{of("a", policies[0], "10.7.0.2/24"), of("b", policies[1], subnet)}
						for _, n := range []int{first, 1 - first} {
							contract.Ensure(t, w, nets[n].in)
							contract.Ensure(t, w, nets[n].c)
						}
						alone := nets[1]
						lift := func(n network) {
							t.Helper()
							if del {
								contract.Remove(t, w, n.in)
								return
							}
							n.in.Policy, n.c.Policy = policy.Open, policy.Open
							contract.Ensure(t, w, n.in)
							contract.Ensure(t, w, n.c)
							contract.Verify(t, w, n.in)
							contract.Verify(t, w, n.c)
						}
						lift(nets[0])
						contract.Verify(t, w, alone.in)
						contract.Verify(t, w, alone.c)
						if changed, err := alone.in.Ensure(t.Context(), w); changed || err != nil {
							t.Errorf("something was missing: %v, %v", changed, err)
						}
						if changed, err := alone.c.Ensure(t.Context(), w); changed || err != nil {
							t.Errorf("a rule was missing: %v, %v", changed, err)
						}
						lift(alone)
						for _, set := range []string{"policed", "isolated", "within", "strict"} {
							if text := setText(filtertest.NFT(t, w, "list table inet fairlead"),
								set); strings.Contains(text, "br7") {
								t.Errorf("left in %s:\n%s", set, text)
							}
						}
						if s := filtertest.FailClosedState(t, w); s != "" {
							t.Errorf("left:\n%s", s)
						}
					})
				}
			}
		}
	}
}
