package repair_test

import (
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A real firewalld reloads: nothing that is closed opens, and what is published answers again.
func TestFirewalldReloads(t *testing.T) {
	s := newSite(t)
	nstest.StartFirewalld(s, "/proc/self/ns/net")
	neighbour := s.neighbour()
	const isolated = `{"type":"firewall","ingressPolicy":"isolated"}`
	red, blue := s.network("red", "10.9.1.0/24", isolated), s.network("blue", "10.9.2.0/24", isolated)
	a, b := s.add(red, "a", "8080:80"), s.udp(blue, "b", "127.0.0.1:7001:71")
	visits := s.visit(neighbour, "192.0.2.1:8080", a.Netns, 80)
	lan := s.stream(neighbour, "127.0.0.1:7001", b.Netns, 71)
	across := s.stream(a.Netns, b.ip+":5000", b.Netns, 5000)
	visits.gap(t, "before")
	for _, how := range []string{"--reload", "--complete-reload"} {
		start := time.Now()
		nstest.Run(t, "firewall-cmd", how)
		reloaded := time.Since(start)
		report := s.repair()
		gap := visits.gap(t, how)
		s.whole(how, a, b)
		t.Logf("firewall-cmd %s took %v, repair %v; a published port did not answer for %v", how,
			reloaded.Round(time.Millisecond), report.Took.Round(time.Millisecond), gap.Round(time.Millisecond))
		if n := lan.settles(t); n > 0 {
			t.Errorf("%s: %d datagrams for 127.0.0.1 of the host came through from the LAN", how, n)
		}
		if n := across.settles(t); n > 0 {
			t.Errorf("%s: %d datagrams came through between isolated networks", how, n)
		}
	}
	// A watcher hears of it by itself. The first repair may come in the middle of the reload.
	reports, stop := s.watch()
	<-reports
	nstest.Run(t, "firewall-cmd", "--reload")
	for done := bounded(t).Done(); ; {
		select {
		case <-reports:
		case <-done:
			t.Fatal("nobody repairs: ", s.check(a, b))
		}
		if s.check(a, b) == nil {
			break
		}
	}
	visits.gap(t, "watched")
	stop()
	s.whole("watched", a, b)
}
