package plugin_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestBandwidthOfTwo limits two interfaces of one container, in one network and in two: each has an ifb of its own,
// and goes without the other.
func TestBandwidthOfTwo(t *testing.T) {
	c := chain{name: "two", plugins: []string{`"type":"bridge","bridge":"br-two","isGateway":true,` + hostLocal, shaping}}
	one, again := newRunner(t, c), newRunner(t, c)
	again.ifName = "eth1"
	c.name = "three"
	c.plugins = []string{strings.NewReplacer("br-two", "br-three", "77", "78").Replace(c.plugins[0]), c.plugins[1]}
	third := newRunner(t, c)
	third.ifName = "eth2"
	ns := nstest.NewNS(t)
	runners, all := []*runner{one, again, third}, make([]*attachment, 3)
	for i, r := range runners {
		all[i] = &attachment{id: "c", netns: ns}
		r.must("add", r.add(all[i]))
	}
	if n := strings.Count(nstest.Run(t, "ip", "-br", "link"), "ifb"); n != 3 {
		t.Errorf("%d ifbs of 3 interfaces", n)
	}
	for i, r := range runners {
		r.must("check", r.check(all[i]))
		r.must("del", r.del(all[i]))
		for j := i + 1; j < 3; j++ {
			runners[j].must("check of another interface", runners[j].check(all[j]))
		}
	}
	if s := nstest.Run(t, "ip", "-br", "link"); strings.Contains(s, "ifb") {
		t.Error(s)
	}
}

// TestBandwidthAgain adds once more with other limits, which replace the first ones, and with none, which takes
// them away.
func TestBandwidthAgain(t *testing.T) {
	r := newRunner(t, chain{name: "again", plugins: []string{`"type":"bridge","bridge":"br-two","isGateway":true,` + hostLocal, `"type":"bandwidth"`}})
	a := &attachment{id: "c", netns: nstest.NewNS(t)}
	r.must("add without a limit", r.add(a))
	r.must("check", r.check(a))
	free, qdiscs := a.prev, func() string { return state(t) + nstest.Run(t, "tc", "qdisc", "show") }
	before := qdiscs()
	for _, limits := range []string{
		`,"ingressRate":100000000,"egressRate":20000000`,
		`,"ingressRate":50000000,"ingressBurst":1000000,"egressRate":10000000,"shapedSubnets":["10.0.0.0/8"]`,
		`,"egressRate":10000000,"egressBurst":800`,
		`,"ingressRate":10000000`,
		`,"runtimeConfig":{"bandwidth":{"IngressRate":10000000,"IngressBurst":4294967295,"EgressRate":0,"EgressBurst":0}}`,
		``,
	} {
		a.prev = free
		out, err := r.run(1, "ADD", a, limits)
		r.must("add with "+limits, err)
		a.prev = out
		_, err = r.run(1, "CHECK", a, limits)
		r.must("check with "+limits, err)
		if strings.Contains(string(out), `"ifb`) != strings.Contains(limits, `"egressRate"`) {
			t.Errorf("with %s the result is %s", limits, out)
		}
	}
	if after := qdiscs(); after != before {
		t.Errorf("without limits there is\n%s\nbefore it was\n%s", after, before)
	}
	r.must("del", r.del(a))
}

// TestBandwidthFails refuses what cannot be, and leaves nothing.
//
// clause: P11 K13
func TestBandwidthFails(t *testing.T) {
	r := newRunner(t, chain{name: "fails", plugins: []string{`"type":"bridge","bridge":"br-two","isGateway":true,` + hostLocal, `"type":"bandwidth"`}})
	a := &attachment{id: "c", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	qdiscs := func() string { return state(t) + nstest.Run(t, "tc", "qdisc", "show") }
	before := qdiscs()
	for limits, say := range map[string]string{
		`,"ingressRate":-5`:                           "ingressRate: -5: want a whole number",
		`,"ingressRate":"5"`:                          `ingressRate: "5": want a whole number`,
		`,"ingressRate":7`:                            "ingressRate: 7: want bits a second, at least 8",
		`,"ingressRate":8000,"egressBurst":8`:         "egressBurst: 8: a burst without a rate",
		`,"ingressRate":8000,"shapedSubnets":["x"]`:   `shapedSubnets[0]: "x": want`,
		`,"runtimeConfig":{"bandwidth":{"rate":"x"}}`: "",
	} {
		_, err := r.run(1, "ADD", a, limits)
		if say == "" {
			r.must("add with an unknown key", err)
			continue
		}
		wantCode(t, limits, err, spec.CodeConfig, say)
	}
	if after := qdiscs(); after != before {
		t.Errorf("refused ADDs left\n%s\nbefore it was\n%s", after, before)
	}
	// The ifb's name is taken: what was done before that is taken back.
	both := `,"ingressRate":100000000,"egressRate":20000000`
	out, err := r.run(1, "ADD", a, both)
	r.must("add", err)
	res, err := spec.DecodeResult(out, spec.V110)
	r.must("decode", err)
	_, err = r.run(1, "DEL", a, both)
	r.must("del", err)
	if after := qdiscs(); after != before {
		t.Errorf("DEL of the limits alone left\n%s\nbefore it was\n%s", after, before)
	}
	nstest.Run(t, "ip", "link", "add", res.Interfaces[3].Name, "type", "bridge")
	before = qdiscs()
	if _, err := r.run(1, "ADD", a, both); err == nil || !strings.Contains(err.Error(), "already exists and was not made for this attachment") {
		t.Error(err)
	}
	if after := qdiscs(); after != before {
		t.Errorf("a failed ADD left\n%s\nbefore it was\n%s", after, before)
	}
	nstest.Run(t, "ip", "link", "del", res.Interfaces[3].Name)
	r.must("del", r.del(a))
}

// TestBandwidthOfReference checks, replaces and removes what the reference plugin has made.
//
// clause: P12 P16
func TestBandwidthOfReference(t *testing.T) {
	const reference = "/usr/lib/cni/bandwidth"
	nstest.NeedProgram(t, reference)
	limits := `,"runtimeConfig":{"bandwidth":{"ingressRate":100000000,"ingressBurst":8000000,"egressRate":20000000,"egressBurst":4294967295}}`
	r := newRunner(t, chain{name: "ref", plugins: []string{`"type":"bridge","bridge":"br-ref","isGateway":true,` + strings.ReplaceAll(hostLocal, "77", "97"), `"type":"bandwidth"` + limits}})
	warm := &attachment{id: "w", netns: nstest.NewNS(t)}
	r.must("add", r.add(warm))
	r.must("del", r.del(warm))
	clean := state(t)
	add := func() *attachment {
		a := &attachment{id: "c", netns: nstest.NewNS(t), network: r.network()}
		var err error
		if a.prev, err = r.run(0, "ADD", a, ""); err != nil {
			t.Fatal(err)
		}
		old := bytes.ReplaceAll(a.prev, []byte(`"1.1.0"`), []byte(`"1.0.0"`))
		cmd := exec.Command(reference)
		cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0","name":"` + r.network() + `","type":"bandwidth"` + limits + `,"prevResult":` + string(old) + `}`)
		cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_NETNS=" + a.netns, "CNI_IFNAME=eth0",
			"CNI_PATH=/usr/lib/cni", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), `"bwp`) {
			t.Fatalf("the reference plugin: %v: %s", err, out)
		}
		var res map[string]any
		if err := json.Unmarshal(out, &res); err != nil {
			t.Fatal(err)
		}
		res["cniVersion"] = "1.1.0"
		a.prev, _ = json.Marshal(res)
		return a
	}
	a := add()
	r.must("check of what the reference made", r.check(a))
	_, err := r.run(1, "DEL", &attachment{id: "c", netns: a.netns}, "")
	r.must("del of what the reference made", err)
	nstest.RunIn(t, a.netns, "busybox", "ping", "-q", "-c", "1", "-W", "3", "10.97.0.1")
	r.must("del", r.del(a))

	a = add()
	nstest.Run(t, "sh", "-c", `tc qdisc change dev $(ip -br link | sed -n 's/^\(bwp[^ ]*\).*/\1/p') root handle 1: tbf rate 30mbit burst 10m limit 10m`)
	if err := r.check(a); err == nil || !strings.Contains(err.Error(), "rate is 30000000bit, want 20000000bit") {
		t.Errorf("check of a changed rate: %v", err)
	}
	r.must("del", r.del(&attachment{id: "c", netns: a.netns}))
	same(t, "DEL of what the reference made", clean)

	a = add()
	_, err = r.run(1, "ADD", a, "")
	r.must("add over what the reference made", err)
	if s := nstest.Run(t, "ip", "-br", "link"); strings.Contains(s, "bwp") || strings.Count(s, "ifb") != 1 {
		t.Errorf("after taking over: %s", s)
	}
	r.must("check", r.check(a))
	r.must("del", r.del(a))
	same(t, "DEL of what was taken over", clean)
}

// TestBandwidthOfPort checks a tap that is a port of a bridge and limited: the ifb in the result is no link that
// could be the port.
//
// clause: P23
func TestBandwidthOfPort(t *testing.T) {
	r := newRunner(t, chain{name: "port", plugins: []string{`"type":"bridge","bridge":"br-port"`, shaping}})
	openTap(t, openSide(t, "", "127.0.0.1"), "porttap")
	ns := nstest.NewNS(t)
	nstest.RunIn(t, ns, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
	a := &attachment{id: "p", netns: ns, prev: []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"porttap"},{"name":"eth0","sandbox":"` + ns + `"}]}`)}
	for i := range r.chain.plugins {
		out, err := r.run(i, "ADD", a, "")
		r.must("add", err)
		a.prev = out
	}
	r.must("check", r.check(a))
	r.must("del", r.del(a))
}

// TestBandwidthBeside limits an interface of the container that has no other end on the host, where the result lists the
// host end of another interface of that container. The other interface is not limited.
func TestBandwidthBeside(t *testing.T) {
	withoutBridges(t)
	r := newRunner(t, chain{name: "beside", plugins: []string{`"type":"bridge","bridge":"br-beside"`, `"type":"bandwidth","ingressRate":100000000,"egressRate":20000000`}})
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	var err error
	a.prev, err = r.run(0, "ADD", a, "")
	r.must("add", err)
	res, err := spec.DecodeResult(a.prev, spec.V110)
	r.must("decode", err)
	nstest.RunIn(t, a.netns, "ip", "link", "add", "net1", "type", "bridge")
	res.Interfaces = append(res.Interfaces, spec.Interface{Name: "net1", Sandbox: a.netns})
	b := &attachment{id: a.id, netns: a.netns}
	b.prev, err = res.Encode(spec.V110)
	r.must("encode", err)
	r.ifName = "net1"
	b.prev, err = r.run(1, "ADD", b, "")
	r.must("add", err)
	if s := nstest.Run(t, "tc", "qdisc", "show"); strings.Contains(s, "tbf") || strings.Contains(s, "ingress") {
		t.Errorf("limited on the host: %s", s)
	}
	if s := nstest.RunIn(t, a.netns, "tc", "qdisc", "show", "dev", "net1"); !strings.Contains(s, "tbf") {
		t.Errorf("not limited: %s", s)
	}
	_, err = r.run(1, "CHECK", b, "")
	r.must("check", err)
	_, err = r.run(1, "DEL", b, "")
	r.must("del", err)
	r.ifName = "eth0"
	r.must("del", r.del(a))
}

// TestBandwidthOfPeer limits the other end of the container's link, whatever links on the host the result lists: with
// another container's, a missing one, several, or none. DEL takes the limits off that end again, without a result and
// where only the owner is known, and the container goes on sending.
//
// clause: P12 P18
func TestBandwidthOfPeer(t *testing.T) {
	withoutBridges(t)
	r := newRunner(t, chain{name: "peer", plugins: []string{`"type":"bridge","bridge":"br-peer","isGateway":true,` + strings.ReplaceAll(hostLocal, "77", "96"), `"type":"bandwidth","ingressRate":100000000,"egressRate":20000000`}})
	other, one := &attachment{id: "other", netns: nstest.NewNS(t)}, &attachment{id: "one", netns: nstest.NewNS(t)}
	for _, a := range []*attachment{other, one} {
		var err error
		a.prev, err = r.run(0, "ADD", a, "")
		r.must("add", err)
	}
	host := func(a *attachment) spec.Interface {
		res, err := spec.DecodeResult(a.prev, spec.V110)
		r.must("decode", err)
		return res.Interfaces[1]
	}
	own, others := host(one), host(other)
	made, before := one.prev, state(t)+nstest.Run(t, "tc", "qdisc", "show")
	for name, listed := range map[string][]spec.Interface{
		"its own":             {own},
		"another container's": {others},
		"both":                {others, own},
		"a missing one":       {{Name: "veth00000000"}},
		"none":                nil,
	} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			for verb, del := range map[string]*attachment{"with a result": {id: "one", netns: one.netns, prev: made},
				"without": {id: "one", netns: one.netns}, "by its owner alone": {id: "one"}} {
				res, err := spec.DecodeResult(made, spec.V110)
				r.must("decode", err)
				res.Interfaces = append(append(res.Interfaces[:1:1], res.Interfaces[2]), listed...)
				for i := range res.IPs {
					own := 1
					res.IPs[i].Interface = &own
				}
				one.prev, err = res.Encode(spec.V110)
				r.must("encode", err)
				one.prev, err = r.run(1, "ADD", one, "")
				r.must("add", err)
				for dev, want := range map[string]bool{own.Name: true, others.Name: false} {
					if got := strings.Contains(nstest.Run(t, "tc", "qdisc", "show", "dev", dev), "tbf"); got != want {
						t.Errorf("%s is limited: %v, want %v", dev, got, want)
					}
				}
				if s := nstest.RunIn(t, one.netns, "tc", "qdisc", "show"); strings.Contains(s, "tbf") {
					t.Errorf("limited inside of the container: %s", s)
				}
				_, err = r.run(1, "CHECK", one, "")
				r.must("check", err)
				_, err = r.run(1, "DEL", del, "")
				r.must("del "+verb, err)
				if after := state(t) + nstest.Run(t, "tc", "qdisc", "show"); after != before {
					t.Errorf("DEL %s left\n%s\nbefore it was\n%s", verb, after, before)
				}
				nstest.RunIn(t, one.netns, "busybox", "ping", "-q", "-c", "1", "-W", "3", "10.96.0.1")
			}
		})
	}
	r.t = t

	// DEL with a result that lists another container's link leaves that one's limits alone.
	_, err := r.run(1, "ADD", other, "")
	r.must("add", err)
	limited := nstest.Run(t, "tc", "qdisc", "show")
	_, err = r.run(1, "DEL", &attachment{id: "one", netns: one.netns, prev: other.prev}, "")
	r.must("del", err)
	if s := nstest.Run(t, "tc", "qdisc", "show"); s != limited {
		t.Errorf("DEL of one left of the other's\n%s\nit was\n%s", s, limited)
	}
	r.must("del", r.del(other))

	// Where the container's link does not lead to the host, the result has to list one that is there, and nobody else's.
	apart := nstest.NewNS(t)
	nstest.RunIn(t, apart, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
	for link, say := range map[string]string{"veth00000000": "veth00000000: does not exist on the host",
		own.Name: own.Name + ": its other end is not in the container's network namespace"} {
		a := &attachment{id: "apart", netns: apart, prev: json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"` + link + `"},{"name":"eth0","sandbox":"` + apart + `"}]}`)}
		_, err := r.run(1, "ADD", a, "")
		wantCode(t, link, err, spec.CodeConfig, say)
	}
	one.prev = made
	r.must("del", r.del(one))
}
