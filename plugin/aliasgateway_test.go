package plugin_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/miekg/dns"
)

// ownAddress is an ipam of a container that chooses its address and gateway itself.
func ownAddress(address, gateway string) string {
	return fmt.Sprintf(`"ipam":{"type":"static","addresses":[{"address":%q,"gateway":%q}]}`, address, gateway)
}

// silent expects that nothing listens on port 53 of an address of the host.
func silent(t *testing.T, addr string) {
	t.Helper()
	c, err := (&net.Dialer{Timeout: 5 * time.Second}).Dial("tcp", addr+":53")
	if err == nil {
		c.Close()
		t.Errorf("the name server listens on %s", addr)
	}
}

// A container that names the uplink's address as its gateway does not make the name server listen there.
func TestAliasUplink(t *testing.T) {
	startNameServer(t)
	withoutBridges(t)
	nstest.Run(t, "sh", "-ec", "ip link set lo up; ip link add uplink type veth peer name wire; ip addr add 192.0.2.5/24 dev uplink"+
		"; ip addr add 2001:db8::5/64 dev uplink nodad; ip link set uplink up; ip link set wire up")
	t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "uplink") })
	for name, plugin := range map[string]string{"bridge": `"type":"bridge","bridge":"br-up"`, "ptp": `"type":"ptp"`,
		"macvlan": `"type":"macvlan","master":"uplink"`,
		"gateway": `"type":"bridge","bridge":"br-up","isGateway":true,"removeWhenEmpty":true`} {
		for address, gateway := range map[string]string{"192.0.2.77/24": "192.0.2.5", "10.0.0.5/1": "192.0.2.5",
			"2001:db8::77/64": "2001:db8::5"} {
			r := newRunner(t, chain{"uplink-" + name, []string{plugin + "," + ownAddress(address, gateway), `"type":"alias"`}, nil})
			a := &attachment{id: "c1", netns: nstest.NewNS(t)}
			err := r.add(a)
			wantCode(t, name+" with "+address, err, spec.CodeConfig, "has no gateway on this host ("+gateway+")")
			silent(t, strings.TrimSuffix(net.JoinHostPort(gateway, ""), ":"))
			r.must("del", r.del(a))
		}
	}
}

// The subnet whose clients get a network's names is what the host has on the link to its containers. A container that
// says more gets another network nothing.
func TestAliasWideSubnet(t *testing.T) {
	startNameServer(t)
	withoutBridges(t)
	blue := aliased(t, "blue3", "10.77.0.0/24", "fd00:77::/64", "")
	red := aliased(t, "red3", "10.78.0.0/24", "fd00:78::/64", "")
	web, other := &attachment{id: "web", netns: nstest.NewNS(t)}, &attachment{id: "other", netns: nstest.NewNS(t)}
	blue.must("add", blue.add(web))
	red.must("add", red.add(other))
	wide := newRunner(t, chain{"blue3", []string{
		`"type":"bridge","bridge":"br-blue3",` + ownAddress("10.77.0.99/1", "10.77.0.1"), `"type":"alias"`}, nil})
	a := &attachment{id: "wide", netns: nstest.NewNS(t)}
	wide.must("add", wide.add(a))
	if got := asked(t, other.netns, "10.77.0.1", "udp", "web", dns.TypeA); got != "REFUSED" {
		t.Errorf("another network's container asks: %q", got)
	}
	if got := asked(t, web.netns, "10.77.0.1", "udp", "wide", dns.TypeA); got != "10.77.0.99" {
		t.Errorf("the network's own container asks: %q", got)
	}
}

// The gateway of a bridge's VLAN answers and the bridge's own address does not, which is another network's gateway. All
// gateways of a link answer, also several of one family.
func TestAliasGatewaysOfLink(t *testing.T) {
	startNameServer(t)
	withoutBridges(t)
	netns := nstest.NewNS(t)
	nstest.Run(t, "sh", "-ec", `ip link add br-gw type bridge; ip link add br-gw.100 type veth peer name gw-port; ip link set gw-port master br-gw; sysctl -qw net.ipv4.conf.br-gw.arp_ignore=1
		ip link add host0 master br-gw type veth peer name eth0 netns `+strings.TrimPrefix(netns, "/run/netns/")+`
		for l in br-gw br-gw.100 gw-port host0; do ip link set $l up; done
		ip addr add 10.81.0.1/24 dev br-gw; ip addr add 10.82.0.1/24 dev br-gw.100; ip addr add 10.83.0.1/24 dev br-gw.100
		ip addr add fd00:82::1/64 dev br-gw.100 nodad`)
	t.Cleanup(func() { nstest.Run(t, "sh", "-ec", "ip link del host0; ip link del br-gw.100; ip link del br-gw") })
	nstest.RunIn(t, netns, "sh", "-ec", `ip link set eth0 up; ip addr add 10.82.0.2/24 dev eth0; ip addr add 10.83.0.2/24 dev eth0
		ip addr add fd00:82::2/64 dev eth0 nodad`)
	r := newRunner(t, chain{"gateways", []string{`"type":"alias"`}, nil})
	prev := func(addresses ...string) *attachment {
		var ips []string
		for i := 0; i < len(addresses); i += 2 {
			ips = append(ips, fmt.Sprintf(`{"address":%q,"gateway":%q,"interface":3}`, addresses[i], addresses[i+1]))
		}
		return &attachment{id: "c1", netns: netns, network: r.network(), prev: fmt.Appendf(nil,
			`{"cniVersion":"1.1.0","interfaces":[{"name":"br-gw"},{"name":"br-gw.100"},{"name":"host0"},{"name":"eth0","sandbox":%q}],"ips":[%s]}`,
			netns, strings.Join(ips, ","))}
	}
	_, err := r.run(0, "ADD", prev("10.82.0.2/24", "10.81.0.1"), "")
	wantCode(t, "the bridge's address", err, spec.CodeConfig, "has no gateway on this host (10.81.0.1)")
	silent(t, "10.81.0.1")

	a := prev("10.82.0.2/24", "10.82.0.1", "10.83.0.2/24", "10.83.0.1", "fd00:82::2/64", "fd00:82::1")
	a.prev, err = r.run(0, "ADD", a, "")
	r.must("add", err)
	r.must("check", r.check(a))
	for _, gw := range []string{"10.82.0.1", "10.83.0.1", "fd00:82::1"} {
		if got := asked(t, netns, gw, "udp", "c1", dns.TypeA); got != "10.82.0.2 10.83.0.2" {
			t.Errorf("at %s: %q", gw, got)
		}
	}
	// clients in the subnets that the host has on the link, and no others
	nstest.RunIn(t, netns, "sh", "-ec", "ip addr del 10.82.0.2/24 dev eth0; ip addr add 10.82.0.9/24 dev eth0")
	if got := asked(t, netns, "10.82.0.1", "udp", "c1", dns.TypeA); got != "10.82.0.2 10.83.0.2" {
		t.Errorf("a neighbour without a record: %q", got)
	}
	r.must("del", r.del(a))
}
