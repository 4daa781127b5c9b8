package repair_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// firewalld runs a firewalld on a bus of its own, for the time of the test.
func (s *site) firewalld() {
	s.Helper()
	dir := s.TempDir()
	bus, conf := filepath.Join(dir, "bus"), filepath.Join(dir, "bus.conf")
	err := os.WriteFile(conf, []byte(`<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=`+bus+`</listen><auth>EXTERNAL</auth>
 <policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>`), 0o644)
	if err != nil {
		s.Fatal(err)
	}
	nstest.NeedProgram(s, "dbus-daemon", "firewalld")
	nstest.Run(s, "mkdir", filepath.Join(dir, "etc")) // the defaults; an ordinary user cannot read the host's
	nstest.Run(s, "mkdir", "-p", "/run/firewalld")
	if t, ok := s.TB.(*testing.T); ok {
		t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+bus)
	}
	s.background("dbus-daemon", "--config-file="+conf, "--nofork", "--nopidfile")
	ctx := bounded(s)
	for exec.CommandContext(ctx, "dbus-send", "--system", "--print-reply", "--dest=org.freedesktop.DBus", "/",
		"org.freedesktop.DBus.GetId").Run() != nil {
		if ctx.Err() != nil {
			s.Fatal("no bus")
		}
	}
	s.background("firewalld", "--nofork", "--nopid", "--system-config", filepath.Join(dir, "etc"), "--log-file",
		filepath.Join(dir, "log"))
	for {
		out, _ := exec.CommandContext(ctx, "firewall-cmd", "--state").CombinedOutput()
		if strings.Contains(string(out), "running") && !strings.Contains(string(out), "not") {
			return
		}
		if ctx.Err() != nil {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			s.Fatalf("firewalld: %s\n%s", out, log)
		}
	}
}

// background runs a program until the end of the test.
func (s *site) background(name string, args ...string) {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, name, args...)
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { cancel(); cmd.Wait() })
}

// A real firewalld reloads: nothing that is closed opens, and what is published answers again.
func TestFirewalldReloads(t *testing.T) {
	s := newSite(t)
	s.firewalld()
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
