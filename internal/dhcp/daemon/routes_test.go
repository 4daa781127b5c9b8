package daemon_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// The routes of the configuration are in the container beside the server's, by the lease's router where they name none;
// one to where the server has one too takes its place. CHECK misses each.
// clause: I1 P14 P26
func TestConfiguredRoutes(t *testing.T) {
	l := newLAN6(t)
	l.dnsmasq(t, range4, range6, "--enable-ra", "--dhcp-option=option:router,10.9.0.1", "--dhcp-option-force=26,1400",
		"--dhcp-option=121,0.0.0.0/0,10.9.0.1,10.7.0.0/16,10.9.0.2")
	startDaemon(t)
	a := newAttachment(t, "c1", over("bridge", `"ipv6":"dhcpv6","routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"10.3.0.0/16"},{"dst":"10.7.0.0/16","gw":"10.9.0.3"},
		{"dst":"10.4.1.2/16","mtu":1300,"advmss":1200,"priority":7,"table":500},{"dst":"10.5.0.0/16","gw":"0.0.0.0"},{"dst":"10.6.0.0/16","scope":253},{"dst":"2001:db8:1::/48"},{"dst":"2001:db8:2::/48","gw":"::"}]`))
	a.must(t, "ADD")
	six := a.addresses(true)
	if len(six) != 1 || len(a.result.Routes) != 9 {
		t.Fatalf("result %s", a.raw)
	}
	all := func(family string) string { return a.show(t, family, "route", "show", "table", "all", "dev", "eth0") }
	has := func(out string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(out, w) {
				t.Errorf("no %s in\n%s", w, out)
			}
		}
	}
	out := all("-4")
	has(out, "default via 10.9.0.1 mtu 1400", "10.3.0.0/16 via 10.9.0.1 mtu 1400", "10.7.0.0/16 via 10.9.0.3 mtu 1400",
		"10.4.0.0/16 via 10.9.0.1 table 500 metric 7 mtu 1300 advmss 1200",
		"10.5.0.0/16 scope link", "10.6.0.0/16 scope link")
	if strings.Count(out, "default") != 1 || strings.Contains(out, "10.9.0.2 ") {
		t.Errorf("a route is there twice:\n%s", out)
	}
	out = all("-6")
	has(out, "default via "+six[0].Gateway.String(), "2001:db8:1::/48 via "+six[0].Gateway.String(),
		"2001:db8:2::/48 metric 1024")
	if strings.Count(out, "default") != 1 {
		t.Errorf("a default route is there twice:\n%s", out)
	}
	a.must(t, "CHECK")
	for _, r := range []string{"-4 10.3.0.0/16", "-4 10.4.0.0/16 table 500", "-6 2001:db8:1::/48"} {
		words := strings.Fields(r)
		a.show(t, append([]string{words[0], "route", "del"}, words[1:]...)...)
		if err := a.call(t, "CHECK"); err == nil || !strings.Contains(err.Error(), words[1]) {
			t.Errorf("without %s CHECK says %v", r, err)
		}
	}
	a.must(t, "DEL")
}

// A default route in the configuration with a gateway of its own is the container's, as is one with a metric of its
// own, beside which the server's stays. What can never be is an error, and of a family without an address no route is
// made.
// clause: P8
func TestConfiguredDefault(t *testing.T) {
	l := newLAN(t)
	l.dnsmasq(t, "--dhcp-option=option:router,10.9.0.254")
	startDaemon(t)
	for i, tc := range []struct{ ipam, routes string }{
		{`"routes":[{"dst":"0.0.0.0/0","gw":"10.9.0.7"},{"dst":"::/0"}]`, "default via 10.9.0.7 dev eth0"},
		{`"priority":5,"routes":[{"dst":"0.0.0.0/0","gw":"10.9.0.7","priority":9},{"dst":"10.3.0.0/16"}]`,
			"default via 10.9.0.254 dev eth0 metric 5, default via 10.9.0.7 dev eth0 metric 9, 10.3.0.0/16 via 10.9.0.254 dev eth0 metric 5"},
		{`"priority":5,"routes":[{"dst":"0.0.0.0/0","gw":"10.9.0.7","priority":5}]`, "default via 10.9.0.7 dev eth0 metric 5"},
	} {
		a := newAttachment(t, string(rune('a'+i)), over("bridge", tc.ipam))
		a.must(t, "ADD")
		a.must(t, "CHECK")
		var got []string
		for line := range strings.Lines(nstest.RunIn(t, a.netns, "ip", "-4", "route")) {
			if line = strings.TrimSpace(line); !strings.Contains(line, "proto kernel") {
				got = append(got, line)
			}
		}
		if strings.Join(got, ", ") != tc.routes {
			t.Errorf("%s: the routes are %q, want %q", tc.ipam, got, tc.routes)
		}
		if out := a.show(t, "-6", "route"); strings.Contains(out, "default") {
			t.Errorf("without an address of IPv6 there is %s", out)
		}
		a.must(t, "DEL")
	}
	a := newAttachment(t, "bad", over("bridge", `"routes":[{"dst":"10.3.0.0/16"},{"dst":"10.4.0.0/16","gw":"fd00::1"}]`))
	if err := a.call(t, "ADD"); code(err) != spec.CodeConfig ||
		!strings.Contains(err.Error(), "ipam.routes[1].gw: fd00::1 is not of the family of 10.4.0.0/16") {
		t.Errorf("ADD says %v", err)
	}
}
