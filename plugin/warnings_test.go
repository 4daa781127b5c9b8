package plugin_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// warnings are what a plan of a configuration says of it, and the error.
func warnings(t *testing.T, verb, conf string) (string, error) {
	t.Helper()
	c, err := spec.ParseConf([]byte(`{"cniVersion":"1.1.0","name":"n",` + conf + `}`))
	if err != nil {
		t.Fatal(err)
	}
	all := plugin.All()
	p := all[slices.IndexFunc(all, func(p sdk.Plugin) bool { return p.Name == c.Type })]
	r, err := p.NewRequest(verb, spec.Owner{Network: "n", ContainerID: "c1", IfName: "eth0"}, "/run/netns/c1", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, notes, err := p.Plan(c, r)
	return strings.Join(notes, "\n"), err
}

// What goes without effect is said, and with "strict" what nobody reads is refused.
func TestWarnings(t *testing.T) {
	for _, c := range []struct{ conf, say, strict string }{
		{`"type":"macvlan","master":"ens3","ipam":{"typ":"host-local","subnet":"10.1.0.0/24"}`, `unknown key "ipam.typ", did you mean "type"?`, `ipam.typ: "host-local": unknown key, and "strict" is set; did you mean "type"?`},
		{`"type":"bridge","ipam":{"subnet":"10.1.0.0/24"}`, `ipam: {"subnet":"10.1.0.0/24"}: has no "type", so nobody reads it`, `has no "type", so nobody reads it; and "strict" is set`},
		{`"type":"bridge","ipam":{"type":"","subnet":"10.1.0.0/24"}`, `has no "type", so nobody reads it`, `has no "type"`},
		{`"type":"bridge","ipam":{"type":""}`, "", ""},
		{`"type":"bridge","ipam":{}`, "", ""},
		{`"type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24"},"isGateway":true,"ipMasq":true`, "", ""},
		{`"type":"bridge","isGateway":true`, "isGateway: true: goes without effect", ""},
		{`"type":"bridge","isDefaultGateway":true`, "isDefaultGateway: true: goes without effect", ""},
		{`"type":"bridge","ipMasq":true`, "ipMasq: true: goes without effect", ""},
		{`"type":"loopback","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}`, `unknown key "ipam"`, `unknown key, and "strict" is set`},
		{`"type":"loopback"`, "", ""},
	} {
		said, err := warnings(t, "ADD", c.conf)
		if err != nil || c.say == "" && said != "" || !strings.Contains(said, c.say) {
			t.Errorf("%s: said %q, error %v, want %q", c.conf, said, err, c.say)
		}
		_, err = warnings(t, "STATUS", c.conf+`,"strict":true`)
		if (err == nil) != (c.strict == "") || err != nil && !strings.Contains(err.Error(), c.strict) {
			t.Errorf("%s: strict: %v, want %q", c.conf, err, c.strict)
		}
	}
}

// ADD says it once, on stderr.
func TestWarningsOfAdd(t *testing.T) {
	for conf, say := range map[string]string{
		`"type":"bridge","bridge":"br-warn","removeWhenEmpty":true,"ipMasq":true,"ipam":{"tpye":"host-local","subnet":"10.1.0.0/24"}`: "ipam.tpye",
		`"type":"bridge","bridge":"br-warn","removeWhenEmpty":true,"isGateway":true`:                                                  "isGateway: true: goes without effect",
	} {
		r := newRunner(t, chain{"warn", []string{conf}, nil})
		r.host = nstest.NewNS(t)
		a := &attachment{id: "c1", netns: nstest.NewNS(t)}
		if s := r.addSaying(a); strings.Count(s, say) != 1 {
			t.Errorf("%s: %s, want %q", conf, s, say)
		}
		r.must("check", r.check(a))
		r.must("del", r.del(a))
	}
}

// The kernel gives lo its addresses, so nobody is asked for any, as with the reference.
//
// clause: I1
func TestLoopbackTakesNoAddress(t *testing.T) {
	before := state(t)
	r := newRunner(t, chain{"lo-ipam", []string{`"type":"loopback",` + hostLocal}, nil})
	r.ifName = "lo"
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	if s := r.addSaying(a); !strings.Contains(s, `unknown key \"ipam\"`) {
		t.Errorf("add said %s", s)
	}
	if strings.Contains(string(a.prev), "10.77.") {
		t.Errorf("result: %s", a.prev)
	}
	r.must("check", r.check(a))
	if s := state(t); strings.Contains(s, "10.77.") {
		t.Errorf("add left\n%s", s)
	}
	r.must("status", r.status())
	r.must("del", r.del(a))
	r.must("gc", r.gc())
	same(t, "del", before)
}
