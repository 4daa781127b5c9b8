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
	var lines []string
	for _, n := range notes {
		lines = append(lines, n.Text)
	}
	return strings.Join(lines, "\n"), err
}

// What has no effect is said, and with "strict" what nobody reads is refused.
func TestWarnings(t *testing.T) {
	for _, c := range []struct{ conf, say, strict string }{
		{`"type":"macvlan","master":"ens3","ipam":{"typ":"host-local","subnet":"10.1.0.0/24"}`, `unknown key "ipam.typ", did you mean "type"?`, `ipam.typ: "host-local": unknown key, and "strict" is set; did you mean "type"?`},
		{`"type":"bridge","ipam":{"subnet":"10.1.0.0/24"}`, `ipam: {"subnet":"10.1.0.0/24"}: has no "type", so it is not read`, `has no "type", so it is not read; and "strict" is set`},
		{`"type":"bridge","ipam":{"type":"","subnet":"10.1.0.0/24"}`, `has no "type", so it is not read`,
			`has no "type"`},
		{`"type":"bridge","ipam":{"type":""}`, "", ""},
		{`"type":"bridge","ipam":{}`, "", ""},
		{`"type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24"},"isGateway":true,"ipMasq":true`, "", ""},
		{`"type":"bridge","isGateway":true`, "isGateway: true: has no effect", ""},
		{`"type":"bridge","isDefaultGateway":true`, "isDefaultGateway: true: has no effect", ""},
		{`"type":"bridge","ipMasq":true`, "ipMasq: true: has no effect", ""},
		{`"type":"loopback","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}`, `unknown key "ipam"`,
			`unknown key, and "strict" is set`},
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

// What a chain's last plugin says of those before it, that the kernel cannot tell.
func TestWarningsOfChains(t *testing.T) {
	const (
		veth    = `,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"veth1"},{"name":"eth0","sandbox":"/run/netns/c1"}],"ips":[{"address":"10.1.0.2/24","interface":1}]}`
		macvlan = `,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/c1"}],"ips":[{"address":"10.1.0.2/24","interface":0}]}`
		ports   = `"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80}]}`
	)
	for conf, say := range map[string]string{
		ports + macvlan:              "runtimeConfig.portMappings: eth0 has no host-side interface",
		ports + veth:                 "",
		`"type":"portmap"` + macvlan: "",
		`"type":"firewall","ingressPolicy":"isolated"` + macvlan:    `ingressPolicy: "isolated": the previous plugins list no host-side interface of the container`,
		`"type":"firewall","ingressPolicy":"same-bridge"` + macvlan: `ingressPolicy: "same-bridge": `,
		`"type":"firewall","ingressPolicy":"isolated"` + veth:       "",
		`"type":"firewall"` + macvlan:                               "",
	} {
		if said, err := warnings(t, "ADD", conf); err != nil || say == "" && said != "" || !strings.Contains(said,
			say) {
			t.Errorf("%s: said %q, error %v, want %q", conf, said, err, say)
		}
	}
}

// A network whose every ADD would fail is not ready.
//
// clause: P23
func TestStatusOfHopeless(t *testing.T) {
	host, sh := wire(t)
	sh("ip link add ens5 address 02:00:00:00:00:05 type veth peer name wire5")
	const (
		v6   = `"ipam":{"type":"host-local","subnet":"fd00:5::/64"}`
		both = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.5.0.0/24"}],[{"subnet":"fd00:5::/64"}]]}`
		one  = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.5.0.0/24"},{"subnet":"10.6.0.0/24"}]]}`
	)
	for conf, say := range map[string]string{
		`"type":"bridge","mtu":1000,` + v6:                                              "mtu: 1000: ipam gave an IPv6 address",
		`"type":"bridge","isGateway":true,"mtu":1000,` + both:                           "mtu: 1000: ipam gave an IPv6 address",
		`"type":"ptp","ipv6":"off",` + both:                                             `ipv6: "off": ipam gave an IPv6 address`,
		`"type":"macvlan","master":"ens4","ipv6":"off",` + v6:                           `ipv6: "off": ipam gave an IPv6 address`,
		`"type":"ptp","ipam":{"type":"static","addresses":[{"address":"10.1.2.3/32"}]}`: "ipam: gave 10.1.2.3/32 without a gateway",
		`"type":"bridge","mtu":1000,"isGateway":true,` + one:                            "",
		`"type":"ptp",` + both:                                                          "",
		`"type":"host-device","device":"ens4","hwaddr":"02:00:00:00:00:05"`:             `hwaddr: "02:00:00:00:00:05": is ens5, and device says ens4`,
		`"type":"host-device","device":"ens5","hwaddr":"02:00:00:00:00:05"`:             "",
	} {
		r := newRunner(t, chain{"hopeless", []string{conf}, nil})
		r.host = host
		switch err := r.status(); {
		case say == "":
			r.must(conf, err)
		default:
			wantCode(t, conf, err, spec.CodeUnavailable, say)
		}
	}
}

// ADD says it once, on stderr.
func TestWarningsOfAdd(t *testing.T) {
	for conf, say := range map[string]string{
		`"type":"bridge","bridge":"br-warn","removeWhenEmpty":true,"ipMasq":true,"ipam":{"tpye":"host-local","subnet":"10.1.0.0/24"}`: "ipam.tpye",
		`"type":"bridge","bridge":"br-warn","removeWhenEmpty":true,"isGateway":true`:                                                  "isGateway: true: has no effect",
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

// What a MAC that the bridge does not know of sends is dropped, so ADD is refused.
func TestTuningBesideSpoofCheck(t *testing.T) {
	for keys, refused := range map[string]bool{`"macspoofchk":true,`: true, ``: false,
		`"macspoofchk":true,"runtimeConfig":{"mac":"02:00:00:00:00:77"},`: false} {
		r := newRunner(t, chain{"spoof-warn", []string{`"type":"bridge","bridge":"br-warn","removeWhenEmpty":true,` + keys + hostLocal, `"type":"tuning","mac":"02:00:00:00:00:77"`}, nil})
		r.host = nstest.NewNS(t)
		a := &attachment{id: "c1", netns: nstest.NewNS(t)}
		err := r.add(a)
		if (err != nil) != refused ||
			refused && !strings.Contains(err.Error(), "the bridge would drop all packets of the container") {
			t.Errorf("%s: %v", keys, err)
		}
		r.must("del", r.del(a))
	}
}

// The kernel gives lo its addresses, so nobody is asked for any, as with the reference.
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
	if s := state(t); strings.Contains(s, "networks/life-lo-ipam/10.77.") {
		t.Errorf("add left\n%s", s)
	}
	r.must("status", r.status())
	r.must("del", r.del(a))
	r.must("gc", r.gc())
	same(t, "del", before)
}
