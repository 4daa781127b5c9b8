package publish_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestPublishRangeLaw(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	p := publish.Ports{Owner: contract.Owner, To4: contract.Prefix("10.1.2.5/24"), To6: contract.Prefix("fd00::5/64"),
		SNAT: true, Mappings: []publish.Mapping{
			filtertest.Range("", 8000, 9999),
			filtertest.Range("192.0.2.1", 100, 163),
			filtertest.Range("2001:db8::1", 65000, 65535),
			{Protocol: "udp", HostPort: 200, HostPortEnd: 202, ContainerPort: 300}, // shifted
		}, Conditions6: []string{"ip6 saddr != fd01::/64"}}
	del := func(set, key string) func(*testing.T) {
		return func(t *testing.T) {
			name := regexp.MustCompile(set + `\b`).FindString(filtertest.State(t, w))
			filtertest.NFT(t, w, "delete element inet fairlead "+name+" { "+key+" }")
		}
	}
	hash := `_[0-9a-f]{12}`
	filtertest.Test(t, w, p,
		contract.Break("any", del("publish_ip_any_range", "tcp . 8000-9999"),
			"publish_ip_any_range { tcp . 8000-9999 : 10.1.2.5 } is missing"),
		contract.Break("exact", del("publish_ip_range", "192.0.2.1 . tcp . 100-163"),
			"publish_ip_range { 192.0.2.1 . tcp . 100-163 : 10.1.2.5 } is missing"),
		contract.Break("exact6", del("publish_ip6_range_where"+hash, "2001:db8::1 . tcp . 65000-65535"),
			"{ 2001:db8::1 . tcp . 65000-65535 : fd00::5 } is missing"),
		contract.Break("shifted", del("publish_ip_any", "udp . 201"),
			"publish_ip_any { udp . 201 : 10.1.2.5 . 301 } is missing"),
		contract.Break("hairpin", del("hairpin_ip_range"+hash, "10.1.2.5 . tcp . 8000-9999"),
			"{ 10.1.2.5 . tcp . 8000-9999 } is missing"),
		contract.Break("hairpin6", del("hairpin_ip6_range"+hash, "fd00::5 . tcp . 65000-65535"),
			"{ fd00::5 . tcp . 65000-65535 } is missing"),
		contract.Break("claims", func(t *testing.T) { filtertest.NFT(t, w, "flush map inet fairlead ranges_ip") },
			"publish_ip_any_range { tcp . 8000-9999 : 10.1.2.5 } is not in ranges_ip"),
		contract.Break("rule", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead publish") }, `"ranges at any address`),
		contract.Break("owners", func(t *testing.T) { filtertest.NFT(t, w, "flush set inet fairlead owners") },
			"is not in owners"),
		contract.Break("delete table", func(t *testing.T) { filtertest.NFT(t, w, "delete table inet fairlead") },
			"nft table inet fairlead is missing"),
	)
}

// A range is one element in each set, and what one costs is not counted in ports.
func TestPublishRangeIsOneElement(t *testing.T) {
	w := contract.NewHost(t)
	contract.Ensure(t, w, filtertest.PortsOf("c1", "net", "10.1.2.5/24", filtertest.Range("", 8000, 9999)))
	// map, claim, hairpin and their two entries; of both families
	if n := strings.Count(filtertest.State(t, w), "c1/eth0"); n != 10 {
		t.Errorf("%d elements, want 10:\n%s", n, filtertest.State(t, w))
	}
}

// Whoever has a port in common with somebody else at an address in common is told whose it is, before anything is
// changed, be they ranges or not.
func TestPublishRangeConflicts(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b publish.Mapping
		want string // of the error
	}{
		{"equal", filtertest.Range("", 8000, 8010), filtertest.Range("", 8000, 8010),
			"tcp ports 8000-8010 are published in the range 8000-8010 by net/c1/eth0"},
		{"single in range", filtertest.Range("", 8000, 8010), filtertest.TCP("", 8010),
			"tcp port 8010 is published in the range 8000-8010 by net/c1/eth0 and leads to 10.1.2.5"},
		{"single before range", filtertest.Range("", 8000, 8010), filtertest.TCP("", 7999), ""},
		{"single behind range", filtertest.Range("", 8000, 8010), filtertest.TCP("", 8011), ""},
		{"range over single", filtertest.TCP("", 8005), filtertest.Range("", 8000, 8010),
			"tcp port 8005 is published by net/c1/eth0 and leads to 10.1.2.5:80"},
		{"long range over single", filtertest.TCP("", 8005), filtertest.Range("", 1, 65535),
			"tcp port 8005 is published by"},
		{"into the end", filtertest.Range("", 8000, 8010), filtertest.Range("", 8010, 8020),
			"tcp port 8010 is published in the range 8000-8010"},
		{"into the start", filtertest.Range("", 8000, 8010), filtertest.Range("", 7000, 8000),
			"tcp port 8000 is published in the range 8000-8010"},
		{"inside", filtertest.Range("", 8000, 8010), filtertest.Range("", 8002, 8003),
			"tcp ports 8002-8003 are published in the range 8000-8010"},
		{"around", filtertest.Range("", 8000, 8010), filtertest.Range("", 1, 65535),
			"tcp ports 8000-8010 are published in"},
		{"over a border", filtertest.Range("", 4000, 4200), filtertest.Range("", 4090, 4100),
			"tcp ports 4090-4100 are published in"},
		{"beside", filtertest.Range("", 8000, 8010), filtertest.Range("", 8011, 8020), ""},
		{"any, one", filtertest.Range("", 8000, 8010), filtertest.Range("192.0.2.1", 8005, 8020),
			"tcp ports 8005-8010 are published in"},
		{"one, any", filtertest.Range("192.0.2.1", 8000, 8010), filtertest.Range("", 8005, 8020),
			"in the range 8000-8010 at 192.0.2.1 by"},
		{"one, other", filtertest.Range("192.0.2.1", 8000, 8010), filtertest.Range("192.0.2.2", 8005, 8020), ""},
		{"one, single at any", filtertest.Range("192.0.2.1", 8000, 8010), filtertest.TCP("", 8003),
			"tcp port 8003 is published in the range 8000-8010 at 192.0.2.1"},
		{"families", filtertest.Range("192.0.2.1", 8000, 8010), filtertest.Range("2001:db8::1", 8000, 8010), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := contract.NewHost(t)
			a, b := filtertest.PortsOf("c1", "net", "10.1.2.5/24", c.a), filtertest.PortsOf("c2", "net", "10.1.2.6/24",
				c.b)
			contract.Ensure(t, w, a)
			before := filtertest.State(t, w)
			changed, err := b.Ensure(t.Context(), w)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				contract.Verify(t, w, a)
				contract.Verify(t, w, b)
				contract.Remove(t, w, a)
				contract.Verify(t, w, b)
				contract.Remove(t, w, b)
			} else {
				if err == nil || changed || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("changed %v, error %v, want %q", changed, err, c.want)
				}
				if after := filtertest.State(t, w); after != before {
					t.Errorf("the failed one left:\n%s", contract.Difference(before, after))
				}
				contract.Remove(t, w, a)
				contract.Ensure(t, w, b)
				contract.Verify(t, w, b)
				contract.Remove(t, w, b)
			}
			if s := filtertest.State(t, w); strings.Contains(s, "elements") {
				t.Errorf("left:\n%s", s)
			}
		})
	}
}

// The same for whatever comes and goes, against a list of all.
func TestPublishRangesAtRandom(t *testing.T) {
	w := contract.NewHost(t)
	filtertest.MakeTables(t, w)
	rnd := rand.New(rand.NewPCG(1, 2))
	hosts := []string{"", "192.0.2.1", "192.0.2.2"}
	type one struct {
		publish.Ports
		m publish.Mapping
	}
	var all []one
	overlap := func(a, b publish.Mapping) bool {
		return a.HostPort <= b.Last() && b.HostPort <= a.Last() &&
			(a.HostIP == b.HostIP || !a.HostIP.IsValid() || !b.HostIP.IsValid())
	}
	taken := 0
	for i := range 400 {
		if len(all) > 0 && rnd.IntN(3) == 0 {
			n := rnd.IntN(len(all))
			contract.Remove(t, w, all[n])
			all = slices.Delete(all, n, n+1)
			continue
		}
		first := 1 + rnd.IntN(65535)
		if rnd.IntN(2) == 0 {
			first = 1000 + rnd.IntN(300) // where it is crowded
		}
		m := filtertest.Range(hosts[rnd.IntN(3)], uint16(first), 0)
		if rnd.IntN(2) == 0 {
			m.HostPortEnd = uint16(min(65535, first+rnd.IntN(1<<rnd.IntN(13))))
		}
		p := filtertest.PortsOf(fmt.Sprint("c", i), "net", fmt.Sprintf("10.1.%d.%d/24", i/200+1, i%200+1), m)
		p.To6 = netip.Prefix{}
		want := slices.ContainsFunc(all, func(o one) bool { return overlap(o.m, m) })
		if _, err := p.Ensure(t.Context(), w); (err != nil) != want {
			t.Fatalf("%d: %v: conflict is %v, want %v", i, p, err, want)
		} else if err == nil {
			all = append(all, one{p, m})
		} else {
			taken++
		}
	}
	if len(all) < 20 || taken < 50 {
		t.Errorf("%d are there and %d were refused: too few to tell", len(all), taken)
	}
	for _, o := range all {
		contract.Verify(t, w, o)
	}
	for _, o := range all {
		contract.Remove(t, w, o)
	}
	if s := filtertest.State(t, w); strings.Contains(s, "elements") {
		t.Errorf("left:\n%s", s)
	}
}

// Within one container a range stands by for the same range, and no other.
func TestPublishRangeStandsBy(t *testing.T) {
	w := contract.NewHost(t)
	a := filtertest.PortsOf("c1", "one", "10.1.0.5/24", filtertest.Range("", 8000, 8010))
	b := filtertest.PortsOf("c1", "two", "10.2.0.5/24", filtertest.Range("", 8000, 8010))
	contract.Ensure(t, w, a)
	contract.Ensure(t, w, b)
	contract.Verify(t, w, b)
	for _, m := range []publish.Mapping{filtertest.Range("", 8005, 8020), filtertest.TCP("", 8005)} {
		c := filtertest.PortsOf("c1", "three", "10.3.0.5/24", m)
		if _, err := c.Ensure(t.Context(), w); err == nil ||
			!strings.Contains(err.Error(),
				"published in the range 8000-8010 by another attachment of this container, one/c1/eth0: ") {
			t.Errorf("%v: %v", m, err)
		}
	}
	// which is asked first
	contract.Ensure(t, w, filtertest.PortsOf("c1", "three", "10.3.0.5/24", filtertest.Range("192.0.2.1", 8005, 8020)))
	contract.Remove(t, w, a)
	contract.Verify(t, w, b)
	if s := filtertest.State(t, w); !strings.Contains(s,
		"tcp . 8000-8010 comment \""+identity.Tag(b.Owner)+"\" : 10.2.0.5") {
		t.Errorf("nobody took over:\n%s", s)
	}
	if _, err := filtertest.PortsOf("c2", "one", "10.1.0.6/24", filtertest.TCP("", 8003)).Ensure(t.Context(),
		w); err == nil {
		t.Error("another container got the port")
	}
}

// A range whose owner is gone is taken over, in parts too, and his late DEL takes nothing.
//
// clause: P12
func TestPublishRangeOfTheDead(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	a := filtertest.PortsOf("c1", "net", "10.1.2.5/24", filtertest.Range("", 8000, 8010),
		filtertest.Range("192.0.2.1", 9000, 9010))
	contract.Ensure(t, w, a)
	contract.Host(t, w, "ip link del veth1")
	other := &kernel.World{Host: w.Host, Store: w.Store}
	b := filtertest.PortsOf("c2", "net", "10.1.2.6/24", filtertest.Range("", 8005, 8020))
	contract.Ensure(t, other, b)
	if s := filtertest.State(t, w); strings.Contains(s, "10.1.2.5") || strings.Contains(s, "8000-8010") {
		t.Errorf("the dead still has:\n%s", s)
	}
	before := filtertest.State(t, w)
	contract.Remove(t, other, a)
	if after := filtertest.State(t, w); after != before {
		t.Errorf("the late DEL changed %s", contract.Difference(before, after))
	}
	// Of whose address IPAM gave away, whatever address of the host he was asked for at.
	c := filtertest.PortsOf("c3", "net", "10.1.2.6/24", filtertest.Range("192.0.2.1", 8020, 8030))
	contract.Ensure(t, other, c)
	contract.Verify(t, other, c)
	if s := filtertest.State(t, w); strings.Contains(s, "c2/eth0") {
		t.Errorf("the dead still has:\n%s", s)
	}
}

// Mappings that ask for a port twice become one, or an error where they mean different things.
func TestPublishSpans(t *testing.T) {
	shifted := publish.Mapping{Protocol: "tcp", HostPort: 8000, HostPortEnd: 8002, ContainerPort: 80}
	for _, c := range []struct {
		ports []publish.Mapping
		want  string
	}{
		{[]publish.Mapping{filtertest.Range("", 8000, 8010), filtertest.Range("", 8005, 8020),
			filtertest.Range("", 8020, 8020)}, "[8000-8020]"},
		{[]publish.Mapping{filtertest.Range("", 8000, 8010), filtertest.Range("", 8011, 8020)},
			"[8000-8010 8011-8020]"},
		{[]publish.Mapping{filtertest.Range("", 8000, 8010), filtertest.Range("192.0.2.1", 8005, 8020)},
			"[8000-8010 8005-8020]"},
		{[]publish.Mapping{shifted, shifted}, "[8000 8001 8002]"},
		{[]publish.Mapping{shifted, filtertest.TCP("", 8001)},
			"tcp port 8001 is asked for twice, to lead to 81 and to 80"},
		{[]publish.Mapping{filtertest.Range("", 8000, 8010), filtertest.TCP("", 8001)},
			"tcp port 8001 is asked for twice, to lead to 8001 and to 80"},
		{[]publish.Mapping{{Protocol: "tcp", HostPort: 8000, HostPortEnd: 7000, ContainerPort: 8000}},
			"want tcp, udp or sctp"},
		{[]publish.Mapping{{Protocol: "tcp", HostPort: 1, HostPortEnd: 10, ContainerPort: 65530}},
			"want tcp, udp or sctp"},
		{[]publish.Mapping{{Protocol: "tcp", HostPort: 1, HostPortEnd: 10000, ContainerPort: 2}}, "at most 4096 ports"},
	} {
		got, err := publish.SpansText(c.ports)
		if err != nil {
			if e := spec.AsError(err, 0); e.Code != spec.CodeConfig || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v", c.ports, err)
			}
		} else if fmt.Sprint(got) != c.want {
			t.Errorf("%v: %v, want %s", c.ports, got, c.want)
		}
	}
}

// What owners says of the longest places there are is read again, tag and all.
func TestOwnersSayAll(t *testing.T) {
	w := contract.NewHost(t)
	long := spec.Owner{Network: strings.Repeat("n", 60), ContainerID: strings.Repeat("c", 64), IfName: "eth0"}
	m := filtertest.Range("2001:db8:1111:2222:3333:4444:5555:6666", 10000, 20000)
	m.Protocol = "sctp"
	p := publish.Ports{Owner: long, To6: contract.Prefix("2001:db8:1111:2222:3333:4444:5555:7777/64"), SNAT: true,
		Mappings: []publish.Mapping{m}, Conditions6: []string{"iifname eth0"}}
	filtertest.MakeTables(t, w)
	before := filtertest.Elements(t, w)
	contract.Ensure(t, w, p)
	contract.Verify(t, w, p)
	if err := filtertest.SweepNFT(t.Context(), w, long.Network, func([8]byte) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if after := filtertest.Elements(t, w); after != before {
		t.Errorf("left %s", contract.Difference(before, after))
	}
}

// Each port of a range leads to its own of the container, from everywhere that a single one does.
//
// clause: K1
func TestPublishedRangePaths(t *testing.T) {
	eachBridgeCall(t, func(t *testing.T, l *filtertest.Lab) {
		shifted := publish.Mapping{Protocol: "tcp", HostPort: 9000, HostPortEnd: 9002, ContainerPort: 8000}
		udp := filtertest.Range("", 8000, 8010)
		udp.Protocol = "udp"
		p := filtertest.PortsOfA(l, filtertest.Range("", 8000, 8010), udp, shifted,
			filtertest.Range("192.0.2.9", 7000, 7001),
			filtertest.Range("2001:db8::9", 7000, 7001))
		l.Ensure(p, l.W)
		for _, port := range []string{"8000", "8002", "8010", "8011", "7001"} {
			l.Serve(l.A, "a"+port, "tcp", ":"+port)
			l.Serve(l.A, "a"+port, "udp", ":"+port)
		}
		for _, network := range []string{"tcp", "udp"} {
			for _, port := range []string{"8000", "8002", "8010"} {
				l.Expect(l.Neighbour, network, "192.0.2.1:"+port, "a"+port+" 192.0.2.2")
				l.Expect(l.Neighbour, network, "[2001:db8::1]:"+port, "a"+port+" 2001:db8::2")
			}
			l.Expect(l.W.Host, network, "127.0.0.1:8002", "a8002 10.1.2.1")
			l.Expect(l.W.Host, network, "[2001:db8::1]:8002", "a8002 2001:db8::1")
			l.Expect(l.A, network, "192.0.2.1:8002", "a8002 10.1.2.1")
			l.Expect(l.A, network, "[2001:db8::1]:8010", "a8010 fd00::1")
			l.Expect(l.B, network, "10.1.2.1:8002", "a8002 10.1.2.1")
			l.Expect(l.B, network, "[fd00::1]:8002", "a8002 fd00::1")
		}
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:8011", "")
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:9002", "a8002 192.0.2.2")
		l.Expect(l.Neighbour, "tcp", "[2001:db8::1]:9000", "a8000 2001:db8::2")
		l.Expect(l.B, "tcp", "192.0.2.1:9002", "a8002 10.1.2.1")
		l.Expect(l.Neighbour, "tcp", "192.0.2.9:7001", "a7001 192.0.2.2")
		l.Expect(l.Neighbour, "tcp", "[2001:db8::9]:7001", "a7001 2001:db8::2")
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:7001", "")
		contract.Verify(t, l.W, p)
		contract.Remove(t, l.W, p)
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:8002", "")
	})
}
