package publish_test

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
)

// Who is on the list reaches the port, and so do the host and the container itself; nobody else does, neither from
// outside nor from the same subnet, by either family. The same port of the container, published for all by another
// port of the host, is another matter.
//
// clause: K1
func TestAllowFrom(t *testing.T) {
	eachBridgeCall(t, func(t *testing.T, l *filtertest.Lab) {
		udp := filtertest.Only(publish.Mapping{Protocol: "udp", HostPort: 8080, ContainerPort: 80}, "192.0.2.0/24",
			"2001:db8::/64")
		p := filtertest.PortsOfA(l,
			filtertest.Only(filtertest.TCP("", 8080), "192.0.2.0/24", "2001:db8::/64"), udp,
			filtertest.TCP("", 8081),
			filtertest.Only(filtertest.TCP("", 8082), "10.1.2.6/32", "fd00::6/128"),
			filtertest.Only(filtertest.TCP("", 8083), "192.0.2.0/24"),
			filtertest.Only(filtertest.Range("", 9000, 9009), "198.51.100.0/24", "2001:db8:1::/64"),
		)
		l.Ensure(p, l.W)
		contract.Verify(t, l.W, p)
		for _, network := range []string{"tcp", "udp"} {
			l.Serve(l.A, "a", network, ":80")
			l.Expect(l.Neighbour, network, "192.0.2.1:8080", "a 192.0.2.2")
			l.Expect(l.Neighbour, network, "[2001:db8::1]:8080", "a 2001:db8::2")
			l.Expect(l.Remote, network, "198.51.100.1:8080", "")
			l.Expect(l.Remote, network, "[2001:db8:1::1]:8080", "")
			l.Expect(l.B, network, "10.1.2.1:8080", "")
			l.Expect(l.B, network, "[fd00::1]:8080", "")
			l.Expect(l.W.Host, network, "192.0.2.1:8080", "a 192.0.2.1")
			l.Expect(l.W.Host, network, "127.0.0.1:8080", "a 10.1.2.1")
			l.Expect(l.W.Host, network, "[2001:db8::1]:8080", "a 2001:db8::1")
			l.Expect(l.A, network, "192.0.2.1:8080", "a 10.1.2.1")
			l.Expect(l.A, network, "[2001:db8::1]:8080", "a fd00::1")
		}
		l.Expect(l.Remote, "tcp", "198.51.100.1:8081", "a 198.51.100.2")
		l.Expect(l.B, "tcp", "10.1.2.1:8081", "a 10.1.2.1")
		l.Expect(l.B, "tcp", "10.1.2.1:8082", "a 10.1.2.1")
		l.Expect(l.B, "tcp", "[fd00::1]:8082", "a fd00::1")
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:8082", "")
		l.Expect(l.Neighbour, "tcp", "[2001:db8::1]:8082", "")
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:8083", "a 192.0.2.2")
		l.Expect(l.Neighbour, "tcp", "[2001:db8::1]:8083", "") // a list of one family closes the other
		l.Serve(l.A, "range", "tcp", ":9004")
		l.Expect(l.Remote, "tcp", "198.51.100.1:9004", "range 198.51.100.2")
		l.Expect(l.Remote, "tcp", "[2001:db8:1::1]:9004", "range 2001:db8:1::2")
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:9004", "")
		l.Expect(l.Neighbour, "tcp", "[2001:db8::1]:9004", "")
		l.Expect(l.B, "tcp", "10.1.2.5:80", "a 10.1.2.6") // the container's own port is not published

		// Without the rules, all of them are let in.
		filtertest.NFT(t, l.W, "flush chain inet fairlead allowfrom")
		l.Expect(l.Remote, "tcp", "198.51.100.1:8080", "a 198.51.100.2")
		l.Expect(l.B, "tcp", "[fd00::1]:8080", "a fd00::1")
		l.Expect(l.Neighbour, "tcp", "[2001:db8::1]:9004", "range 2001:db8::2")
		l.Ensure(p, l.W)
		l.Expect(l.Remote, "tcp", "198.51.100.1:8080", "")
		l.Expect(l.B, "tcp", "[fd00::1]:8080", "")

		contract.Remove(t, l.W, p)
		l.Ensure(filtertest.PortsOfA(l, filtertest.TCP("", 8080)), l.W)
		l.Expect(l.Remote, "tcp", "198.51.100.1:8080", "a 198.51.100.2")
	})
}

// Answers to a container that lets only some in are no requests to it, though they come to its address.
func TestAllowFromLetsAnswersBack(t *testing.T) {
	l := filtertest.NewLab(t)
	l.Ensure(filtertest.PortsOfA(l, publish.Mapping{Protocol: "tcp", HostIP: contract.Addr("192.0.2.9"), HostPort: 80,
		ContainerPort: 80,
		AllowFrom:     []netip.Prefix{contract.Prefix("203.0.113.0/24")}}), l.W)
	b := publish.Ports{Owner: l.OwnerB, To4: l.ToB, SNAT: false,
		Mappings: []publish.Mapping{{Protocol: "tcp", HostIP: contract.Addr("192.0.2.1"), HostPort: 80,
			ContainerPort: 80}}}
	l.In(l.W.Host, "ip addr add 10.3.0.1/24 dev br0")
	l.In(l.B, "ip addr flush dev eth0 scope global", "ip addr add 10.3.0.6/24 dev eth0",
		"ip route replace default via 10.3.0.1")
	b.To4 = contract.Prefix("10.3.0.6/24")
	l.Ensure(b, l.WorldOf(l.B))
	l.Serve(l.B, "b", "tcp", ":80")
	l.Expect(l.A, "tcp", "192.0.2.1:80", "b 10.1.2.5")
}

func TestAllowFromLaw(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	p := publish.Ports{Owner: contract.Owner, To4: contract.Prefix("10.1.2.5/24"), To6: contract.Prefix("fd00::5/64"),
		SNAT: true, Mappings: []publish.Mapping{
			filtertest.Only(filtertest.TCP("", 8080), "192.0.2.0/24", "2001:db8::/32"),
			filtertest.Only(filtertest.Range("", 9000, 9009), "192.0.2.0/24"),
		}}
	named := func(set string) string {
		return regexp.MustCompile(set + `_[0-9a-f]{12}`).FindString(filtertest.State(t, w))
	}
	del := func(set, key string) func(*testing.T) {
		return func(t *testing.T) { filtertest.NFT(t, w, "delete element inet fairlead "+named(set)+" { "+key+" }") }
	}
	filtertest.Test(t, w, p,
		contract.Break("port", del("allow_ip", "10.1.2.5 . tcp . 8080"), "{ 10.1.2.5 . tcp . 8080 } is missing"),
		contract.Break("port6", del("allow_ip6", "fd00::5 . tcp . 8080"), "{ fd00::5 . tcp . 8080 } is missing"),
		contract.Break("range", del("allow_ip_range", "10.1.2.5 . tcp . 9000-9009"),
			"{ 10.1.2.5 . tcp . 9000-9009 } is missing"),
		contract.Break("range of nobody", del("allow_ip6_range", "fd00::5 . tcp . 9000-9009"),
			"{ fd00::5 . tcp . 9000-9009 } is missing"),
		contract.Break("itself", func(t *testing.T) {
			filtertest.NFT(t, w,
				"delete element inet fairlead itself_ip { 10.1.2.5 . 10.1.2.5 }")
		}, "itself_ip { 10.1.2.5 . 10.1.2.5 } is missing"),
		contract.Break("line", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead allowfrom") }, `nft rule inet fairlead allowfrom "published to some`),
		contract.Break("list", func(t *testing.T) {
			filtertest.NFT(t, w, "insert rule inet fairlead "+named("allow_ip")+" ip saddr 198.51.100.0/24 return")
		}, "of another program"),
		contract.Break("shorter list", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead "+named("allow_ip")) }, `"all others`),
		contract.Break("way", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead forward") }, `"published ports, who may use them`),
		contract.Break("flush table", func(t *testing.T) { filtertest.NFT(t, w, "flush table inet fairlead") },
			"is missing"),
		contract.Break("delete table", func(t *testing.T) { filtertest.NFT(t, w, "delete table inet fairlead") },
			"nft table inet fairlead is missing"),
	)
	// DEL by owner alone.
	before := filtertest.Elements(t, w)
	contract.Ensure(t, w, p)
	contract.Remove(t, w, publish.Ports{Owner: contract.Owner})
	if after := filtertest.Elements(t, w); after != before {
		t.Errorf("left %s", contract.Difference(before, after))
	}
}

// One port of the host cannot have two lists: when they are asked for, the address of the host is no more.
func TestAllowFromOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		ports []publish.Mapping
		bad   bool
	}{
		{"other addresses", []publish.Mapping{filtertest.Only(filtertest.TCP("192.0.2.1", 80), "10.0.0.0/8"),
			filtertest.TCP("192.0.2.2", 80)}, true},
		{"in a range", []publish.Mapping{filtertest.Only(filtertest.Range("192.0.2.1", 80, 90), "10.0.0.0/8"),
			filtertest.Only(filtertest.Range("192.0.2.2", 85, 99), "11.0.0.0/8")}, true},
		{"same list", []publish.Mapping{filtertest.Only(filtertest.TCP("192.0.2.1", 80), "10.0.0.0/8", "11.0.0.0/8"),
			filtertest.Only(filtertest.TCP("192.0.2.2", 80), "11.0.0.0/8", "10.0.0.0/8")}, false},
		{"same port", []publish.Mapping{filtertest.Only(filtertest.Range("", 80, 90), "10.0.0.0/8"),
			filtertest.Range("", 90, 99)}, true},
		{"other ports", []publish.Mapping{filtertest.Only(filtertest.TCP("192.0.2.1", 80), "10.0.0.0/8"),
			filtertest.TCP("192.0.2.1", 81)}, false},
		{"other families", []publish.Mapping{filtertest.Only(filtertest.TCP("192.0.2.1", 80), "10.0.0.0/8"),
			filtertest.TCP("2001:db8::1", 80)}, false},
	} {
		w := contract.NewHost(t)
		_, err := filtertest.PortsOf("c1", "net", "10.1.2.5/24", c.ports...).Ensure(t.Context(), w)
		if (err != nil) != c.bad || err != nil && !strings.Contains(err.Error(), "different lists") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
