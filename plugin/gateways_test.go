package plugin_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/sdk/sdktest"
	"github.com/fairlead-cni/fairlead/spec"
)

// gatewaysBy returns the plugin of a network whose containers get an address from 10.81.0.0/24, and one from each range
// of the runtime.
func gatewaysBy(more string, ipRanges ...string) string {
	var lists []string
	for _, r := range ipRanges {
		lists = append(lists, `[{"subnet":"`+r+`"}]`)
	}
	return `"type":"bridge","bridge":"br-a","isDefaultGateway":true,"ipMasq":true,` + more +
		`"capabilities":{"ipRanges":true},"runtimeConfig":{"ipRanges":[` + strings.Join(lists, ",") +
		`]},"ipam":{"type":"host-local","subnet":"10.81.0.0/24"}`
}

// gatewaySite is a site whose network a has several subnets.
func gatewaySite(t *testing.T, plugins ...string) *site {
	s := newSite(t)
	s.runners["a"] = newRunner(t, chain{"gateways", plugins, nil})
	s.runners["a"].host = s.host
	return s
}

// attachEcho adds a container, which answers at port 80 with the address that it is asked from.
func (s *site) attachEcho(name string) *attachment {
	s.Helper()
	a := &attachment{id: name, netns: nstest.NewNS(s.T)}
	nstest.RunIn(s.T, a.netns, "ip", "link", "set", "lo", "up")
	s.runners["a"].must("add "+name, s.runners["a"].add(a))
	s.open(name, a.netns)
	s.echoesOn(name, 80)
	return a
}

// echoesOn answers at a port with the address of whoever asks.
func (p places) echoesOn(name string, port int) {
	p.Helper()
	err := p.ns[name].Do(func() error {
		l, err := net.Listen("tcp", fmt.Sprint(":", port))
		if err != nil {
			return err
		}
		p.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, c.RemoteAddr().(*net.TCPAddr).IP.String())
				c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		p.Fatal(err)
	}
}

// asks has an address of a place ask port 80 of another, which has to see that it comes from want.
func (p places) asks(from, src, dst, want string) {
	p.Helper()
	p.asksAt(from, src, net.JoinHostPort(dst, "80"), want)
}

func (p places) asksAt(from, src, dst, want string) {
	p.Helper()
	var got []byte
	err := p.ns[from].Do(func() error {
		d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(src)}}
		c, err := d.Dial("tcp", dst)
		if err != nil {
			return err
		}
		defer c.Close()
		got, err = io.ReadAll(c)
		return err
	})
	if err != nil || string(got) != want {
		p.Errorf("%s asks %s from %s: it comes from %q, want %q; %v", from, dst, src, got, want, err)
	}
}

// ipv4Of are the addresses of an attachment, in the order of its result.
func ipv4Of(t *testing.T, a *attachment) (addrs []string) {
	t.Helper()
	res, err := spec.DecodeResult(a.prev, spec.V110)
	if err != nil {
		t.Fatal(err)
	}
	for _, ip := range res.IPs {
		addrs = append(addrs, ip.Address.Addr().String())
	}
	return addrs
}

// onLink returns the IPv4 addresses of a link of the host.
func (s *site) onLink(bridge string) []string {
	s.Helper()
	var list []string
	for _, line := range strings.Split(s.sh("host", "ip -4 -o addr show dev "+bridge), "\n") {
		if m := regexp.MustCompile(`inet (\S+)`).FindStringSubmatch(line); m != nil {
			list = append(list, m[1])
		}
	}
	slices.Sort(list)
	return list
}

func (s *site) wantOn(when, bridge string, want ...string) {
	s.Helper()
	if got := s.onLink(bridge); !slices.Equal(got, want) {
		s.Errorf("%s, %s has %v, want %v", when, bridge, got, want)
	}
}

// redirects is how many ICMP redirects the host has sent.
func (s *site) redirects() string {
	s.Helper()
	return strings.TrimSpace(s.sh("host", `awk '/^Icmp:/ { if (!n) { for (i = 1; i <= NF; i++) if ($i == "OutRedirects") n = i } else print $n }' /proc/net/snmp`))
}

// TestTwoSubnetsOneBridge has a network with the runtime's ranges beside its own: each container has an address of both
// subnets, the bridge both gateways, and each address reaches what it is to reach. Containers go in any order.
//
// clause: K2
func TestTwoSubnetsOneBridge(t *testing.T) {
	list := []string{gatewaysBy("", "10.91.0.0/24"), `"type":"firewall","ingressPolicy":"same-bridge"`, `"type":"portmap","runtimeConfig":{"portMappings":[]}`}
	for name, plugins := range map[string][]string{
		"list": list, "chain": asChain(chain{"gateways", list, nil}).plugins,
		"iptables": {gatewaysBy(`"ipMasqBackend":"iptables",`, "10.91.0.0/24")},
	} {
		nstest.Apart(t, name, func(t *testing.T) {
			s := gatewaySite(t, plugins...)
			r := s.runners["a"]
			r.must("status", r.status())
			s.sh("outside", "ip route add 10.81.0.0/16 via 192.0.2.1; ip route add 10.91.0.0/16 via 192.0.2.1")
			a, b := s.attachEcho("a1"), s.attachEcho("a2")
			s.echoesOn("outside", 81)
			s.wantOn("with two containers", "br-a", "10.81.0.1/24", "10.91.0.1/24")
			for _, x := range []*attachment{a, b} {
				r.must("check", r.check(x))
				if n := strings.Count(nstest.RunIn(t, x.netns, "ip", "-4", "route"), "default"); n != 1 {
					t.Errorf("%s has %d default routes", x.id, n)
				}
			}
			r.must("status", r.status())
			to := ipv4Of(t, b)
			for i, src := range ipv4Of(t, a) {
				for _, dst := range to {
					s.asks("a1", src, dst, src)
				}
				s.sh("a1", fmt.Sprintf("ping -c1 -W10 -I %s %s", src, []string{"10.91.0.1", "10.81.0.1"}[i]))
				s.asksAt("a1", src, "192.0.2.2:81", "192.0.2.1")
			}
			r.must("del", r.del(a))
			s.wantOn("with one container", "br-a", "10.81.0.1/24", "10.91.0.1/24")
			for _, src := range to {
				s.asksAt("a2", src, "192.0.2.2:81", "192.0.2.1")
			}
			r.must("check", r.check(b))
			c := s.attachEcho("a3")
			r.must("del", r.del(b))
			r.must("check", r.check(c))
			r.must("del", r.del(c))
			r.must("status", r.status())
		})
	}
}

// TestTwoSubnetsOnePool has containers with an address of one subnet or of the other, which reach each other through
// the host without masquerading and without redirects.
func TestTwoSubnetsOnePool(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		nstest.Apart(t, backend, func(t *testing.T) {
			plugin := func(ip string) string {
				return `"type":"bridge","bridge":"br-a","isDefaultGateway":true,"ipMasq":true,"ipMasqBackend":"` + backend +
					`","runtimeConfig":{"ips":["` + ip + `"]},"ipam":{"type":"host-local","ranges":[[{"subnet":"10.81.0.0/24"},{"subnet":"10.91.0.0/24"}]]}`
			}
			s := gatewaySite(t, plugin("10.81.0.2"))
			r := s.runners["a"]
			a := s.attachEcho("a1")
			s.wantOn("with a container of the first range", "br-a", "10.81.0.1/24")
			r.chain.plugins[0] = plugin("10.91.0.2")
			b := s.attachEcho("a2")
			s.wantOn("with one of each range", "br-a", "10.81.0.1/24", "10.91.0.1/24")
			for range 5 {
				s.asks("a1", "10.81.0.2", "10.91.0.2", "10.81.0.2")
				s.asks("a2", "10.91.0.2", "10.81.0.2", "10.91.0.2")
			}
			if n := s.redirects(); n != "0" {
				t.Errorf("the host has sent %s redirects", n)
			}

			// Each attachment is asked for its own gateway.
			s.sh("host", "ip addr del 10.91.0.1/24 dev br-a")
			r.must("check of the other", r.check(a))
			wantCode(t, "check", r.check(b), spec.CodeInternal, "addr host/br-a 10.91.0.1/24 as gateway: is missing")
			s.sh("host", "ip addr add 10.91.0.1/24 dev br-a")
			r.must("check", r.check(b))
			s.sh("host", "sysctl -qw net.ipv4.conf.br-a.send_redirects=1")
			wantCode(t, "check", r.check(b), spec.CodeInternal, "sysctl net/ipv4/conf/br-a/send_redirects is 1, want 0")
			r.must("del", r.del(b))
			r.must("del", r.del(a))
			s.wantOn("with no container", "br-a", "10.81.0.1/24", "10.91.0.1/24") // the configuration has both
		})
	}
}

// subnetBy returns the plugin of a network with one subnet of each family, which it masquerades.
func subnetBy(backend string, n int) string {
	return fmt.Sprintf(`"type":"bridge","bridge":"br-a","isDefaultGateway":true,"ipMasq":true,`+
		`"ipMasqBackend":"%s","ipam":{"type":"host-local","ranges":[[{"subnet":"10.%d.0.0/24"}],`+
		`[{"subnet":"fd00:%d::/64"}]]}`, backend, n, n)
}

// TestLaterSubnet has a container of a subnet that is not in the configuration of the one before it. They reach each
// other without masquerading in either direction, for as long as the later one is there.
func TestLaterSubnet(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		for _, end := range []string{"DEL", "GC"} {
			nstest.Apart(t, backend+" "+end, func(t *testing.T) { laterSubnet(t, backend, end) })
		}
	}
}

func laterSubnet(t *testing.T, backend, end string) {
	plugin := func(n int) string { return subnetBy(backend, n) }
	s := gatewaySite(t, plugin(81))
	r := s.runners["a"]
	a := s.attachEcho("a1")
	r.chain.plugins[0] = plugin(91)
	b := s.attachEcho("a2")
	for range 2 {
		for _, other := range []struct{ first, later string }{
			{"10.81.0.2", "10.91.0.2"}, {"fd00:81::2", "fd00:91::2"},
		} {
			s.asks("a1", other.first, other.later, other.first)
			s.asks("a2", other.later, other.first, other.later)
		}
		r.must("check of the later one", r.check(b))
		r.chain.plugins[0] = plugin(81)
		r.must("check of the first", r.check(a))
		r.chain.plugins[0] = plugin(91)
	}

	r.chain.plugins[0] = plugin(81)
	if end == "DEL" {
		r.must("del of the later one", r.del(b))
	} else {
		r.must("gc", r.gc("a1"))
	}
	r.must("check without the later one", r.check(a))
	s.sh("outside", "ip addr add 10.91.0.2/32 dev lo")
	s.sh("host", "ip route replace 10.91.0.2 via 192.0.2.2")
	s.echoesOn("outside", 81)
	s.asksAt("a1", "10.81.0.2", "10.91.0.2:81", "192.0.2.1")
	r.must("del", r.del(a))
}

// TestLaterSubnetKilled kills the ADD that brings a subnet at each call that can change something. DEL leaves the
// rules of the container before it as they were.
//
// clause: P11 P12
func TestLaterSubnetKilled(t *testing.T) { nstest.Apart(t, "iptables", laterSubnetKilled) }

func laterSubnetKilled(t *testing.T) {
	r := newRunner(t, chain{"killed", []string{subnetBy("iptables", 81)}, nil})
	a := &attachment{id: "a1", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	r.chain.plugins[0] = subnetBy("iptables", 91)
	warm := &attachment{id: "k", netns: nstest.NewNS(t)}
	r.must("add", r.add(warm))
	if rules := nstest.Run(t, "iptables-save", "-t", "nat"); !strings.Contains(rules, "subnet of ") {
		t.Fatalf("ADD changes no rules of the other container:\n%s", rules)
	}
	r.must("del", r.del(warm))
	sdktest.Killed(t, func(netns string, under ...string) error {
		return r.add(&attachment{id: "k", netns: netns}, under...)
	}, func(netns string) error { return r.del(&attachment{id: "k", netns: netns}) })
	r.chain.plugins[0] = subnetBy("iptables", 81)
	r.must("check", r.check(a))
}

// TestGatewaysGo has the configuration of a network change while it has containers: a gateway stays for as long as an
// attachment or the configuration needs it, and no longer, whatever the order of the removals and wherever they are
// killed.
//
// clause: P12
func TestGatewaysGo(t *testing.T) { nstest.Apart(t, "network", gatewaysGo) }

func gatewaysGo(t *testing.T) {
	const f, x, y = "10.81.0.1/24", "10.91.0.1/24", "10.92.0.1/24"
	withX, withY := gatewaysBy("", "10.91.0.0/24"), gatewaysBy("", "10.92.0.0/24")
	s := gatewaySite(t, withX)
	r := s.runners["a"]
	conf := func(plugin string) { r.chain.plugins = []string{plugin} }
	a, b := s.attachEcho("a1"), s.attachEcho("a2")
	conf(withY)
	c := s.attachEcho("a3")
	s.wantOn("with containers of all", "br-a", f, x, y)
	s.asks("a1", ipv4Of(t, a)[1], ipv4Of(t, c)[1], ipv4Of(t, a)[1])
	conf(withX)
	r.must("check", r.check(a))
	r.must("del", r.del(a))
	s.wantOn("with one container of the first", "br-a", f, x, y)
	conf(withY)
	r.must("del", r.del(b)) // its configuration is not that of its ADD
	s.wantOn("without containers of the first", "br-a", f, y)
	r.must("check", r.check(c))
	r.must("del", r.del(c))
	s.wantOn("without containers", "br-a", f, y)
	conf(gatewaysBy(""))
	d := s.attachEcho("a4")
	s.wantOn("after a configuration without them", "br-a", f)
	r.must("check", r.check(d))

	// Garbage collection is as good as DEL.
	conf(withX)
	e := s.attachEcho("a5")
	conf(gatewaysBy(""))
	g := s.attachEcho("a6")
	s.wantOn("before garbage collection", "br-a", f, x)
	r.must("gc", r.gc("a4", "a6"))
	s.wantOn("after garbage collection", "br-a", f)
	r.must("check", r.check(g))
	r.must("del", r.del(e))

	// Two addresses of one subnet: the later one does not go with the first.
	second := strings.Replace(withX, `"subnet":"10.81.0.0/24"`, `"subnet":"10.81.0.0/24","rangeStart":"10.81.0.100","gateway":"10.81.0.99"`, 1)
	conf(second)
	h := s.attachEcho("a7")
	s.wantOn("with two of one subnet", "br-a", f, "10.81.0.99/24", x)
	r.must("del", r.del(d))
	r.must("del", r.del(g))
	s.wantOn("without the first of the subnet", "br-a", "10.81.0.99/24", x)
	r.must("check", r.check(h))
	r.must("del", r.del(h))
}

// TestSubnetOfEmptiedNetwork has the subnet of a network change while it has no container: the old gateway goes with the
// next ADD, unless another network needs it.
//
// clause: P11
func TestSubnetOfEmptiedNetwork(t *testing.T) { nstest.Apart(t, "network", subnetOfEmptiedNetwork) }

func subnetOfEmptiedNetwork(t *testing.T) {
	of := func(subnet string) string {
		return `"type":"bridge","bridge":"br-a","isGateway":true,"ipam":{"type":"host-local","subnet":"` + subnet + `"}`
	}
	s := gatewaySite(t, of("10.81.0.0/24"))
	r := s.runners["a"]
	a := s.attachEcho("a1")
	r.must("del", r.del(a))
	r.chain.plugins[0] = of("10.82.0.0/24")
	r.must("status", r.status())
	b := s.attachEcho("a2")
	s.wantOn("after the next ADD", "br-a", "10.82.0.1/24")
	r.must("check", r.check(b))
	r.must("del", r.del(b))

	same := newRunner(t, chain{"same", []string{of("10.82.0.0/24")}, nil})
	same.host = s.host
	sa := &attachment{id: "s1", netns: nstest.NewNS(t)}
	same.must("add", same.add(sa))
	same.must("del", same.del(sa))
	r.chain.plugins[0] = of("10.83.0.0/24")
	const say = "10.82.0.1 is the gateway of another network, so give this one a bridge or a VLAN of its own"
	wantCode(t, "status beside a network with the old subnet", r.status(), spec.CodeUnavailable, say)
	c := &attachment{id: "a3", netns: nstest.NewNS(t)}
	wantCode(t, "add beside a network with the old subnet", r.add(c), spec.CodeInternal, say)
	s.wantOn("after an ADD that was refused", "br-a", "10.82.0.1/24")

	// An address that an administrator gave a bridge made anew is not the network's.
	s.sh("host", "ip link del br-a; ip link add br-a type bridge; ip link set br-a up; ip addr add 10.82.0.1/24 dev br-a")
	wantCode(t, "status beside an administrator's address", r.status(), spec.CodeUnavailable, "br-a already has 10.82.0.1/24")
}

// TestGatewaysOfTwoNetworks has two networks on a bridge: an address of the other is a conflict that is found before
// anything is made, a gateway that both have stays until neither needs it, and forceAddress replaces what is another's
// and not the network's own.
//
// clause: P11
func TestGatewaysOfTwoNetworks(t *testing.T) { nstest.Apart(t, "bridge", gatewaysOfTwoNetworks) }

func gatewaysOfTwoNetworks(t *testing.T) {
	s := gatewaySite(t, gatewaysBy("", "10.91.0.0/24"))
	r := s.runners["a"]
	a := s.attachEcho("a1")
	other := func(name string, plugin string) *runner {
		o := newRunner(t, chain{name, []string{plugin}, nil})
		o.host = s.host
		return o
	}
	seen := `ip -br link | sed 's/@.*//; s/ .*//'; ip -o addr | grep -v fe80 | awk '{ print $2, $4 }'; find /run/cni/fairlead/memory -type f | sort`
	before := s.sh("host", seen)
	foreign := other("foreign", `"type":"bridge","bridge":"br-a","isGateway":true,"ipam":{"type":"host-local","subnet":"10.93.0.0/24"}`)
	fa := &attachment{id: "f1", netns: nstest.NewNS(t)}
	const say = "br-a already has 10."
	wantCode(t, "status of another network", foreign.status(), spec.CodeUnavailable, say)
	if err := foreign.status(); strings.Contains(err.Error(), "ip addr del") || !strings.Contains(err.Error(), "of its own") {
		t.Errorf("beside a gateway that another network needs, the advice is %v", err)
	}
	wantCode(t, "add of another network", foreign.add(fa), spec.CodeInternal, say)
	if after := s.sh("host", seen); after != before {
		t.Errorf("it became\n%s\nfrom\n%s", after, before)
	}
	foreign.must("del", foreign.del(fa))

	// The same gateway, in another network with another range.
	same := other("same", `"type":"bridge","bridge":"br-a","isGateway":true,"ipam":{"type":"host-local","subnet":"10.91.0.0/24","rangeStart":"10.91.0.100"}`)
	sa := &attachment{id: "s1", netns: nstest.NewNS(t)}
	same.must("status", same.status())
	same.must("add", same.add(sa))
	r.must("del", r.del(a))
	r.chain.plugins[0] = gatewaysBy("")
	b := s.attachEcho("a2")
	s.wantOn("with the other network's", "br-a", "10.81.0.1/24", "10.91.0.1/24")
	r.must("check", r.check(b))
	same.must("check", same.check(sa))
	same.must("del", same.del(sa))

	// forceAddress
	s.sh("host", "ip addr add 10.94.0.1/24 dev br-a")
	r.chain.plugins[0] = gatewaysBy("", "10.95.0.0/24")
	wantCode(t, "add beside a foreign address", r.add(&attachment{id: "a3", netns: nstest.NewNS(t)}), spec.CodeInternal, say)
	r.chain.plugins[0] = gatewaysBy(`"forceAddress":true,`, "10.95.0.0/24")
	c := s.attachEcho("a4")
	got := s.onLink("br-a")
	for _, want := range []string{"10.81.0.1/24", "10.95.0.1/24"} {
		if !slices.Contains(got, want) {
			t.Errorf("br-a has %v, want %s among them", got, want)
		}
	}
	if slices.Contains(got, "10.94.0.1/24") {
		t.Errorf("br-a has %v, and still the foreign address", got)
	}
	r.must("check", r.check(b))
	r.must("check", r.check(c))
	s.asks("a4", ipv4Of(t, c)[0], ipv4Of(t, b)[0], ipv4Of(t, c)[0])
	r.must("del", r.del(b))
	r.must("del", r.del(c))
}

// TestGatewayOfFailedAdd has an ADD fail after it has given the bridge a gateway: the gateway goes with it, and an
// ADD with another one is not in conflict with it.
//
// clause: P11
func TestGatewayOfFailedAdd(t *testing.T) { nstest.Apart(t, "static", gatewayOfFailedAdd) }

func gatewayOfFailedAdd(t *testing.T) {
	static := func(ip, gw, route string) string {
		return `"type":"bridge","bridge":"br-a","isGateway":true,"ipam":{"type":"static","addresses":[{"address":"` + ip +
			`","gateway":"` + gw + `"}],"routes":[` + route + `]}`
	}
	s := gatewaySite(t, static("10.96.0.2/24", "10.96.0.1", `{"dst":"198.51.100.0/24","gw":"203.0.113.9"}`))
	r := s.runners["a"]
	a := &attachment{id: "a1", netns: nstest.NewNS(t)}
	if err := r.add(a); err == nil {
		t.Fatal("a route by a router that is not on the link was added")
	}
	s.wantOn("after an ADD that failed", "br-a")
	r.must("del", r.del(a))
	r.chain.plugins[0] = static("10.97.0.2/24", "10.97.0.1", "")
	b := s.attachEcho("a2")
	s.wantOn("after the next", "br-a", "10.97.0.1/24")
	if !netip.MustParsePrefix("10.97.0.0/24").Contains(netip.MustParseAddr(ipv4Of(t, b)[0])) {
		t.Errorf("it has %v", ipv4Of(t, b))
	}
	r.must("del", r.del(b))
}
