package plugin_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestHostInterfaceName gives containers of one network names of their own on the host, refuses one that is taken
// before anything is made, and removes them all without being told the names.
//
// clause: P11 P12 P18 K13 C12
func TestHostInterfaceName(t *testing.T) {
	for _, kind := range []string{`"type":"bridge","bridge":"br-name","isGateway":true`, `"type":"ptp","ipMasq":true`} {
		t.Run(kind, func(t *testing.T) {
			withoutBridges(t)
			r := newRunner(t, chain{name: "name", plugins: []string{kind + `,` + hostLocal4}})
			nstest.Run(t, "ip", "link", "add", "uplink", "type", "bridge")
			clean := state(t)
			named := func(name string) string { return `,"args":{"cni":{"hostInterfaceName":"` + name + `"}}` }
			fresh := func(id string) *attachment {
				return &attachment{id: id, netns: nstest.NewNS(t), network: r.network()}
			}
			add := func(a *attachment, name string) error {
				out, err := r.run(0, "ADD", a, named(name))
				a.prev = out
				return err
			}
			_, err := r.run(0, "STATUS", &attachment{}, named("uplink"))
			wantCode(t, "status", err, spec.CodeUnavailable, `args.cni.hostInterfaceName: "uplink": a bridge of the host's`)
			wantCode(t, "a name of the host's", add(fresh("b0"), "uplink"), spec.CodeConfig, `"uplink": a bridge of the host's`)
			same(t, "what was refused", clean)

			a, b := fresh("c1"), fresh("c2")
			r.must("add", add(a, "web"))
			if _, err := r.run(0, "CHECK", a, named("web")); err != nil {
				t.Error(err)
			}
			if f := interfaceOf(t, a.prev, "web"); f.Sandbox != "" || f.MAC == "" {
				t.Errorf("the result: %+v", f)
			}
			if out := nstest.Run(t, "ip", "link", "show", "web"); !strings.Contains(out, r.network()+":c1:eth0") ||
				!strings.Contains(out, r.network()+"/c1/eth0") {
				t.Errorf("whose it is is not to be seen: %s", out)
			}
			with := state(t)
			wantCode(t, "a name that is taken", add(b, "web"), spec.CodeConfig, `"web": `+r.network()+`/c1/eth0 has it`)
			r.must("del of who was refused", r.del(&attachment{id: "c2", netns: b.netns}))
			same(t, "what was refused", with)
			if _, err := r.run(0, "STATUS", &attachment{}, named("web")); err != nil {
				t.Errorf("status while a container has the name: %v", err)
			}
			r.must("add", add(b, "db"))
			nstest.RunIn(t, a.netns, "ping", "-c1", "-W600", b.text("IP4"))

			r.must("del without name and result", r.del(&attachment{id: "c1", netns: a.netns}))
			if out := nstest.Run(t, "ip", "-br", "link"); strings.Contains(out, "web@") || !strings.Contains(out, "db@") {
				t.Errorf("after DEL: %s", out)
			}
			r.must("gc", r.gc("c2"))
			if _, err := r.run(0, "CHECK", b, named("db")); err != nil {
				t.Errorf("what gc had to keep: %v", err)
			}
			r.must("gc", r.gc())
			nstest.Run(t, "ip", "link", "del", "uplink")
			if out := nstest.Run(t, "ip", "-br", "link"); strings.Contains(out, "db@") {
				t.Errorf("after GC: %s", out)
			}
		})
	}
}

// TestHostInterfaceNameRace: of many who want one name at once one gets it, and the others are told who.
//
// clause: P20
func TestHostInterfaceNameRace(t *testing.T) {
	r := newRunner(t, chain{name: "name", plugins: []string{`"type":"ptp","hostInterfaceName":"web",` + hostLocal4}})
	for range 4 {
		var all [6]attachment
		var errs [6]error
		var wg sync.WaitGroup
		for i := range all {
			all[i] = attachment{id: fmt.Sprint("r", i), netns: nstest.NewNS(t)}
			wg.Go(func() { errs[i] = r.add(&all[i]) })
		}
		wg.Wait()
		winner := slices.Index(errs[:], nil)
		if winner < 0 {
			t.Fatal("nobody got it:", errs)
		}
		for i := range all {
			if i != winner {
				wantCode(t, all[i].id, errs[i], spec.CodeConfig, `hostInterfaceName: "web": `+r.network()+"/"+all[winner].id+"/eth0 has it; a name is for one link at a time")
				r.must("del of who did not get it", r.del(&all[i]))
			}
		}
		r.must("check", r.check(&all[winner]))
		r.must("del", r.del(&all[winner]))
	}
}

// TestHostInterfaceNameChained limits, filters and publishes by a link that has a name of its own.
//
// clause: P18 P23
func TestHostInterfaceNameChained(t *testing.T) {
	s := newSite(t)
	r := s.network("a", published, `"type":"firewall","ingressPolicy":"same-bridge"`, `"type":"bandwidth","ingressRate":100000000,"egressRate":100000000`)
	r.chain.plugins[0] += `,"macspoofchk":true,"ipMasq":true,"hostInterfaceName":"web"`
	s.add("a1")
	r.must("check", r.check(s.containers["a1"]))
	if out := s.sh("host", "tc qdisc show dev web"); !strings.Contains(out, "tbf") {
		t.Errorf("no limit on web: %s", out)
	}
	s.expect("from outside, published", "outside", "192.0.2.1:8080", "a1")
	s.expect("to the outside", "a1", "192.0.2.2:80", "outside")
	s.expect("from the host", "host", s.addr["a1"][0]+":80", "a1")
}
