package repair_test

import (
	"slices"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/internal/repair"
)

// A disturbance is what takes our rules away.
type disturbance struct {
	name string
	do   func(t *testing.T)
}

func disturbances() []disturbance {
	run := func(args ...string) func(*testing.T) {
		return func(t *testing.T) { nstest.Run(t, args[0], args[1:]...) }
	}
	return []disturbance{
		{"nft flush ruleset", run("nft", "flush", "ruleset")},
		{"nft delete table", run("nft", "delete", "table", "inet", "fairlead")},
		{"nft flush table", run("nft", "flush", "table", "inet", "fairlead")},
	}
}

// forgetUDPFlows deletes flows that began while rules were missing. There may be none: without a rule that needs it, the
// kernel tracks no flow, and conntrack(8) ends with 1.
func forgetUDPFlows(t *testing.T) {
	t.Helper()
	nstest.Run(t, "sh", "-c", "conntrack -D -p udp || conntrack -C")
}

// TestAdvisoryCVE202554388: after a reload of the packet filter, ports that are published on 127.0.0.1 must not be
// reachable from the LAN while and after the rules are restored. A neighbour tries all the while.
func TestAdvisoryCVE202554388(t *testing.T) {
	s := newSite(t)
	neighbour := s.neighbour()
	lan := s.network("lan", "10.9.0.0/24")
	web := s.add(lan, "web", "127.0.0.1:7000:70", "8080:80")
	udp := s.udp(lan, "dns", "127.0.0.1:7001:71")
	for range 20 { // others, so that a repair takes its time
		s.add(lan, s.nextID())
	}
	visits := s.visit(neighbour, "192.0.2.1:8080", web.Netns, 80)
	attack := s.stream(neighbour, "127.0.0.1:7001", udp.Netns, 71)
	visits.gap(t, "before")
	if n := attack.settles(t); n > 0 {
		t.Fatalf("%d datagrams for 127.0.0.1 came through before anything was disturbed", n)
	}

	// With the protection taken out it opens.
	nstest.Run(t, "nft", "flush", "chain", "inet", "fairlead", "guard")
	attack.opens(t, "without the chain guard")
	s.repair()
	forgetUDPFlows(t)
	closed := attack.settles(t)

	for _, d := range disturbances() {
		visits.gap(t, d.name)
		start := time.Now()
		d.do(t)
		flushed := time.Since(start)
		report := s.repair()
		gap := visits.gap(t, d.name)
		t.Logf("%s took %v, repair %v; a published port did not answer for %v", d.name, flushed.Round(time.Millisecond),
			report.Took.Round(time.Millisecond), gap.Round(time.Millisecond))
		s.whole(d.name, web, udp)
		if n := attack.settles(t); n != closed {
			t.Errorf("%s: %d datagrams for 127.0.0.1 of the host came through from the LAN", d.name, n-closed)
			closed = n
		}
	}
}

// TestAdvisoryCVE202554410: networks that are isolated from each other stay so through a reload of the packet
// filter and a repair. A container tries all the while to reach one of the other network.
func TestAdvisoryCVE202554410(t *testing.T) {
	s := newSite(t)
	const isolated = `{"type":"firewall","ingressPolicy":"isolated"}`
	red, blue := s.network("red", "10.9.1.0/24", isolated), s.network("blue", "10.9.2.0/24", isolated)
	a, b := s.add(red, "a"), s.add(blue, "b")
	for range 20 {
		s.add(red, s.nextID())
	}
	attack := s.stream(a.Netns, b.ip+":5000", b.Netns, 5000)
	if n := attack.settles(t); n > 0 {
		t.Fatalf("%d datagrams came through before anything was disturbed", n)
	}

	// With the protection taken out it opens.
	nstest.Run(t, "nft", "flush", "ruleset")
	nstest.Run(t, "sh", "-c",
		"ip -4 rule | grep -v 'lookup \\(local\\|main\\|default\\)$' | while IFS=: read n rest; do ip -4 rule del pref $n; done")
	attack.opens(t, "without the rules")
	s.repair()
	forgetUDPFlows(t)
	closed := attack.settles(t)
	s.whole("repaired", a, b)

	// A packet that the table has marked on its way in, and that meets no rule any more on its way through, was in
	// flight at the instant of the flush; the kernel waits for none. No other comes.
	inFlight := int64(1)
	for _, d := range disturbances() {
		d.do(t)
		report := s.repair()
		s.whole(d.name, a, b)
		t.Logf("%s: repair took %v", d.name, report.Took.Round(time.Millisecond))
		n := attack.settles(t)
		if passed := n - closed; passed > 0 && passed <= inFlight {
			closed, inFlight = n, inFlight-passed
		}
		if n != closed {
			t.Errorf("%s: %d datagrams came through between isolated networks", d.name, n-closed)
			closed = n
		}
	}
}

// TestShut: while our rules are gone, the route to 127.0.0.0/8 that published ports need would let containers in to
// what listens on 127.0.0.1 of the host. The unit takes it away before a restart of the packet filter's service.
func TestShut(t *testing.T) {
	s := newSite(t)
	lan := s.network("lan", "10.9.0.0/24")
	web, bad := s.add(lan, "web", "8080:80"), s.add(lan, "bad")
	nstest.RunIn(t, bad.Netns, "sh", "-ec", `
		sysctl -qw net.ipv4.conf.all.route_localnet=1; ip addr flush dev lo
		ip rule add pref 0 lookup 99; ip route add 127.0.0.0/8 via 10.9.0.1 table 99`)
	attack := s.stream(bad.Netns, "127.0.0.1:9999", "", 9999)
	if n := attack.settles(t); n > 0 {
		t.Fatalf("%d datagrams for 127.0.0.1 came through before anything was disturbed", n)
	}
	flush := func() { nstest.Run(t, "nft", "flush", "ruleset") }
	flush()
	attack.opens(t, "flushed, and nothing shut")
	s.repair()
	forgetUDPFlows(t)
	closed := attack.settles(t)

	did, err := repair.Shut(bounded(t))
	if err != nil || !slices.Equal(did, []string{"sysctl net/ipv4/conf/lan/route_localnet=0"}) {
		t.Fatalf("shut: %q, %v", did, err)
	}
	flush()
	attack.settles(t)
	s.repair()
	if n := attack.settles(t); n != closed {
		t.Errorf("%d datagrams for 127.0.0.1 of the host came through", n-closed)
	}
	s.whole("repaired", web, bad)
}

// An ADD of one network finds our tables flushed and makes its own part anew. What is closed otherwise stays closed
// all the same, in both directions.
func TestAddOpensNothing(t *testing.T) {
	for _, policies := range [][2]string{{"isolated", "isolated"}, {"isolated", "strict"}, {"strict", "isolated"},
		{"strict", "strict"}} {
		t.Run(policies[0]+" beside "+policies[1], func(t *testing.T) {
			s := newSite(t)
			policy := func(i int) string { return `{"type":"firewall","ingressPolicy":"` + policies[i] + `"}` }
			red, blue := s.network("red", "10.9.1.0/24", policy(0)), s.network("blue", "10.9.2.0/24", policy(1))
			a, b := s.add(red, "a"), s.add(blue, "b")
			attack := s.stream(a.Netns, b.ip+":5000", b.Netns, 5000)
			back := s.stream(b.Netns, a.ip+":5000", a.Netns, 5000)
			nstest.Run(t, "nft", "flush", "ruleset")
			// A datagram of each direction may have been in flight at that instant, as in TestAdvisoryCVE202554410.
			there, here := attack.settles(t), back.settles(t)
			if there > 1 || here > 1 {
				t.Errorf("flushed: %d datagrams came through between closed networks, and %d back", there, here)
			}
			s.add(red, "another")
			if t1, h1 := attack.settles(t), back.settles(t); t1 != there || h1 != here {
				t.Errorf("after an ADD, %d datagrams more came through, and %d back", t1-there, h1-here)
			}
			s.repair()
			s.whole("repaired", a, b)
			if t1, h1 := attack.settles(t), back.settles(t); t1 != there || h1 != here {
				t.Errorf("repaired, %d datagrams more came through, and %d back", t1-there, h1-here)
			}
		})
	}
}
