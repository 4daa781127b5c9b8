package plugin_test

import (
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestMasterChained runs what works on a container's interface, or knows that it cannot, after a macvlan.
//
// clause: P17 P18 P23 C11
func TestMasterChained(t *testing.T) {
	nstest.Need(t, "macvlan")
	s := newSite(t)
	r := s.neighbours(`"type":"macvlan","master":"wan","mode":"bridge"`,
		`"type":"tuning","mtu":1300,"mac":"02:00:5e:00:00:0a"`, `"type":"bandwidth","ingressRate":100000000,"egressRate":100000000`,
		`"type":"firewall","backend":"nftables"`, `"type":"sbr","addSourceHints":true`, published) // whose neighbours have no other way
	s.add("a1")
	f := interfaceOf(t, s.containers["a1"].prev, "eth0")
	if f.MTU != 1300 || f.MAC != "02:00:5e:00:00:0a" {
		t.Errorf("the result has %+v", f)
	}
	r.must("check", r.check(s.containers["a1"]))
	for v := range 2 {
		s.expect("to a neighbour", "a1", net.JoinHostPort(s.addr["outside"][v], "80"), "outside")
		s.expect("from a neighbour", "outside", net.JoinHostPort(s.addr["a1"][v], "80"), "a1")
	}
	if out := s.sh("a1", "ip rule; tc qdisc show dev eth0"); !strings.Contains(out, "lookup 100") ||
		!strings.Contains(out, "tbf") {
		t.Errorf("sbr and bandwidth: %s", out)
	}

	// What a plugin before it made stays in the result, and its DNS with the allocator's.
	dir := t.TempDir() + "/resolv.conf"
	nstest.Run(t, "sh", "-c", "echo nameserver 192.0.2.53 > "+dir)
	r.chain.plugins = []string{`"type":"macvlan","master":"wan","ipam":{"type":"host-local","resolvConf":"` + dir + `","subnet":"192.0.2.0/24","rangeStart":"192.0.2.150"}`}
	a := &attachment{id: "x", netns: nstest.NewNS(t), network: r.network(),
		prev: []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"tap7","mac":"02:00:00:00:00:07"}],"ips":[{"address":"203.0.113.7/24","interface":0}]}`)}
	out, err := r.run(0, "ADD", a, "")
	r.must("add", err)
	res, err := spec.DecodeResult(out, spec.V110)
	r.must("decode", err)
	if len(res.Interfaces) != 2 || res.Interfaces[0].Name != "tap7" || res.Interfaces[1].Name != "eth0" ||
		len(res.IPs) != 2 || *res.IPs[0].Interface != 0 || *res.IPs[1].Interface != 1 {
		t.Errorf("the result: %s", out)
	}
	if len(res.DNS.Nameservers) != 1 || res.DNS.Nameservers[0] != "192.0.2.53" {
		t.Errorf("DNS: %s", out)
	}
	a.prev = out
	r.must("check", r.check(a))
	r.must("del", r.del(a))
}

// TestIPvlanChained takes its master and its addresses from a plugin before it.
//
// clause: P18 P24
func TestIPvlanChained(t *testing.T) {
	nstest.Need(t, "ipvlan")
	s := newSite(t)
	r := s.neighbours("")
	r.chain.plugins = []string{`"type":"ipvlan"`}
	a := &attachment{id: "a1", netns: nstest.NewNS(t), network: r.network(),
		prev: []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"wan"}],"ips":[{"address":"192.0.2.77/24","gateway":"192.0.2.2","interface":0}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"domain":"x"}}`)}
	s.open("a1", a.netns)
	out, err := r.run(0, "ADD", a, "")
	r.must("add", err)
	res, err := spec.DecodeResult(out, spec.V110)
	r.must("decode", err)
	if len(res.Interfaces) != 2 || res.Interfaces[0].Name != "wan" || len(res.IPs) != 1 || *res.IPs[0].Interface != 1 ||
		len(res.Routes) != 1 || res.DNS.Domain != "x" {
		t.Errorf("the result: %s", out)
	}
	a.prev = out
	r.must("check", r.check(a))
	s.expect("to a neighbour", "a1", "192.0.2.2:80", "outside")
	s.ping("a1", "198.51.100.1")
	r.must("del without a master, a default route or a result", r.del(&attachment{id: "a1", netns: a.netns}))
	if l, err := rtnl.LinkByName(s.ns["a1"], "eth0"); !errors.Is(err, rtnl.ErrNoLink) {
		t.Errorf("%+v, %v", l, err)
	}
}

// TestMasterOfReference checks and removes what the reference's plugins have made.
//
// clause: P12 P16
func TestMasterOfReference(t *testing.T) {
	for _, kind := range []string{"macvlan", "ipvlan"} {
		t.Run(kind, func(t *testing.T) {
			nstest.NeedProgram(t, "/usr/lib/cni/"+kind)
			uplink(kind)(t)
			conf := `"type":"` + kind + `","master":"ens3","mtu":1400,` + hostLocal4
			r := newRunner(t, chain{name: "ref-" + kind, plugins: []string{conf}})
			warm := &attachment{id: "w", netns: nstest.NewNS(t)}
			r.must("add", r.add(warm))
			r.must("del", r.del(warm))
			clean := state(t)
			a := &attachment{id: "c", netns: nstest.NewNS(t)}
			cmd := exec.Command("/usr/lib/cni/" + kind)
			cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0","name":"` + r.network() + `",` + conf + `}`)
			cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_NETNS=" + a.netns, "CNI_IFNAME=eth0",
				"CNI_PATH=/usr/lib/cni"}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("the reference plugin: %v: %s", err, out)
			}
			a.prev = out
			r.must("check", r.check(a))
			r.must("del without a result", r.del(&attachment{id: "c", netns: a.netns}))
			same(t, "DEL of what the reference made", clean)
			if out := nstest.RunIn(t, a.netns, "ip", "-br", "link"); strings.Contains(out, "eth0") {
				t.Errorf("DEL left %s", out)
			}
		})
	}
}
