package resource

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// After a flush, the first network that puts its policy back has the table decide about what its containers send: the
// table then knows the other ones too, which take their policy over when their turn comes, or lose it to a sweep.
//
// clause: P22
func TestPolicyKnowsOthersAfterAFlush(t *testing.T) {
	w := newWorld(t)
	type network struct {
		in Ingress
		c  Closed
	}
	nets := map[string]network{}
	for name, n := range map[string]struct{ policy, subnet string }{"br6": {PolicyStrict, "10.6.0.2/24"}, "br7": {PolicyIsolated, "10.7.0.2/24"}, "br8": {PolicyStrict, "10.8.0.2/24"}} {
		host(t, w, "ip link add %s type bridge", name)
		o := spec.Owner{Network: "of-" + name, ContainerID: "c1", IfName: "eth0"}
		nets[name] = network{Ingress{Owner: o, Link: name, Policy: n.policy}, Closed{Owner: o, Link: name, Policy: n.policy, Subnets: []netip.Prefix{pfx(n.subnet)}}}
		ensure(t, w, nets[name].in)
		ensure(t, w, nets[name].c)
	}
	before := elements(t, w)
	has := func(set, link, comment string) {
		t.Helper()
		s := nft(t, w, "list set inet fairlead "+set)
		if !strings.Contains(s, `"`+link+`" comment "`+comment) {
			t.Errorf("%s has not %s with the comment %s:\n%s", set, link, comment, s)
		}
	}
	nft(t, w, "flush ruleset")
	ensure(t, w, nets["br7"].in)
	has("policed", "br6", asRules)
	has("strict", "br6", asRules)
	has("known", "br8", asRules)
	has("strict", "br8", asRules)
	if s := nft(t, w, "list set inet fairlead strict"); strings.Contains(s, "br7") {
		t.Errorf("br7 is not strict: %s", s)
	}
	verify(t, w, nets["br7"].in)
	if err := nets["br8"].in.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "within { br8 . br8 } is missing") {
		t.Errorf("check of another one: %v", err)
	}
	if changed, err := nets["br7"].in.Ensure(t.Context(), w); changed || err != nil {
		t.Errorf("again: changed %v, error %v", changed, err)
	}

	// An owner takes over what is its own.
	ensure(t, w, nets["br6"].in)
	ensure(t, w, nets["br8"].in)
	has("policed", "br8", kernel.Tag(networkOwner("of-br8", "br8"))[:29])
	for _, n := range nets {
		ensure(t, w, n.c)
		verify(t, w, n.in)
		verify(t, w, n.c)
	}
	if after := elements(t, w); after != before {
		t.Errorf("made again:%s", difference(before, after))
	}

	// And who has no owner any more goes with the routing rules.
	nft(t, w, "flush ruleset")
	ensure(t, w, nets["br7"].in)
	for _, name := range []string{"br6", "br8"} {
		if err := Sweep(t.Context(), w, "of-"+name, nil); err != nil {
			t.Error(err)
		}
	}
	if s := elements(t, w); strings.Contains(s, "br6") || strings.Contains(s, "br8") {
		t.Errorf("left: %s", s)
	}
	verify(t, w, nets["br7"].in)
}
