package plugin_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// ovsConf is a configuration of plugin ovs for a test's Open vSwitch, with its own datapath: not every kernel has the module.
func ovsConf(o *nstest.OVS, more string) string {
	return fmt.Sprintf(`"type":"ovs","bridge":"ovs0","datapath_type":"netdev","socket_file":%q%s`, o.Socket(), more)
}

// static4 gives each container an address of its own.
func static4(addr string) string {
	return `,"ipam":{"type":"static","addresses":[{"address":"` + addr + `/24"}]}`
}

func ping(t *testing.T, from *attachment, to string) string {
	t.Helper()
	return nstest.RunIn(t, from.netns, "ping", "-c1", "-W20", to)
}

// pings reports whether a container hears an answer within two seconds.
func pings(t *testing.T, from *attachment, to string) bool {
	t.Helper()
	return strings.Contains(nstest.RunIn(t, from.netns, "sh", "-c", "ping -c2 -i1 -W2 "+to+" || true"), "bytes from")
}

// TestOVS pings between containers of one bridge, apart where their VLANs are, and before, while and after ovs-vswitchd is started again.
func TestOVS(t *testing.T) {
	o := nstest.NewOVS(t, "")
	add := func(n int, more string) *attachment {
		t.Helper()
		r := newRunner(t, chain{name: "ovs", plugins: []string{ovsConf(o, more+static4(fmt.Sprint("10.77.0.", n)))}})
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

// TestOVSTunnels pings through VXLAN between the bridges of three hosts, each of which has tunnels to both others: nothing goes round.
func TestOVSTunnels(t *testing.T) {
	nstest.Need(t, "vxlan", "id", "1")
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
		nstest.RunIn(t, h.ns, "sh", "-ec", fmt.Sprintf("ip addr add 192.0.2.%d/24 dev ext; ip link set ext up; ip link set ens3 up; ip link set lo up; ethtool -K ext tx off >/dev/null 2>&1 || true", i+1))
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
	nstest.RunIn(t, second.netns, "ping", "-c1", "-W20", "10.77.0.2")
	h.r.must("del the second", h.r.del(second))
	if out := h.o.Ctl(t, "--bare", "--columns=name", "find", "interface", "type=vxlan"); strings.TrimSpace(out) != "" {
		t.Errorf("the last DEL left tunnels %s", out)
	}
}
