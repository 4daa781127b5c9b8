package plugin_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// static are addresses of both families that the configuration names.
const static = `"ipam":{"type":"static","addresses":[{"address":"10.77.0.9/24","gateway":"10.77.0.1"},{"address":"fd00:77::9/64","gateway":"fd00:77::1"},{"address":"10.77.0.10/24"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`

// TestStaticOnALAN gives a container addresses of a network that others are on: they work, CHECK misses each of them,
// and who is given one that another container has is told so.
//
// clause: P14 P15 P17 I5 K5
func TestStaticOnALAN(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		addrs      []string // with the router's
	}{
		{"IPv4", `{"address":"10.77.0.9/24"}`, []string{"10.77.0.9/24 10.77.0.1"}},
		{"IPv6", `{"address":"fd00:77::9/64"}`, []string{"fd00:77::9/64 fd00:77::1"}},
		{"both", `{"address":"10.77.0.9/24","gateway":"10.77.0.1"},{"address":"fd00:77::9/64","gateway":"fd00:77::1"}`,
			[]string{"10.77.0.9/24 10.77.0.1", "fd00:77::9/64 fd00:77::1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			uplink("macvlan")(t)
			r := newRunner(t, chain{name: "static-lan", plugins: []string{`"type":"macvlan","master":"ens3","ipam":{"type":"static","addresses":[` + c.conf + `]}`}})
			a := &attachment{id: "a", netns: nstest.NewNS(t)}
			r.must("add", r.add(a))
			r.must("check", r.check(a))
			for _, addr := range c.addrs {
				ip, router, _ := strings.Cut(addr, " ")
				nstest.RunIn(t, a.netns, "busybox", "ping", "-c1", "-W600", router)
				nstest.RunIn(t, a.netns, "ip", "addr", "del", ip, "dev", "eth0")
				if err := r.check(a); err == nil || !strings.Contains(err.Error(), "addr cont/eth0 "+ip+": is missing") {
					t.Errorf("CHECK without %s: %v", ip, err)
				}
				nstest.RunIn(t, a.netns, "ip", "addr", "add", ip, "dev", "eth0")
			}
			r.must("del", r.del(a))
			r.must("add again", r.add(a))
			if c.name != "IPv4" {
				b := &attachment{id: "b", netns: nstest.NewNS(t)}
				if err := r.add(b); err == nil || !strings.Contains(err.Error(), "on the link has it") {
					t.Errorf("an address that another has: %v", err)
				}
				r.must("del of what was refused", r.del(b))
			}
			r.must("check of who has it", r.check(a))
			r.must("del again", r.del(a))
		})
	}
}

// TestStaticUnderOthers has the runtime name the addresses, in each of its ways.
//
// clause: K5 K11 K12
func TestStaticUnderOthers(t *testing.T) {
	for name, conf := range map[string]string{
		"runtimeConfig": `"runtimeConfig":{"ips":["10.77.0.9","fd00:77::9/64"]}`,
		"args":          `"args":{"cni":{"ips":["10.77.0.9/24","fd00:77::9"]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			withoutBridges(t)
			const subnets = `"ipam":{"type":"static","addresses":[{"address":"10.77.0.2/24","gateway":"10.77.0.1"},{"address":"fd00:77::2/64","gateway":"fd00:77::1"}]}`
			r := newRunner(t, chain{name: "static-told", plugins: []string{`"type":"bridge","isGateway":true,` + subnets + `,` + conf}})
			a := &attachment{id: "a", netns: nstest.NewNS(t)}
			r.must("add", r.add(a))
			if got := nstest.RunIn(t, a.netns, "ip", "-br", "addr", "show", "dev", "eth0"); !strings.Contains(got,
				"10.77.0.9/24") || !strings.Contains(got, "fd00:77::9/64") || strings.Contains(got, "::2/") {
				t.Errorf("got %s", got)
			}
			r.must("check", r.check(a))
			r.must("del", r.del(a))
		})
	}
}
