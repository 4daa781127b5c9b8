package plugin_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestMTUOfResult: interfaces[].mtu is in results of 1.1.0 only, and of what a chained plugin was not asked to change
// the result says what prevResult said. CHECK of a plugin that makes the interface goes by the MTU that tuning gave it,
// also where the result cannot say it.
//
// clause: V6 V7 P16 P17 P18
func TestMTUOfResult(t *testing.T) {
	sysctls, mtu := `"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}`, `"type":"tuning","mtu":1300`
	limits := `"type":"bandwidth","ingressRate":100000000,"egressRate":100000000`
	for name, first := range map[string]string{
		"bridge":  `"type":"bridge","bridge":"br-mtu","mtu":1400,` + hostLocal,
		"macvlan": `"type":"macvlan","master":"mtu0","mtu":1400`,
		"tap":     `"type":"tap","mtu":1400`,
		"dummy":   `"type":"dummy","mtu":1400,"ipam":{"type":"static","addresses":[{"address":"10.78.0.2/24"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			switch name {
			case "macvlan":
				nstest.Run(t, "ip", "link", "add", "mtu0", "type", "veth", "peer", "name", "mtu1")
				nstest.Run(t, "ip", "link", "set", "mtu0", "up")
				nstest.Run(t, "ip", "link", "set", "mtu1", "up")
				nstest.Need(t, name)
			case "dummy":
				nstest.Need(t, name)
			}
			for _, v := range []spec.Version{spec.V040, spec.V100, spec.V110} {
				r := newRunner(t, chain{name: "mtu-" + name, plugins: []string{first, sysctls, mtu, limits}})
				for i := range r.chain.plugins {
					r.chain.plugins[i] += `,"cniVersion":"` + string(v) + `"`
				}
				a := &attachment{id: "m", netns: nstest.NewNS(t)}
				for i := range r.chain.plugins {
					before := a.prev
					out, err := r.run(i, "ADD", a, "")
					r.must("add", err)
					a.prev = out
					if !v.AtLeast(spec.V110) && strings.Contains(string(out), `"mtu"`) {
						t.Errorf("%s: plugin %d answers %s", v, i, out)
					}
					if i == 1 && !reflect.DeepEqual(decoded(t, before), decoded(t, out)) {
						t.Errorf("%s: tuning with sysctls alone makes of %s\n%s", v, before, out)
					}
					if got := interfaceOf(t, out, "eth0").MTU; v == spec.V110 && got != map[bool]int{true: 1400, false: 1300}[i < 2] {
						t.Errorf("plugin %d answers an MTU of %d: %s", i, got, out)
					}
				}
				r.must("check in "+string(v), r.check(a))
				nstest.RunIn(t, a.netns, "ip", "link", "set", "eth0", "mtu", "1320")
				if err := r.check(a); err == nil || !strings.Contains(err.Error(), "mtu is 1320, want 1") {
					t.Errorf("%s: check with another MTU: %v", v, err)
				}
				r.must("del", r.del(a))
			}
		})
	}
}

// TestResultOfOthers: what a plugin before said of an interface stays as it was said, whatever the kernel shows.
//
// clause: P18
func TestResultOfOthers(t *testing.T) {
	ns := nstest.NewNS(t)
	nstest.RunIn(t, ns, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
	nstest.RunIn(t, ns, "ip", "addr", "add", "10.79.0.2/24", "dev", "eth0")
	nstest.RunIn(t, ns, "ip", "link", "set", "eth0", "up")
	prev := `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:AA","sandbox":"` + ns + `"}],
		"ips":[{"address":"10.79.0.2/24","interface":0}],"vendor":1}`
	for _, plugin := range []string{`"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"},"txQLen":7`, `"type":"tuning"`,
		`"type":"bandwidth","ingressRate":100000000`, `"type":"firewall"`, `"type":"sbr"`, `"type":"portmap"`} {
		r := newRunner(t, chain{name: "others", plugins: []string{plugin}})
		a := &attachment{id: "o", netns: ns, prev: json.RawMessage(prev)}
		out, err := r.run(0, "ADD", a, "")
		r.must(plugin, err)
		if !reflect.DeepEqual(decoded(t, a.prev), decoded(t, out)) {
			t.Errorf("%s answers %s", plugin, out)
		}
		r.must("del", r.del(a))
	}
}

func decoded(t *testing.T, b []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}
