package plugin_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// ovsConf is a configuration of plugin ovs for a test's Open vSwitch, with its own datapath: not every kernel has the
// module.
func ovsConf(o *nstest.OVS, more string) string {
	return fmt.Sprintf(`"type":"ovs","bridge":"ovs0","datapath_type":"netdev","socket_file":%q%s`, o.Socket(), more)
}

// static4 gives each container an address of its own.
func static4(addr string) string {
	return `,"ipam":{"type":"static","addresses":[{"address":"` + addr + `/24"}]}`
}

func ping(t *testing.T, from *attachment, to string) string {
	t.Helper()
	return nstest.RunIn(t, from.netns, "ping", "-c1", "-W600", to)
}

// pings reports whether a container hears an answer within two seconds.
func pings(t *testing.T, from *attachment, to string) bool {
	t.Helper()
	return strings.Contains(nstest.RunIn(t, from.netns, "sh", "-c", "ping -c2 -i1 -W2 "+to+" || true"), "bytes from")
}

// ovs runs the host's Open vSwitch.
func ovs(t *testing.T) { nstest.NewOVS(t, "") }

// TestOVS sends between containers of one bridge, by the datapath of ovs-vswitchd and the kernel's, apart where their
// VLANs are, and before, while and after ovs-vswitchd is started again.
func TestOVS(t *testing.T) {
	for _, datapath := range []string{"netdev", "system", "bridge's"} {
		nstest.Apart(t, datapath, func(t *testing.T) { pingsByOVS(t, datapath) })
	}
}

func pingsByOVS(t *testing.T, datapath string) {
	if datapath == "system" {
		nstest.NeedModule(t, "openvswitch")
	}
	o := nstest.NewOVS(t, "")
	conf := func(more string) string { return strings.Replace(ovsConf(o, more), "netdev", datapath, 1) }
	if datapath == "bridge's" {
		o.Ctl(t, "add-br", "ovs0", "--", "set", "bridge", "ovs0", "datapath_type=netdev")
		conf = func(more string) string { return strings.Replace(ovsConf(o, more), `"datapath_type":"netdev",`, "", 1) }
	}
	add := func(n int, more string) *attachment {
		t.Helper()
		r := newRunner(t, chain{name: "ovs-ping", plugins: []string{conf(more + static4(fmt.Sprint("10.77.0.", n)))}})
		a := &attachment{id: fmt.Sprint("c", n), netns: nstest.NewNS(t)}
		r.must("add", r.add(a))
		r.must("check", r.check(a))
		t.Cleanup(func() {
			r.must("del", r.del(a))
			r.must("del again", r.del(a))
			if ports := o.Ctl(t, "list-ports", "ovs0"); strings.Contains(ports, "c"+fmt.Sprint(n)) {
				t.Errorf("del left %s", ports)
			}
		})
		return a
	}
	a, b := add(2, ""), add(3, "")
	ping(t, a, "10.77.0.3")
	// TCP, whose checksums nobody in user space completes.
	nstest.RunIn(t, a.netns, "sh", "-ec", `busybox nc -l -p 5000 -w 30 -e echo hello 0.0.0.0 >/dev/null 2>&1 & echo`)
	if got := nstest.RunIn(t, b.netns, "sh", "-ec", `for i in $(seq 50); do timeout 10 busybox nc -w 5 10.77.0.2 5000 </dev/null && exit; busybox sleep 0.1; done`); !strings.Contains(got, "hello") {
		t.Errorf("by TCP: %q", got)
	}
	red, alsoRed, blue := add(4, `,"vlan":100`), add(5, `,"vlan":100`), add(6, `,"vlan":200`)
	ping(t, red, "10.77.0.5")
	ping(t, alsoRed, "10.77.0.4")
	if pings(t, red, "10.77.0.6") || pings(t, blue, "10.77.0.4") {
		t.Error("VLAN 100 hears VLAN 200")
	}
	o.Stop(t, "ovs-vswitchd")
	o.StartSwitch(t)
	ping(t, b, "10.77.0.2")
	ping(t, red, "10.77.0.5")
	if pings(t, red, "10.77.0.6") {
		t.Error("VLAN 100 hears VLAN 200 after ovs-vswitchd has been started again")
	}
}

// TestOVSTunnels pings through VXLAN between the bridges of three hosts, each of which has tunnels to both others:
// nothing goes round.
func TestOVSTunnels(t *testing.T) {
	type host struct {
		ns string
		o  *nstest.OVS
		r  *runner
		a  *attachment
	}
	hosts := make([]*host, 3)
	nstest.Run(t, "ip", "link", "add", "lan", "type", "bridge")
	nstest.Run(t, "ip", "link", "set", "lan", "up")
	for i := range hosts {
		h := &host{ns: nstest.NewNS(t)}
		hosts[i] = h
		up := fmt.Sprint("up", i)
		nstest.Run(t, "ip", "link", "add", up, "type", "veth", "peer", "name", "peer"+up)
		nstest.Run(t, "ip", "link", "set", up, "master", "lan", "up")
		nstest.Run(t, "ip", "link", "set", "peer"+up, "netns", h.ns, "name", "ens3")
		// The datapath of ovs-vswitchd sends what it has put into UDP by a bridge of its own, which has the host's address.
		h.o = nstest.NewOVS(t, h.ns)
		h.o.Ctl(t, "add-br", "ext", "--", "set", "bridge", "ext", "datapath_type=netdev", "--", "add-port", "ext", "ens3")
		nstest.RunIn(t, h.ns, "sh", "-ec",
			fmt.Sprintf("ip addr add 192.0.2.%d/24 dev ext; ip link set ext up; ip link set ens3 up; ip link set lo up; ethtool -K ext tx off >/dev/null 2>&1 || true",
				i+1))
	}
	for i, h := range hosts {
		h.r = newRunner(t, chain{name: "ovs-vxlan", plugins: []string{ovsConf(h.o, fmt.Sprintf(`,"vxlanID":42,"remotes":["192.0.2.1","192.0.2.2","192.0.2.3"],"vlan":%d`, 10*(i+1))+static4(fmt.Sprint("10.77.0.", i+1)))}})
		h.r.host = h.ns
		h.a = &attachment{id: fmt.Sprint("v", i), netns: nstest.NewNS(t)}
		h.r.must("add", h.r.add(h.a))
		h.r.must("check", h.r.check(h.a))
		if link := nstest.RunIn(t, h.a.netns, "ip", "link", "show", "eth0"); !strings.Contains(link, "mtu 1450") {
			t.Errorf("got %s, want mtu 1450", link)
		}
	}
	for n, from := range hosts {
		for i := range hosts {
			if i != n {
				ping(t, from.a, fmt.Sprint("10.77.0.", i+1))
			}
		}
	}
	// A packet for all comes to each of the others once.
	out := nstest.RunIn(t, hosts[0].a.netns, "sh", "-c", "arping -c3 -I eth0 10.77.0.3 2>&1 || ping -c3 -i0.3 10.77.0.3")
	if strings.Contains(out, "DUP") {
		t.Errorf("packets go round:\n%s", out)
	}
	h := hosts[0]
	second := &attachment{id: "second", netns: nstest.NewNS(t)}
	first := h.r.chain.plugins[0]
	h.r.chain.plugins[0] = strings.Replace(first, "10.77.0.1/", "10.77.0.9/", 1)
	h.r.must("add a second", h.r.add(second))
	h.r.must("del the first", h.r.del(h.a))
	nstest.RunIn(t, second.netns, "ping", "-c1", "-W600", "10.77.0.2")
	h.r.must("del the second", h.r.del(second))
	if out := h.o.Ctl(t, "--bare", "--columns=name", "find", "interface", "type=vxlan"); strings.TrimSpace(out) != "" {
		t.Errorf("the last DEL left tunnels %s", out)
	}
}

// TestOVSAway says which daemon is not there: STATUS with code 50, ADD with code 11, which has changed nothing. DEL of
// what is in the database waits for its server.
//
// clause: P8 P11
func TestOVSAway(t *testing.T) {
	o := nstest.NewOVS(t, "")
	r := newRunner(t, chain{name: "ovs-away", plugins: []string{ovsConf(o, static4("10.77.0.2"))}})
	a := &attachment{id: "a", netns: nstest.NewNS(t)}
	r.must("status", r.status())
	refused := func(when, say string) {
		t.Helper()
		before := nstest.Run(t, "sh", "-c", "ip -br link | sed 's/@.*//'; find /run/cni -type f | grep -v lock || true")
		wantCode(t, when+": status", r.status(), spec.CodeUnavailable, say)
		wantCode(t, when+": add", r.add(&attachment{id: "b", netns: a.netns}), spec.CodeTryAgain, say)
		if after := nstest.Run(t, "sh", "-c",
			"ip -br link | sed 's/@.*//'; find /run/cni -type f | grep -v lock || true"); after != before {
			t.Errorf("%s: is\n%s\nwas\n%s", when, after, before)
		}
		r.must(when+": del of nothing", r.del(&attachment{id: "b", netns: a.netns}))
	}
	const noSwitch = "Open vSwitch: ovs-vswitchd does not run: start it"
	r.must("add", r.add(a))
	o.Stop(t, "ovs-vswitchd")
	refused("ovs-vswitchd has ended", noSwitch)
	if err := r.check(a); err == nil || !strings.Contains(err.Error(), noSwitch) {
		t.Errorf("check while ovs-vswitchd is away: %v", err)
	}
	o.StartSwitch(t)
	r.must("status", r.status())
	o.Kill(t, "ovs-vswitchd")
	refused("ovs-vswitchd was killed", noSwitch)
	o.StartSwitch(t)
	r.must("status", r.status())
	o.Stop(t, "ovsdb-server")
	refused("ovsdb-server has ended", "ovsdb-server does not answer")
	wantCode(t, "del while ovsdb-server is away", r.del(a), spec.CodeTryAgain, "start ovsdb-server")
	wantCode(t, "gc while ovsdb-server is away", r.gc(), spec.CodeTryAgain, "start ovsdb-server")
	o.StartServer(t)
	r.must("status", r.status())
	r.must("del", r.del(a))
	if ports := o.Ctl(t, "list-ports", "ovs0"); ports != "" {
		t.Errorf("del left %s", ports)
	}
	missing := strings.Replace(ovsConf(o, `,"requireBridge":true`+static4("10.77.0.2")), `"ovs0"`, `"ovs9"`, 1)
	r.chain.plugins[0] = missing
	wantCode(t, "status without the bridge", r.status(), spec.CodeUnavailable, `bridge: "ovs9": no such bridge in Open vSwitch; there is ovs0`)
	wantCode(t, "add without the bridge", r.add(a), spec.CodeConfig, `bridge: "ovs9": no such bridge`)
}

// TestOVSParallel adds many containers of a bridge that is not there yet at once, and deletes them: the last one takes
// the tunnels away.
func TestOVSParallel(t *testing.T) {
	o := nstest.NewOVS(t, "")
	r := newRunner(t, chain{name: "ovs-parallel", plugins: []string{ovsConf(o, `,"vxlanID":7,"remotes":["192.0.2.7"],"ipam":{"type":"host-local","subnet":"10.77.0.0/24"}`)}})
	all := make([]attachment, 12)
	errs := make([]error, len(all))
	each := func(do func(*attachment) error) {
		t.Helper()
		var wg sync.WaitGroup
		for i := range all {
			wg.Go(func() { errs[i] = do(&all[i]) })
		}
		wg.Wait()
		r.must("all at once", errors.Join(errs...))
	}
	for i := range all {
		all[i] = attachment{id: fmt.Sprint("p", i), netns: nstest.NewNS(t)}
	}
	each(func(a *attachment) error { return r.add(a) })
	each(r.check)
	if n := strings.Count(o.Ctl(t, "list-ports", "ovs0"), "\n"); n != len(all)+1 {
		t.Errorf("%d ports, want one each and a tunnel", n)
	}
	ping(t, &all[0], strings.TrimSpace(all[11].text("IP4")))
	each(r.del)
	if ports := o.Ctl(t, "list-ports", "ovs0"); ports != "" {
		t.Errorf("left %s", ports)
	}
}

// TestOVSSpecification attaches by the example of the specification: a server on the bridge gives the address.
//
// clause: C11 C12
func TestOVSSpecification(t *testing.T) {
	o := nstest.NewOVS(t, "")
	o.Ctl(t, "add-br", "ovs0", "--", "set", "bridge", "ovs0", "datapath_type=netdev", "--", "add-port", "ovs0", "wire",
		"--", "set", "interface", "wire", "type=internal")
	nstest.Run(t, "sh", "-ec", "ip link set wire up; ip addr add 10.77.0.1/24 dev wire")
	dhcpServer(t, "/proc/self/ns/net", "wire", "10.77.0")
	r := newRunner(t, chain{name: "pci", plugins: []string{`"type":"ovs","bridge":"ovs0","vxlanID":42,"ipam":{"type":"dhcp","routes":[{"dst":"10.3.0.0/16"},{"dst":"10.4.0.0/16"}]},"args":{"labels":{"appVersion":"1.0"}}`}})
	a := &attachment{id: "a", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	r.must("check", r.check(a))
	ping(t, a, "10.77.0.1")
	if out := nstest.RunIn(t, a.netns, "ip", "route"); !strings.Contains(out, "10.3.0.0/16 via 10.77.0.1") ||
		!strings.Contains(out, "10.4.0.0/16 via 10.77.0.1") {
		t.Errorf("routes\n%s", out)
	}
	r.must("del", r.del(a))
}
