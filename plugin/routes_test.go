package plugin_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// routes are routes that an allocator gives, what ip(8) shows of them afterwards, and commands that spoil them.
var routes = []struct{ asked, shown, spoil, say string }{
	{`{"dst":"192.0.2.0/24","mtu":1300,"advmss":1200,"priority":7}`, "192.0.2.0/24 via 10.85.0.1 dev eth0 metric 7 mtu 1300 advmss 1200",
		"ip route change 192.0.2.0/24 via 10.85.0.1 metric 7 mtu 1301 advmss 1200", "mtu is 1301, want 1300"},
	{`{"dst":"2001:db8:7::/48","mtu":1300,"advmss":1200,"priority":7}`, "2001:db8:7::/48 via fd00:85::1 dev eth0 metric 7 mtu 1300 advmss 1200 pref medium",
		"ip -6 route change 2001:db8:7::/48 via fd00:85::1 metric 7 mtu 1300 advmss 1201", "advmss is 1201, want 1200"},
	{`{"dst":"192.0.3.0/24","priority":9}`, "192.0.3.0/24 via 10.85.0.1 dev eth0 metric 9",
		"ip route del 192.0.3.0/24; ip route add 192.0.3.0/24 via 10.85.0.1 metric 8", "route 192.0.3.0/24 .*: is missing"},
	{`{"dst":"0.0.0.0/0","table":500}`, "default via 10.85.0.1 dev eth0 table 500", "ip route flush table 500", "route default .* table 500: is missing"},
	{`{"dst":"2001:db8:1::/48","table":500}`, "2001:db8:1::/48 via fd00:85::1 dev eth0 table 500 metric 1024 pref medium", "ip -6 route flush table 500", "table 500: is missing"},
	{`{"dst":"198.51.100.0/25","scope":253}`, "198.51.100.0/25 dev eth0 scope link", "ip route change 198.51.100.0/25 dev eth0 scope global", "scope is 0, want 253"},
	{`{"dst":"2001:db8:2::/48","scope":253}`, "2001:db8:2::/48 dev eth0 metric 1024 pref medium", "ip -6 route del 2001:db8:2::/48", "2001:db8:2::/48 .*: is missing"},
	{`{"dst":"198.51.101.0/24","gw":"0.0.0.0"}`, "198.51.101.0/24 dev eth0 scope link", "ip route del 198.51.101.0/24", "198.51.101.0/24 .*: is missing"},
	{`{"dst":"2001:db8:3::/48","gw":"::"}`, "2001:db8:3::/48 dev eth0 metric 1024 pref medium", "ip -6 route del 2001:db8:3::/48", "2001:db8:3::/48 .*: is missing"},
	{`{"dst":"203.0.113.0/24","gw":"203.0.113.1","scope":253}`, "203.0.113.0/24 via 203.0.113.1 dev eth0 onlink",
		"ip route add 203.0.113.1 dev eth0; ip route replace 203.0.113.0/24 via 203.0.113.1", "onlink is false, want true"},
	{`{"dst":"2001:db8:4::/48","gw":"2001:db8:4::1","scope":253}`, "2001:db8:4::/48 via 2001:db8:4::1 dev eth0 metric 1024 onlink pref medium",
		"ip -6 route del 2001:db8:4::/48", "2001:db8:4::/48 .*: is missing"},
	{`{"dst":"203.0.114.0/24","gw":"10.85.0.1"}`, "203.0.114.0/24 via 10.85.0.1 dev eth0", "ip route del 203.0.114.0/24 via 10.85.0.1", "203.0.114.0/24 via 10.85.0.1 .*: is missing"},
	{`{"dst":"203.0.114.0/24","gw":"10.85.0.9"}`, "203.0.114.0/24 via 10.85.0.9 dev eth0", "ip route del 203.0.114.0/24 via 10.85.0.9", "203.0.114.0/24 via 10.85.0.9 .*: is missing"},
	{`{"dst":"2001:db8:5::/48","gw":"fd00:85::1"}`, "nexthop via fd00:85::1 dev eth0 weight 1", "ip -6 route del 2001:db8:5::/48 via fd00:85::1", "2001:db8:5::/48 via fd00:85::1 .*: is missing"},
	{`{"dst":"2001:db8:5::/48","gw":"fd00:85::9"}`, "nexthop via fd00:85::9 dev eth0 weight 1", "ip -6 route del 2001:db8:5::/48 via fd00:85::9", "2001:db8:5::/48 via fd00:85::9 .*: is missing"},
}

// TestRoutes has every plugin that gives addresses apply all that a route can say, tell it in its result, and miss
// each of it.
//
// clause: V6 P14 P17 P25 P26
func TestRoutes(t *testing.T) {
	for name, conf := range map[string]string{
		"bridge":  `"type":"bridge","bridge":"br-rt","isGateway":true,`,
		"ptp":     `"type":"ptp",`,
		"macvlan": `"type":"macvlan","master":"ens3",`,
		"tap":     `"type":"tap",`,
	} {
		t.Run(name, func(t *testing.T) {
			switch name {
			case "macvlan":
				uplink("macvlan")(t)
			case "tap":
				needTap(t)
			}
			r := newRunner(t, chain{name: "routes-" + name})
			var asked []string
			for _, rt := range routes {
				asked = append(asked, rt.asked)
			}
			r.chain.plugins = []string{conf + r.answers(`{"cniVersion":"1.1.0","ips":[{"address":"10.85.0.5/24","gateway":"10.85.0.1"},{"address":"fd00:85::5/64","gateway":"fd00:85::1"}],"routes":[`+strings.Join(asked, ",")+`]}`)}
			add := func() *attachment {
				a := &attachment{id: "c", netns: nstest.NewNS(t)}
				r.must("add", r.add(a))
				return a
			}
			a := add()
			var shown []string
			for _, line := range strings.Split(nstest.RunIn(t, a.netns, "sh", "-c",
				"ip -4 route show table all; ip -6 route show table all"), "\n") {
				line = strings.Join(strings.Fields(strings.ReplaceAll(line, "linkdown", "")), " ")
				if name == "ptp" && strings.Contains(line, "via 10.85.0.9") {
					line = strings.TrimSuffix(line, " onlink") // its cable leads nowhere but to the gateway
				}
				shown = append(shown, line)
			}
			all := "\n" + strings.Join(shown, "\n") + "\n"
			for _, rt := range routes {
				want := rt.shown
				if name == "ptp" && strings.Contains(want, "fd00:85::9") {
					want += " onlink"
				}
				if !strings.Contains(all, "\n"+want+"\n") {
					t.Errorf("%s: no %q", rt.asked, want)
				}
			}
			if t.Failed() {
				t.Log(all)
			}
			var res struct{ Routes []json.RawMessage }
			r.must("decode", json.Unmarshal(a.prev, &res))
			if len(res.Routes) != len(routes) {
				t.Errorf("the result has %d routes: %s", len(res.Routes), a.prev)
			}
			for i, rt := range res.Routes {
				if !sameJSON(t, rt, routes[i].asked) {
					t.Errorf("the result says %s, asked was %s", rt, routes[i].asked)
				}
			}
			if full, err := spec.DecodeResult(a.prev, spec.V110); err != nil {
				t.Error(err)
			} else if old, err := full.Encode(spec.V020); err != nil || strings.Contains(string(old), "advmss") ||
				strings.Contains(string(old), "scope") {
				t.Errorf("what 0.2.0 is told: %s, %v", old, err)
			}
			r.must("check", r.check(a))
			r.must("del", r.del(a))
			if name != "bridge" && name != "ptp" {
				return // where an ADD takes a second or two, since others are asked whether they have the address
			}
			for _, rt := range routes {
				a := add()
				nstest.RunIn(t, a.netns, "sh", "-ec", rt.spoil)
				wantDrift(t, r.check(a), rt.say)
				r.must("del", r.del(a))
			}
		})
	}
}

// wantDrift expects an error that a regular expression matches.
func wantDrift(t *testing.T, err error, say string) {
	t.Helper()
	if err == nil || !regexp.MustCompile(say).MatchString(err.Error()) {
		t.Errorf("check says %v, want %q", err, say)
	}
}

func sameJSON(t *testing.T, a json.RawMessage, b string) bool {
	t.Helper()
	var x, y any
	if err := errors.Join(json.Unmarshal(a, &x), json.Unmarshal([]byte(b), &y)); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}
