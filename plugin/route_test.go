package plugin_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// answerers dials addresses of a form and counts who answers.
func (f *fork) answerers(form string, n int) map[string]int {
	f.Helper()
	count := map[string]int{}
	for i := range n {
		err := f.ns["c"].Do(func() error {
			c, err := (&net.Dialer{Deadline: nstest.Deadline(f)}).Dial("tcp", net.JoinHostPort(fmt.Sprintf(form, i+1), "80"))
			if err != nil {
				return err
			}
			defer c.Close()
			c.SetDeadline(nstest.Deadline(f))
			who, err := io.ReadAll(c)
			count[string(who)]++
			return err
		})
		if err != nil {
			f.Fatal(err)
		}
	}
	return count
}

// TestRouteTraffic: packets take the routes that were added, several next hops share them, and what was replaced comes
// back with DEL.
//
// clause: P11 P12 P18
func TestRouteTraffic(t *testing.T) {
	f := newFork(t)
	f.open("c", nstest.NewNS(t))
	for _, r := range []string{"r2", "r3"} {
		f.sh(r, "for i in $(seq 40); do ip addr add 203.0.113.$i dev lo; ip addr add 2001:db8:113::$i dev lo nodad; done")
	}
	r1, a1 := f.add("1", defaults)
	before := rules(t, a1.netns)
	f.expect("c", "", client[0], "r1")
	r2, a2 := f.add("2", defaults, `"type":"route","routes":[
		{"dst":"198.51.100.7","via":"10.92.0.9"},{"dst":"2001:db8:7::7","via":"fd92::9"},
		{"dst":"203.0.113.0/24","nexthops":[{"via":"10.92.0.1"},{"via":"10.92.0.9"}]},
		{"dst":"2001:db8:113::/48","nexthops":[{"via":"fd92::1"},{"via":"fd92::9","weight":3}]}]`)
	for i := range client {
		f.expect("c", "", client[i], "r3")
	}
	f.sh("c", "busybox ping -q -c 2 -i 0.1 -W 600 198.51.100.7; busybox ping -q -c 2 -i 0.1 -W 600 2001:db8:7::7")
	for _, form := range []string{"203.0.113.%d", "2001:db8:113::%d"} {
		if got := f.answerers(form, 40); got["r2"] == 0 || got["r3"] == 0 || got["r2"]+got["r3"] != 40 {
			t.Errorf("%s: answered by %v, want both", form, got)
		}
	}
	r1.must("check of the first network", r1.check(a1))
	r2.must("del", r2.del(a2))
	if after := rules(t, a1.netns); after != before {
		t.Errorf("before\n%safter\n%s", before, after)
	}

	// The second network takes the default route, and gives it back.
	r2, a2 = f.add("2", defaults, `"type":"route","routes":[{"action":"replace","dst":"default","via":"10.92.0.9"},{"action":"replace","dst":"default","via":"fd92::1"}],
		"neighbours":[{"dst":"10.92.0.9","lladdr":"`+strings.TrimSpace(f.sh("r3", "ip -o link show eth0 | sed 's/.*ether //; s/ .*//'"))+`"}]`)
	f.expect("c", "", client[0], "r3")
	f.expect("c", "", client[1], "r2")
	r2.must("check", r2.check(a2))
	r2.must("del", r2.del(a2))
	if after := rules(t, a1.netns); after != before {
		t.Errorf("before\n%safter\n%s", before, after)
	}
	for i := range client {
		f.expect("c", "", client[i], "r1")
	}

	// A rule stops some packets; a wrong MAC address stops others.
	f.add("2", `{"dst":"198.51.100.0/24"}`, `"type":"route","rules":[{"priority":500,"to":"198.51.100.7","type":"prohibit"}],"neighbours":[{"dst":"10.92.0.9","lladdr":"02:00:00:00:ff:ff"}]`)
	f.expect("c", "", client[0], "")
	f.expect("c", "", "10.92.0.9", "")
	f.expect("c", "", "10.92.0.1", "r2")
}

// TestRouteResult: the result says which routes are in force, and the rest of it goes on as it came.
//
// clause: P18
func TestRouteResult(t *testing.T) {
	withoutBridges(t)
	const bridge = `"type":"bridge","bridge":"br-result","isGateway":true,"ipam":{"type":"host-local","subnet":"10.77.0.0/24","gateway":"10.77.0.1",
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"192.0.2.0/24","gw":"10.77.0.9","mtu":1300},{"dst":"198.51.100.0/24","scope":253},{"dst":"203.0.113.0/24","gw":"10.77.0.8"}]},"dns":{"nameservers":["10.77.0.53"]}`
	const d, two, link, three = `{"dst":"0.0.0.0/0"}`, `{"dst":"192.0.2.0/24","gw":"10.77.0.9","mtu":1300}`, `{"dst":"198.51.100.0/24","scope":253}`, `{"dst":"203.0.113.0/24","gw":"10.77.0.8"}`
	for conf, want := range map[string]string{
		``:                              d + "," + two + "," + link + "," + three,
		`"routes":[{"action":"flush"}]`: ``,
		`"flushroutes":true`:            ``,
		`"flushgateway":true`:           two + "," + link + "," + three,
		`"delroutes":[{"dst":"0.0.0.0/0"},{"dst":"203.0.113.0/24"}],"addroutes":[{"dst":"203.0.113.0/24","gw":"10.77.0.7"}]`: two + "," + link + `,{"dst":"203.0.113.0/24","gw":"10.77.0.7"}`,
		`"delroutes":[{"dst":"203.0.113.0/24","gw":"10.77.0.99"}]`:                                                           d + "," + two + "," + link + "," + three,
		`"routes":[{"dst":"default","via":"10.77.0.1"}]`:                                                                     d + "," + two + "," + link + "," + three,
		`"routes":[{"action":"replace","dst":"default","via":"10.77.0.6","metric":0}]`:                                       two + "," + link + "," + three + `,{"dst":"0.0.0.0/0","gw":"10.77.0.6"}`,
		`"routes":[{"dst":"10.5.0.0/16","nexthops":[{"via":"10.77.0.6"},{"via":"10.77.0.7","weight":2}],"table":7,"metric":3,"mtu":1400,"advmss":1300}]`: d + "," + two + "," + link + "," + three +
			`,{"dst":"10.5.0.0/16","gw":"10.77.0.6","mtu":1400,"advmss":1300,"priority":3,"table":7},{"dst":"10.5.0.0/16","gw":"10.77.0.7","mtu":1400,"advmss":1300,"priority":3,"table":7}`,
		`"routes":[{"dst":"10.5.0.0/16","scope":"link"},{"dst":"10.6.0.0/16","via":"172.31.0.1","onlink":true},{"dst":"10.0.0.0/8","type":"unreachable"}]`: d + "," + two + "," + link + "," + three +
			`,{"dst":"10.5.0.0/16","scope":253},{"dst":"10.6.0.0/16","gw":"172.31.0.1","scope":253}`,
		`"rules":[{"action":"flush"},{"priority":9,"from":"10.77.0.0/24","table":9}],"neighbours":[{"action":"flush"}]`: d + "," + two + "," + link + "," + three,
	} {
		r := newRunner(t, chain{"result", []string{bridge, `"type":"route",` + conf + `"x":0`}, nil})
		if conf != "" {
			r.chain.plugins[1] = `"type":"route",` + conf
		}
		a := &attachment{id: "c", netns: nstest.NewNS(t)}
		before := rules(t, a.netns)
		r.must("add", r.add(a))
		res, err := spec.DecodeResult(a.prev, spec.V110)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Interfaces) != 3 || len(res.IPs) != 1 || res.IPs[0].Gateway.String() != "10.77.0.1" ||
			len(res.DNS.Nameservers) != 1 {
			t.Errorf("%s: the result is %s", conf, a.prev)
		}
		var got struct{ Routes json.RawMessage }
		if err := json.Unmarshal(a.prev, &got); err != nil {
			t.Fatal(err)
		}
		if got.Routes == nil {
			got.Routes = json.RawMessage("[]")
		}
		if !sameJSON(t, got.Routes, "["+want+"]") {
			t.Errorf("%s: routes are\n%s\nwant\n[%s]", conf, got.Routes, want)
		}
		r.must("check of "+conf, r.check(a))
		r.must("del", r.del(a))
		if after := rules(t, a.netns); after != before {
			t.Errorf("%s: DEL left\n%s", conf, after)
		}
	}
}

// A route that the kernel refuses fails the ADD, names its key, and leaves nothing of those before it.
//
// clause: P8 P11
func TestRouteRefused(t *testing.T) {
	withoutBridges(t)
	r := newRunner(t, chain{"refused", []string{debugBridge, `"type":"route","routes":[{"action":"replace","dst":"default","via":"10.77.0.9"},{"dst":"10.5.0.0/16","scope":"link"},{"dst":"10.6.0.0/16","via":"172.31.0.1"}],
		"rules":[{"priority":9,"table":9,"from":"10.77.0.0/24"}]`}, nil})
	a := &attachment{id: "c", netns: nstest.NewNS(t)}
	a.network = r.network()
	out, err := r.run(0, "ADD", a, "")
	r.must("add", err)
	a.prev = out
	before, files := rules(t, a.netns), state(t)
	_, err = r.run(1, "ADD", a, "")
	wantCode(t, "add", err, spec.CodeConfig, "routes[2]: the kernel does not take 10.6.0.0/16 via 172.31.0.1")
	if after := rules(t, a.netns); after != before {
		t.Errorf("before\n%safter\n%s", before, after)
	}
	same(t, "a refused ADD", files)
	if _, err := os.Stat(a.netns); err != nil {
		t.Fatal(err)
	}
	r.must("del", r.del(a))
}

// TestRouteKilled kills ADD at each call that can change something. DEL has then put back all that the container had,
// with its attributes, and a second ADD after the kill finds its way as well.
//
// clause: P11 P12
func TestRouteKilled(t *testing.T) {
	nstest.NeedProgram(t, "strace")
	withoutBridges(t)
	r := newRunner(t, chain{"route-killed", []string{`"type":"bridge","bridge":"br-killed","isGateway":true,` + hostLocal,
		`"type":"route","flushroutes":true,"routes":[{"dst":"default","via":"10.77.0.9"},{"action":"replace","dst":"10.4.0.0/16","via":"10.77.0.8"},{"dst":"203.0.113.0/24","nexthops":[{"via":"10.77.0.1"},{"via":"10.77.0.9"}]}],
		"rules":[{"action":"flush"},{"priority":5,"table":99}],"neighbours":[{"action":"replace","dst":"10.77.0.9","lladdr":"02:00:00:00:00:01"}]`}, nil})
	a := &attachment{id: "c", netns: nstest.NewNS(t), network: r.network()}
	out, err := r.run(0, "ADD", a, "")
	r.must("add", err)
	a.prev = out
	nstest.RunIn(t, a.netns, "sh", "-ec", `ip route add 10.4.0.0/16 mtu lock 1300 nexthop via 10.77.0.3 weight 3 nexthop via 10.77.0.4; ip -6 route add 2001:db8::/32 via fd00:77::3 expires 9999
		ip rule add priority 7 from 10.5.0.0/16 tos 0x10 lookup 9; ip neigh add 10.77.0.9 lladdr 02:00:00:00:00:09 dev eth0 nud permanent; ip -6 route add 2001:db8:1::/48 metric 9 nexthop via fd00:77::3 nexthop via fd00:77::4`)
	show := func() string {
		out := rules(t, a.netns) + nstest.RunIn(t, a.netns, "sh", "-c",
			"ip neigh show nud permanent; find /run/cni/fairlead/memory -name 'changes*'")
		return regexp.MustCompile(` expires \d+sec`).ReplaceAllString(out, "")
	}
	before := show()
	calls := "sendto,sendmsg,write,renameat,renameat2,linkat,unlinkat,mkdirat,flock"
	last := nstest.Sample(t, 8, func(n int) (killed bool) {
		_, err := r.run(1, "ADD", a, "", "strace", "-f", "-qqq", "-o", "/dev/null", "-e",
			"inject="+calls+fmt.Sprintf(":signal=SIGKILL:when=%d", n))
		if n%5 == 0 && err != nil {
			_, again := r.run(1, "ADD", a, "")
			r.must(fmt.Sprintf("add again after a kill at call %d", n), again)
		}
		if err == nil && before == show() {
			t.Fatal("ADD changed nothing")
		}
		_, derr := r.run(1, "DEL", &attachment{id: "c", netns: a.netns}, "")
		r.must(fmt.Sprintf("del after a kill at call %d", n), derr)
		if after := show(); after != before {
			t.Fatalf("a kill at call %d left\n%s\nbefore it was\n%s", n, after, before)
		}
		return err != nil
	})
	if last == 0 {
		t.Error("ADD was not killed")
	}
}

// TestRouteInChains: beside sbr, in either order, and after ptp, whose way to its own subnet is no route of the
// kernel's, CHECK of every plugin is content, and DEL leaves a container without a trace.
//
// clause: P12 P16 P18
func TestRouteInChains(t *testing.T) {
	withoutBridges(t)
	const bridge, ptp, sbr = `"type":"bridge","bridge":"br-chains","isGateway":true,` + hostLocal, `"type":"ptp",` + hostLocal, `"type":"sbr"`
	const flush = `"type":"route","flushroutes":true,"addroutes":[{"dst":"0.0.0.0/0"},{"dst":"203.0.113.0/24","gw":"10.77.0.1"}],"rules":[{"priority":3,"from":"10.77.0.0/24","table":254}]`
	const table = `"type":"route","routes":[{"dst":"default","via":"10.77.0.1","onlink":true,"table":500},{"action":"del","dst":"default","family":"inet6"}],"rules":[{"priority":3,"to":"203.0.113.0/24","table":500}]`
	for name, list := range map[string][]string{
		"sbr after":  {bridge, flush, sbr},
		"sbr before": {bridge, sbr, table},
		"hints":      {bridge, `"type":"sbr","addSourceHints":true`, `"type":"route","routes":[{"action":"del","dst":"fd00:77::/64","metric":255}]`},
		"twice":      {bridge, flush, table},
		"ptp":        {ptp, flush},
		"all":        {ptp, flush, `"type":"tuning","mtu":1400`, sbr, table},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRunner(t, chain{"chains-" + strings.ReplaceAll(name, " ", "-"), list, nil})
			a := &attachment{id: "c", netns: nstest.NewNS(t)}
			before := rules(t, a.netns)
			r.must("add", r.add(a))
			r.must("check", r.check(a))
			nstest.RunIn(t, a.netns, "busybox", "ping", "-q", "-c", "1", "-W", "3", "-I", a.text("IP4"), "10.77.0.1")
			r.must("del", r.del(a))
			if after := rules(t, a.netns); after != before {
				t.Errorf("left\n%s", after)
			}
		})
	}
}

// TestRouteInVRF: of an interface in a VRF it is the VRF's table that is changed, and one that comes into a VRF later
// is found there.
//
// clause: P16 P18
func TestRouteInVRF(t *testing.T) {
	nstest.Need(t, "vrf", "table", "7")
	withoutBridges(t)
	const bridge, vrf = `"type":"bridge","bridge":"br-vrfs","isGateway":true,` + hostLocal, `"type":"vrf","vrfname":"blue"`
	const change = `"type":"route","routes":[{"action":"flush"},{"dst":"default","via":"10.77.0.1"},{"dst":"2001:db8::/32","via":"fd00:77::1"}]`
	for name, list := range map[string][]string{"after": {bridge, vrf, change}, "before": {bridge, change, vrf}} {
		t.Run(name, func(t *testing.T) {
			r := newRunner(t, chain{"vrfs-" + name, list, nil})
			a := &attachment{id: "c", netns: nstest.NewNS(t)}
			before := rules(t, a.netns)
			r.must("add", r.add(a))
			r.must("check", r.check(a))
			nstest.RunIn(t, a.netns, "sh", "-ec",
				"ip route show vrf blue | grep 'default via 10.77.0.1'; ip -6 route show vrf blue | grep '2001:db8::/32 via fd00:77::1'; ! ip -6 route show vrf blue default | grep via")
			r.must("del", r.del(a))
			if after := rules(t, a.netns); strings.ReplaceAll(after, "1000:\tfrom all lookup [l3mdev-table]\n", "") != before {
				t.Errorf("left\n%s", after)
			}
		})
	}
}
