package repair_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/plugin"
)

// A watcher repairs what somebody else flushes, by itself and once, and does not take its own changes, or those of
// attachments that come and go, for a disturbance.
func TestWatch(t *testing.T) {
	s := newSite(t)
	lan := s.network("lan", "10.9.0.0/24")
	web := s.add(lan, "web", "8080:80")
	neighbour := s.neighbour()
	visits := s.visit(neighbour, "192.0.2.1:8080", web.Netns, 80)
	ctx := bounded(t)
	reports, stop := s.watch()
	next := func(what, want string) {
		t.Helper()
		select {
		case r := <-reports:
			if got := states(r); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		case <-ctx.Done():
			t.Fatalf("%s: nobody repairs", what)
		}
	}
	next("at first", "lan/web/eth0 in order")
	for _, d := range disturbances() {
		visits.gap(t, d.name)
		start := time.Now()
		d.do(t)
		if d.name == "nft flush table" {
			next(d.name, "lan/web/eth0 in order") // its elements stayed
		} else {
			next(d.name, "lan/web/eth0 repaired")
		}
		s.whole(d.name, web)
		t.Logf("%s: whole again after %v, and a published port did not answer for %v", d.name,
			time.Since(start).Round(time.Millisecond), visits.gap(t, d.name).Round(time.Millisecond))
	}
	other := s.add(lan, "other", "8081:80")
	if err := s.Del(bounded(t), lan, other.Attachment); err != nil {
		t.Error(err)
	}
	nstest.Run(t, "nft", "add", "rule", "inet", "fairlead", "user", "counter")
	nstest.Run(t, "nft", "flush", "chain", "inet", "fairlead", "user")
	nstest.Run(t, "nft", "delete", "table", "inet", "fairlead")
	next("after all that is no disturbance", "lan/web/eth0 repaired")
	stop()
	if len(reports) > 0 {
		t.Errorf("%d repairs for nothing", len(reports))
	}
}

// watch repairs whenever it is needed, until the test ends or stop is called.
func (s *site) watch() (reports chan *repair.Report, stop func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(bounded(s))
	reports, ended := make(chan *repair.Report, 100), make(chan error, 1)
	r := &repair.Repairer{Runtime: s.Runtime, Plugins: plugin.All(), Firewall: true}
	go func() {
		ended <- r.Watch(ctx, func(r *repair.Report, err error) {
			if err != nil {
				s.Error(err)
			}
			reports <- r
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			s.Errorf("the watcher ended with %v", err)
		}
	})
	s.Cleanup(stop)
	return reports, stop
}
