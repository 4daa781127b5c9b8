package plugin_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// A host that had its router's address would be cut off. It gets it from nobody: neither STATUS nor ADD has any doubt,
// and ADD has changed nothing.
//
// clause: P8 P11 P23
func TestGatewayIsRouter(t *testing.T) {
	for _, c := range []struct{ name, conf, gw, dst string }{
		{"ptp", `"type":"ptp","ipam":{"type":"host-local","subnet":"192.0.2.0/24"}`, "192.0.2.1", "default via 192.0.2.1 dev host/ens3"},
		{"ptp6", `"type":"ptp","ipam":{"type":"host-local","subnet":"2001:db8::/64"}`, "2001:db8::1", "-6 default via 2001:db8::1 dev host/ens3"},
		{"ptp-static", `"type":"ptp","ipam":{"type":"static","addresses":[{"address":"192.0.2.7/24"}]}`, "192.0.2.1", "default via 192.0.2.1"},
		{"bridge", `"type":"bridge","bridge":"brlan","isGateway":true,"ipam":{"type":"host-local","subnet":"192.0.2.0/24"}`, "192.0.2.1", "default via 192.0.2.1"},
		{"bridge6", `"type":"bridge","bridge":"brlan","isDefaultGateway":true,"ipam":{"type":"host-local","subnet":"2001:db8::/64"}`, "2001:db8::1", "-6 default via 2001:db8::1"},
		{"bridge-force", `"type":"bridge","bridge":"brlan","isGateway":true,"forceAddress":true,"ipam":{"type":"host-local","subnet":"192.0.2.0/24"}`, "192.0.2.1", "default via 192.0.2.1"},
		{"ptp-other", `"type":"ptp","ipam":{"type":"host-local","subnet":"192.0.2.0/24","gateway":"192.0.2.3"}`, "192.0.2.3", "route 198.51.100.0/24 via 192.0.2.3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRunner(t, chain{"router-" + c.name, []string{c.conf}, nil})
			r.host = nstest.NewNS(t)
			sh := func(script string) string { return nstest.RunIn(t, r.host, "sh", "-ec", script) }
			sh(`ip link set lo up; ip link add ens3 up type veth peer name wire; ip link set wire up
				ip addr add 192.0.2.10/24 dev ens3; ip addr add 2001:db8::10/64 dev ens3 nodad
				ip route add default via 192.0.2.1; ip -6 route add default via 2001:db8::1; ip route add 198.51.100.0/24 via 192.0.2.3`)
			seen := `ip -br link | sed 's/@.*//; s/ .*//'; ip -o addr | grep -v fe80 | awk '{ print $2, $4 }'; ip route | sed 's/ linkdown//'; ip -6 route | grep -v fe80 | sed 's/ linkdown//'; cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding`
			before := sh(seen)
			say := "ipam: gateway " + c.gw + ": is the next hop of a route of this host (route"
			err := r.status()
			wantCode(t, "status", err, spec.CodeUnavailable, say)
			a := &attachment{id: "c1", netns: nstest.NewNS(t)}
			err = r.add(a)
			wantCode(t, "add", err, spec.CodeConfig, say)
			if !strings.Contains(err.Error(), c.dst) {
				t.Errorf("add: %v, want %q", err, c.dst)
			}
			if after := sh(seen); after != before {
				t.Errorf("it became\n%s\nfrom\n%s", after, before)
			}
			r.must("del", r.del(a))
		})
	}
}

// What goes by a router with the same link-local address, or by an address that the host has already, as after the
// reference's plugins made the bridge, is nobody's loss.
//
// clause: P13 P23
func TestGatewayIsOurs(t *testing.T) {
	for name, c := range map[string]struct{ conf, setup string }{
		"link-local": {`"type":"ptp","ipam":{"type":"static","addresses":[{"address":"fd00:9::7/64","gateway":"fe80::1"}]}`, "ip -6 route add default via fe80::1 dev ens3"},
		"taken over": {`"type":"bridge","bridge":"br6","isGateway":true,"ipam":{"type":"host-local","subnet":"10.88.0.0/24"}`,
			"ip link add br6 up type bridge; ip addr add 10.88.0.1/24 dev br6; ip route add 10.99.0.0/24 via 10.88.0.1 dev ens3 onlink 2>/dev/null || true"},
		"not a gateway": {`"type":"bridge","bridge":"br6","ipam":{"type":"host-local","subnet":"192.0.2.0/24"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRunner(t, chain{"ours-" + strings.ReplaceAll(name, " ", "-"), []string{c.conf}, nil})
			r.host = nstest.NewNS(t)
			nstest.RunIn(t, r.host, "sh", "-ec", `ip link set lo up; ip link add ens3 up type veth peer name wire; ip link set wire up
				ip addr add 192.0.2.10/24 dev ens3; ip route add default via 192.0.2.1; `+c.setup)
			r.must("status", r.status())
			for _, id := range []string{"c1", "c2"} {
				if id == "c2" && name == "link-local" {
					break // it is one address
				}
				a := &attachment{id: id, netns: nstest.NewNS(t)}
				r.must("add", r.add(a))
				r.must("check", r.check(a))
				defer func() { r.must("del", r.del(a)) }()
			}
		})
	}
}

// addSaying is add, with what its last plugin says on stderr.
func (r *runner) addSaying(a *attachment) string {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "stderr")
	r.must("add", r.add(a, "sh", "-c", `exec "$@" 2>`+file, "sh"))
	b, err := os.ReadFile(file)
	r.must("read what was said", err)
	return string(b)
}

// A subnet that another link of the host has too is said, by the first who brings it there.
func TestGatewayOverlaps(t *testing.T) {
	host := nstest.NewNS(t)
	nstest.RunIn(t, host, "sh", "-ec", `ip link set lo up; ip link add ens3 up type veth peer name wire; ip addr add 192.0.2.10/24 dev ens3; ip addr add 2001:db8::10/64 dev ens3 nodad
		ip route add 10.72.0.7/32 dev ens3 proto 118; ip route add 10.73.0.7/32 dev ens3`)
	at := func(name, conf string) (*runner, *attachment) {
		r := newRunner(t, chain{"overlap-" + name, []string{conf}, nil})
		r.host = host
		return r, &attachment{id: "c1", netns: nstest.NewNS(t)}
	}
	const gw = `"type":"bridge","isGateway":true,"removeWhenEmpty":true,`
	for _, c := range []struct{ name, conf, other string }{
		{"bridge", gw + `"bridge":"br1","ipam":{"type":"host-local","subnet":"192.0.2.0/24"}`, "overlaps with address 192.0.2.10/24 of link ens3"},
		{"part", gw + `"bridge":"br1","ipam":{"type":"host-local","subnet":"192.0.2.0/28","gateway":"192.0.2.14"}`, "of link ens3"},
		{"bridge6", gw + `"bridge":"br1","ipam":{"type":"host-local","subnet":"2001:db8::/48"}`, "overlaps with address 2001:db8::10/64 of link ens3"},
		{"ptp", `"type":"ptp","ipam":{"type":"host-local","subnet":"192.0.2.128/25"}`, "of link ens3"},
		{"none", gw + `"bridge":"br1","ipam":{"type":"host-local","subnet":"10.88.0.0/24"}`, ""},
		{"pinned", `"type":"ptp","ipam":{"type":"host-local","subnet":"10.72.0.0/28"}`, ""},
		{"foreign", `"type":"ptp","ipam":{"type":"host-local","subnet":"10.73.0.0/28"}`, "overlaps with route 10.73.0.7/32 of link ens3"},
	} {
		r, a := at(c.name, c.conf)
		s := r.addSaying(a)
		if strings.Contains(s, "the host reaches only one of the two") != (c.other != "") || !strings.Contains(s, c.other) {
			t.Errorf("%s: %s, want %q", c.name, s, c.other)
		}
		b := &attachment{id: "c2", netns: nstest.NewNS(t)}
		if s := r.addSaying(b); s != "" {
			t.Errorf("%s: the second one: %s", c.name, s)
		}
		r.must("del", r.del(a))
		r.must("del", r.del(b))
	}
	r1, a1 := at("one", gw+`"bridge":"br1",`+hostLocal)
	r2, a2 := at("two", gw+`"bridge":"br2",`+hostLocal)
	r1.must("add", r1.add(a1))
	if s := r2.addSaying(a2); !strings.Contains(s, "overlaps with address 10.77.0.1/24 of link br1") {
		t.Errorf("of two bridges: %s", s)
	}
	r2.must("del", r2.del(a2))
	r1.must("del", r1.del(a1))
}

// TestGatewayKeepsMAC has a bridge that the administrator made keep the MAC that it had before its first port came,
// with the gateway's address of ours and of his, and one with an uplink and no gateway keep that of its uplink: no link
// of ours on the host begins below the address of a bridge.
func TestGatewayKeepsMAC(t *testing.T) {
	withoutBridges(t)
	mac := func(link string) string {
		return strings.TrimSpace(nstest.Run(t, "cat", "/sys/class/net/"+link+"/address"))
	}
	nstest.Run(t, "sh", "-ec", `ip link add br-bare type bridge; ip link set br-bare up
		ip link add br-with type bridge; ip link set br-with up; ip addr add 10.100.2.1/24 dev br-with
		ip link add br-uplink type bridge; ip link add fake address 52:54:00:12:34:56 type veth peer name fake1; ip link set fake master br-uplink`)
	defer nstest.Run(t, "ip", "link", "del", "fake")
	for n, br := range []string{"br-bare", "br-with", "br-uplink"} {
		net := "10.100." + strconv.Itoa(n+1) + "."
		conf := `"type":"bridge","bridge":"` + br + `","isGateway":` + strconv.FormatBool(br != "br-uplink") + `,"ipam":{"type":"host-local","subnet":"` + net + `0/24","rangeStart":"` + net + `10"}`
		r := newRunner(t, chain{name: br, plugins: []string{conf}})
		was := mac(br)
		for i := range 4 {
			a := &attachment{id: "c" + strconv.Itoa(i), netns: nstest.NewNS(t)}
			r.must("add", r.add(a))
			res, err := spec.DecodeResult(a.prev, spec.V110)
			r.must("decode", err)
			if is := mac(br); is != was || res.Interfaces[0].MAC != was {
				t.Errorf("after %d containers, %s has %s and in the result %s, it was %s", i+1, br, is, res.Interfaces[0].MAC, was)
			}
			if port := mac(res.Interfaces[1].Name); !strings.HasPrefix(port, "fe:") {
				t.Errorf("the host's end has %s, which may be less than a bridge's", port)
			}
		}
	}
}
