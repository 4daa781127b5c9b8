package plugin_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// dialBy asks who answers at an address, from a link of a namespace.
func (s *site) dialBy(from, link, addr string) (who string, err error) {
	d := net.Dialer{Deadline: nstest.Deadline(s), Control: by(link)}
	var c net.Conn
	if err := s.ns[from].Do(func() (err error) { c, err = d.Dial("tcp", addr); return err }); err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(nstest.Deadline(s))
	b, err := io.ReadAll(c)
	return string(b), err
}

// TestVRFPackets gives a container two interfaces in networks with the same subnet, the same addresses and a default
// route each, with a host beyond that has the same address too; each in a VRF.
//
// clause: P15 P16 P17 P18 P23
func TestVRFPackets(t *testing.T) {
	nstest.Need(t, "vrf", "table", "7")
	s := newSite(t)
	a := map[string]*attachment{}
	r := map[string]*runner{}
	netns := nstest.NewNS(t)
	s.open("c", netns)
	before := s.sh("c", "ip -br link; ip route; ip -6 route")
	for i, color := range []string{"blue", "red"} {
		s.open(color, nstest.NewNS(t))
		s.sh("host", fmt.Sprintf("ip link add br-%s up type bridge; ip link add p-%[1]s up master br-%[1]s type veth peer name eth0 netns %s", color, strings.TrimPrefix(s.ns[color].Path, "/run/netns/")))
		s.sh(color, `ip link set lo up; ip link set eth0 up; ip addr add 10.81.0.9/24 dev eth0; ip addr add fd00:81::9/64 dev eth0 nodad
			ip addr add 192.0.2.9/32 dev lo; ip addr add 2001:db8::9/128 dev lo; ip route add 10.99.0.0/16 via 10.81.0.2`)
		s.serve(color)
		n := newRunner(t, chain{name: color})
		n.host, n.ifName = s.host, fmt.Sprint("eth", i+1)
		n.chain.plugins = []string{`"type":"bridge","bridge":"br-` + color + `",` + n.answers(`{"cniVersion":"1.1.0","ips":[{"address":"10.81.0.2/24","gateway":"10.81.0.9"},{"address":"fd00:81::2/64","gateway":"fd00:81::9"}],
			"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"203.0.113.0/24","gw":"10.81.0.9","mtu":1300}],"dns":{"nameservers":["10.81.0.53"]}}`), `"type":"vrf","vrfname":"` + color + `"`, `"type":"tuning","mtu":1400`}
		r[color], a[color] = n, &attachment{id: "c", netns: netns}
		n.must("add", n.add(a[color]))
	}
	talk := func(color string) {
		t.Helper()
		for _, addr := range []string{"10.81.0.9", "fd00:81::9", "192.0.2.9", "2001:db8::9"} {
			if who, err := s.dialBy("c", color, net.JoinHostPort(addr, "80")); who != color {
				t.Errorf("%s by %s: %q answers, %v", addr, color, who, err)
			}
			s.sh("c", "busybox ping -q -c 2 -i 0.1 -W 600 -I "+color+" "+addr)
		}
		s.ping(color, "10.81.0.2")
		s.ping(color, "fd00:81::2")
		r[color].must("check", r[color].check(a[color]))
	}
	talk("blue")
	talk("red")
	if out := s.sh("c", "ip route; ip -6 route"); strings.Contains(out, "default") {
		t.Errorf("left in the main table: %s", out)
	}
	for i, color := range []string{"blue", "red"} {
		res, err := spec.DecodeResult(a[color].prev, spec.V110)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Routes) != 3 || len(res.IPs) != 2 || len(res.DNS.Nameservers) != 1 ||
			interfaceOf(t, a[color].prev, fmt.Sprint("eth", i+1)).MTU != 1400 {
			t.Errorf("the result is not that of the plugin before: %s", a[color].prev)
		}
	}

	// What somebody took away is said by both, and one VRF's loss is not the other's.
	s.sh("c", "ip route del default vrf blue")
	for i, say := range []string{"route default via 10.81.0.9 dev cont/eth1: is missing",
		"route default via 10.81.0.9 dev cont/eth1"} {
		if _, err := r["blue"].run(i, "CHECK", a["blue"], ""); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("check without the default route: %v", err)
		}
	}
	r["red"].must("check", r["red"].check(a["red"]))
	r["blue"].must("del without a result", r["blue"].del(&attachment{id: "c", netns: netns}))
	talk("red")
	if out := s.sh("c", "ip -br link show type vrf"); strings.Contains(out, "blue") || !strings.Contains(out, "red") {
		t.Errorf("VRFs: %s", out)
	}

	// A chain with the VRF alone leaves the interface as it was before.
	s.sh("c", "ip link add dm0 type bridge; ip link set dm0 up; ip addr add 10.7.0.2/24 dev dm0")
	alone := newRunner(t, chain{"alone", []string{`"type":"vrf","vrfname":"red"`}, nil})
	alone.host, alone.ifName = s.host, "dm0"
	dm := &attachment{id: "c", netns: netns, prev: []byte(fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"dm0","sandbox":%q}],"ips":[{"address":"10.7.0.2/24","interface":0}],"vendor":1}`, netns))}
	out, err := alone.run(0, "ADD", dm, "")
	alone.must("add", err)
	if !strings.Contains(string(out), `"vendor"`) {
		t.Errorf("the result lacks what was before: %s", out)
	}
	r["red"].must("del", r["red"].del(a["red"]))
	if out := s.sh("c", "ip -br link show master red"); !strings.Contains(out, "dm0") {
		t.Errorf("the last member is gone with the first: %s", out)
	}
	alone.must("gc", alone.gc())
	s.sh("c", "ip link del dm0")
	if after := s.sh("c", "ip -br link; ip route; ip -6 route"); after != before {
		t.Errorf("at the end\n%s\nit was\n%s", after, before)
	}
}

// TestVRFRefused leaves nothing of an ADD that cannot be, and needs a result.
//
// clause: P11 P14 K13
func TestVRFRefused(t *testing.T) {
	r := newRunner(t, chain{name: "vrf-refused", plugins: []string{`"type":"vrf","vrfname":"blue"`}})
	a := &attachment{id: "r", netns: nstest.NewNS(t)}
	_, err := r.run(0, "ADD", a, "")
	wantCode(t, "add without a result", err, spec.CodeConfig, "prevResult")
	_, err = r.run(0, "CHECK", a, "")
	wantCode(t, "check without a result", err, spec.CodeConfig, "prevResult")
	r.must("del without a result", r.del(a))
	r.must("del without a namespace", r.del(&attachment{id: "r"}))
	a.prev = []byte(fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%q}],"ips":[{"address":"10.7.0.2/24","interface":0}]}`, a.netns))
	if _, err = r.run(0, "ADD", a, ""); err == nil || !strings.Contains(err.Error(), "link eth0: link does not exist") {
		t.Errorf("add of no interface: %v", err)
	}
	nstest.RunIn(t, a.netns, "sh", "-ec",
		"ip link add br0 type bridge; ip link add eth0 type veth peer name far; ip link set eth0 master br0")
	before := nstest.RunIn(t, a.netns, "ip", "link")
	_, err = r.run(0, "ADD", a, `,"table":255`)
	wantCode(t, "the table of the kernel's own", err, spec.CodeConfig, "table: 255: want 1 to")
	_, err = r.run(0, "ADD", a, "")
	wantCode(t, "add of a bridge's port", err, spec.CodeConfig, "eth0 belongs to a bridge, br0 already")
	nstest.RunIn(t, a.netns, "ip", "link", "set", "eth0", "nomaster")
	nstest.RunIn(t, a.netns, "ip", "link", "set", "br0", "name", "blue")
	_, err = r.run(0, "ADD", a, "")
	wantCode(t, "a name that is taken", err, spec.CodeConfig, `vrfname: "blue": is a bridge in the container; name another`)
	r.must("del", r.del(a))
	nstest.RunIn(t, a.netns, "sh", "-ec", "ip link set blue name br0; ip link set eth0 master br0")
	if after := nstest.RunIn(t, a.netns, "ip", "link"); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
}
