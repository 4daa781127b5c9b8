package plugin_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestTap plugs a tap of a previous plugin, as a hypervisor has, into the bridge; DEL takes it off and
// leaves it. A container's interface that another plugin made gets the addresses.
//
// clause: P18 P23
func TestTap(t *testing.T) {
	// Most distributions let everybody open it; where it is root's alone, an ordinary user has no tap.
	tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	tun.Close()
	needTap(t)
	r := newRunner(t, chain{name: "tap", plugins: []string{`"type":"bridge","bridge":"br-tap"`}})
	ns := nstest.NewNS(t)
	nstest.Run(t, "ip", "tuntap", "add", "tap0", "mode", "tap")
	nstest.Run(t, "ip", "link", "set", "tap0", "up")
	nstest.RunIn(t, ns, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
	nstest.RunIn(t, ns, "ip", "link", "set", "eth0", "up")
	nstest.RunIn(t, ns, "ip", "link", "set", "other", "up")
	prev := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"tap0","mac":"02:00:00:00:00:01"},{"name":"eth0","sandbox":%q}],"vendor":1}`, ns)
	a := &attachment{id: "t", netns: ns, prev: []byte(prev)}
	out, err := r.run(0, "ADD", a, "")
	r.must("add", err)
	for _, want := range []string{`"br-tap"`, `"tap0"`, `"vendor"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the result lacks %s: %s", want, out)
		}
	}
	if strings.Contains(string(out), `"veth`) || strings.Contains(nstest.Run(t, "ip", "-br", "link"), "veth") {
		t.Errorf("a pair was made beside the tap: %s", out)
	}
	if s := nstest.Run(t, "ip", "-br", "link", "show", "master", "br-tap"); !strings.Contains(s, "tap0") {
		t.Errorf("tap0 is no port: %s", s)
	}
	a.prev = out
	r.must("check", r.check(a))
	nstest.Run(t, "ip", "link", "set", "tap0", "nomaster")
	if err := r.check(a); err == nil || !strings.Contains(err.Error(), "tap0") {
		t.Errorf("check of a tap that is no port any more: %v", err)
	}
	nstest.Run(t, "ip", "link", "set", "tap0", "master", "br-tap")
	r.must("del without a result", r.del(&attachment{id: "t", netns: ns}))
	if s := nstest.Run(t, "ip", "-br", "link", "show", "tap0"); s == "" ||
		strings.Contains(nstest.Run(t, "ip", "-br", "link", "show", "master", "br-tap"), "tap0") {
		t.Errorf("after DEL tap0 is %q", s)
	}
	r.must("del again", r.del(a))
}

// TestIPv6Off closes IPv6 in the container before its link is up (advisory CVE-2024-32473).
func TestIPv6Off(t *testing.T) {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		t.Skip("this kernel has no IPv6: ", err)
	}
	r := newRunner(t, chain{name: "no6", plugins: []string{`"type":"bridge","bridge":"br-no6","ipv6":"off","ipam":{"type":"host-local","subnet":"10.66.0.0/24"}`}})
	a := &attachment{id: "n", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	if s := nstest.RunIn(t, a.netns, "ip", "-6", "addr", "show", "dev", "eth0"); s != "" {
		t.Errorf("IPv6 addresses with ipv6 off: %s", s)
	}
	r.must("check", r.check(a))
	nstest.RunIn(t, a.netns, "sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6")
	if err := r.check(a); err == nil || !strings.Contains(err.Error(), "ipv6") {
		t.Errorf("check with IPv6 opened again: %v", err)
	}
	r.must("del", r.del(a))
}

// TestResult is what a runtime reads out of ADD, and that the kernel agrees.
//
// clause: P24 P25 P26 I5 K5 K6
func TestResult(t *testing.T) {
	r := newRunner(t, chain{name: "result", plugins: []string{`"type":"bridge","bridge":"br-res","isGateway":true,"mtu":1400,
		"runtimeConfig":{"mac":"02:00:5E:00:00:07","ips":["10.67.0.9"]},
		"ipam":{"type":"host-local","subnet":"10.67.0.0/24","routes":[{"dst":"0.0.0.0/0"},{"dst":"192.0.2.0/24","gw":"10.67.0.77","priority":7}]}`}})
	a := &attachment{id: "r", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	res, err := spec.DecodeResult(a.prev, spec.V110)
	r.must("decode", err)
	if n := len(res.Interfaces); n != 3 {
		t.Fatalf("%d interfaces: %s", n, a.prev)
	}
	br, host, cont := res.Interfaces[0], res.Interfaces[1], res.Interfaces[2]
	if br.Name != "br-res" || br.Sandbox != "" || !strings.HasPrefix(host.Name, "veth") || host.Sandbox != "" ||
		cont.Name != "eth0" || cont.Sandbox != a.netns {
		t.Errorf("interfaces %+v", res.Interfaces)
	}
	if cont.MAC != "02:00:5e:00:00:07" || cont.MTU != 1400 || host.MTU != 1400 {
		t.Errorf("asked for MAC 02:00:5e:00:00:07 and MTU 1400: %+v", res.Interfaces)
	}
	if len(res.IPs) != 1 || res.IPs[0].Address.String() != "10.67.0.9/24" || res.IPs[0].Interface == nil ||
		*res.IPs[0].Interface != 2 {
		t.Errorf("addresses %+v", res.IPs)
	}
	if s := nstest.RunIn(t, a.netns, "ip", "-br", "link", "show", "eth0"); !strings.Contains(s, cont.MAC) {
		t.Errorf("the kernel shows %s", s)
	}
	routes := nstest.RunIn(t, a.netns, "ip", "-4", "route")
	for _, want := range []string{"default via 10.67.0.1 dev eth0", "192.0.2.0/24 via 10.67.0.77 dev eth0 metric 7"} {
		if !strings.Contains(routes, want) {
			t.Errorf("no route %q among\n%s", want, routes)
		}
	}
	r.must("check", r.check(a))

	// A second network's default route is skipped and not in its result.
	second := newRunner(t, chain{name: "second", plugins: []string{`"type":"bridge","bridge":"br-second","isDefaultGateway":true,"ipam":{"type":"host-local","subnet":"10.68.0.0/24"}`}})
	second.ifName = "eth1"
	b := &attachment{id: "r", netns: a.netns}
	r.must("add to a second network", second.add(b))
	if strings.Contains(string(b.prev), "0.0.0.0/0") ||
		strings.Count(nstest.RunIn(t, a.netns, "ip", "-4", "route"), "default") != 1 {
		t.Errorf("the second network's default route: %s\n%s", b.prev, nstest.RunIn(t, a.netns, "ip", "-4", "route"))
	}
	r.must("check of the second network", second.check(b))
	r.must("del from the second network", second.del(b))
	r.must("check of the first one", r.check(a))
	r.must("del", r.del(a))
}
