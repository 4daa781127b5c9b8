package filter

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/lawtest"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestIngressLaw(t *testing.T) {
	w := lawtest.NewWorld(t)
	lawtest.Wire(t, w)
	lawtest.Host(t, w, "ip link add br7 type bridge")
	nftLaw(t, w, Ingress{Owner: lawtest.Owner, Policy: PolicyIsolated},
		lawtest.Break("policy lifted", func(t *testing.T) { nft(t, w, "flush set inet fairlead isolated") }, "isolated"),
		lawtest.Break("another policy", func(t *testing.T) { nft(t, w, "add element inet fairlead strict { veth1 }") }, "strict { veth1 } is too much"),
		lawtest.Break("rule gone", func(t *testing.T) { nft(t, w, "flush chain inet fairlead forward") }, "forward"),
		lawtest.Break("table gone", func(t *testing.T) { nft(t, w, "delete table inet fairlead") }, "inet fairlead is missing"))
	nftLaw(t, w, IsolatedPort{Owner: lawtest.Owner},
		lawtest.Break("not isolated", func(t *testing.T) { nft(t, w, "flush set bridge fairlead isolated_ports") }, "isolated_ports"),
		lawtest.Break("rule gone", func(t *testing.T) { nft(t, w, "flush chain bridge fairlead forward") }, "forward"))
}

// TestIngressOfNetwork puts a policy on a bridge: it stays while an attachment that was made with it is there, follows
// the configuration, and goes with the last one, whatever else has a port there. What another network has on the
// bridge stays.
//
// clause: P22
func TestIngressOfNetwork(t *testing.T) {
	w := lawtest.NewWorld(t)
	lawtest.Wire(t, w)
	lawtest.Host(t, w, "ip link add br7 type bridge")
	lawtest.Host(t, w, "ip link set veth1 master br7")
	skeleton(t, w)
	before := elements(t, w)
	in := func(policy string) Ingress { return Ingress{Owner: lawtest.Owner, Link: "br7", Policy: policy} }
	for _, policy := range []string{PolicyStrict, PolicyOpen, PolicySameBridge, PolicyIsolated} {
		lawtest.Ensure(t, w, in(policy))
		lawtest.Verify(t, w, Ingress{Owner: lawtest.Owner, Policy: policy}) // finds the bridge by itself
	}
	if err := in(PolicyOpen).Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "policed { br7 } is too much") {
		t.Errorf("check under another policy: %v", err)
	}
	other := Ingress{Owner: spec.Owner{Network: "other", ContainerID: "c9", IfName: "eth0"}, Link: "br7", Policy: PolicyIsolated}
	lawtest.Ensure(t, w, other)
	lawtest.Verify(t, w, in(PolicyIsolated))

	second := Ingress{Owner: spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"}, Link: "br7", Policy: PolicyIsolated}
	lawtest.Ensure(t, w, second)
	lawtest.Remove(t, w, in(PolicyIsolated))
	lawtest.Verify(t, w, second)
	lawtest.Remove(t, w, second)
	lawtest.Verify(t, w, other) // whose the elements are now
	lawtest.Remove(t, w, other)
	if got := elements(t, w); got != before {
		t.Errorf("left:%s", lawtest.Difference(before, got))
	}

	// The list of an attachment lost its plugin firewall: the plugin that made the bridge takes the policy off, or GC.
	rules := func() string {
		return lawtest.Host(t, w, "ip rule") + lawtest.Host(t, w, "ip route show table all type prohibit")
	}
	unruled := rules()
	for _, lift := range []func() error{
		func() error { return Policed{lawtest.Owner}.Remove(t.Context(), w) },
		func() error { return sweep(t.Context(), w, "net", []spec.Owner{second.Owner}) },
	} {
		lawtest.Ensure(t, w, in(PolicyStrict))
		lawtest.Ensure(t, w, FailClosed{Owner: lawtest.Owner, Link: "br7", Policy: PolicyStrict, Subnets: []netip.Prefix{netip.MustParsePrefix("10.7.0.2/24")}})
		if err := lift(); err != nil {
			t.Fatal(err)
		}
		if got := elements(t, w); got != before {
			t.Errorf("left:%s", lawtest.Difference(before, got))
		}
		if got := rules(); got != unruled {
			t.Errorf("left:%s", lawtest.Difference(unruled, got))
		}
	}
	lawtest.Ensure(t, w, in(PolicyStrict))
	if err := sweep(t.Context(), w, "net", []spec.Owner{lawtest.Owner}); err != nil {
		t.Fatal(err)
	}
	lawtest.Verify(t, w, in(PolicyStrict))

	sweep := func(network string, used bool) {
		t.Helper()
		if err := SweepNetwork(t.Context(), w, network, used); err != nil {
			t.Fatal(err)
		}
	}
	lawtest.Ensure(t, w, in(PolicyStrict))
	lawtest.Host(t, w, "ip link del br7")
	sweep("net", true)
	if got := elements(t, w); got != before {
		t.Errorf("left of a bridge that is gone:%s", lawtest.Difference(before, got))
	}
}

// TestIngressOfTwoNetworks puts two networks on one bridge. What one keeps out the other cannot let in, whoever comes
// first; and who has a policy lifts it.
func TestIngressOfTwoNetworks(t *testing.T) {
	other := spec.Owner{Network: "other", ContainerID: "c9", IfName: "eth0"}
	for _, lax := range []string{PolicyOpen, PolicySameBridge, PolicyStrict} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprint(lax, first), func(t *testing.T) {
				w := lawtest.NewWorld(t)
				lawtest.Wire(t, w)
				lawtest.Host(t, w, "ip link add br7 type bridge")
				a, b := Ingress{Owner: lawtest.Owner, Link: "br7", Policy: PolicyIsolated}, Ingress{Owner: other, Link: "br7", Policy: lax}
				lawtest.Ensure(t, w, a)
				if !first {
					skeleton(t, w)
					a, b = b, a
					nft(t, w, "delete table inet fairlead")
					lawtest.Ensure(t, w, a)
				}
				lawtest.Ensure(t, w, b)
				got := nft(t, w, "list table inet fairlead")
				for _, set := range []string{"isolated", "policed"} {
					if !strings.Contains(setText(got, set), `"br7"`) {
						t.Errorf("%s does not have the bridge:\n%s", set, setText(got, set))
					}
				}
				if text := setText(got, "within"); strings.Contains(text, "br7") {
					t.Errorf("let in within the bridge:\n%s", text)
				}
				if text := setText(got, "strict"); strings.Contains(text, "br7") != (lax == PolicyStrict) {
					t.Errorf("strict:\n%s", text)
				}
				lawtest.Verify(t, w, a)
				lawtest.Verify(t, w, b)
				if a.Policy != PolicyIsolated {
					a, b = b, a
				}
				a.Policy = PolicyOpen
				lawtest.Ensure(t, w, a)
				lawtest.Ensure(t, w, b)
				if text := setText(nft(t, w, "list table inet fairlead"), "isolated"); strings.Contains(text, "br7") {
					t.Errorf("not lifted by who had it:\n%s", text)
				}
				lawtest.Verify(t, w, a)
				lawtest.Verify(t, w, b)
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
	w := lawtest.NewWorld(t)
	if changed, err := (Ingress{Owner: lawtest.Owner, Policy: PolicyOpen}).Ensure(t.Context(), w); err != nil || changed {
		t.Errorf("open: changed %v, %v", changed, err)
	}
	_, err := (Ingress{Owner: lawtest.Owner, Policy: PolicyStrict}).Ensure(t.Context(), w)
	if err == nil || !strings.HasPrefix(err.Error(), `ingressPolicy: "strict": eth0 has no end`) {
		t.Errorf("strict: %v", err)
	}
	if got := elements(t, w); got != "" {
		t.Errorf("something was made: %s", got)
	}
}

// TestPolicyLiftedBesideAnother: who lifts a policy that another network on the bridge has as well leaves that one what
// it needs, whoever came first, and by a new configuration as by its last DEL; the last one takes all.
//
// clause: P22
func TestPolicyLiftedBesideAnother(t *testing.T) {
	type network struct {
		in Ingress
		c  FailClosed
	}
	of := func(name, policy, subnet string) network {
		o := spec.Owner{Network: name, ContainerID: "c1", IfName: "eth0"}
		return network{Ingress{Owner: o, Link: "br7", Policy: policy}, FailClosed{Owner: o, Link: "br7", Policy: policy, Subnets: []netip.Prefix{lawtest.Prefix(subnet)}}}
	}
	for _, policies := range [][2]string{
		{PolicyIsolated, PolicyIsolated}, {PolicyStrict, PolicyStrict}, {PolicyStrict, PolicyIsolated}, {PolicySameBridge, PolicySameBridge},
		{PolicyIsolated, PolicySameBridge}, {PolicySameBridge, PolicyStrict},
	} {
		for _, first := range []int{0, 1} {
			for _, subnet := range []string{"10.7.0.3/24", "10.8.0.3/24"} { // one for both, or each its own
				for _, del := range []bool{false, true} {
					t.Run(fmt.Sprint(policies, first, subnet, del), func(t *testing.T) {
						w := lawtest.NewWorld(t)
						lawtest.Host(t, w, "ip link add br7 type bridge")
						reach(t, w, "br7", "10.7.0.0/24", "10.8.0.0/24")
						nets := []network{of("a", policies[0], "10.7.0.2/24"), of("b", policies[1], subnet)}
						for _, n := range []int{first, 1 - first} {
							lawtest.Ensure(t, w, nets[n].in)
							lawtest.Ensure(t, w, nets[n].c)
						}
						alone := nets[1]
						lift := func(n network) {
							t.Helper()
							if del {
								lawtest.Remove(t, w, n.in)
								return
							}
							n.in.Policy, n.c.Policy = PolicyOpen, PolicyOpen
							lawtest.Ensure(t, w, n.in)
							lawtest.Ensure(t, w, n.c)
							lawtest.Verify(t, w, n.in)
							lawtest.Verify(t, w, n.c)
						}
						lift(nets[0])
						lawtest.Verify(t, w, alone.in)
						lawtest.Verify(t, w, alone.c)
						if changed, err := alone.in.Ensure(t.Context(), w); changed || err != nil {
							t.Errorf("something was missing: %v, %v", changed, err)
						}
						if changed, err := alone.c.Ensure(t.Context(), w); changed || err != nil {
							t.Errorf("a rule was missing: %v, %v", changed, err)
						}
						lift(alone)
						for _, set := range []string{"policed", "isolated", "within", "strict"} {
							if text := setText(nft(t, w, "list table inet fairlead"), set); strings.Contains(text, "br7") {
								t.Errorf("left in %s:\n%s", set, text)
							}
						}
						if s := closedState(t, w); s != "" {
							t.Errorf("left:\n%s", s)
						}
					})
				}
			}
		}
	}
}
