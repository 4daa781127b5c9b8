package daemon_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A container gets its address from a server on the bridge, keeps it, and gives it back over the link before that goes.
// clause: I1 I4 P9 P12
func TestBridge(t *testing.T) {
	l := newLAN(t)
	srv := l.dnsmasq(t, "--dhcp-option=121,0.0.0.0/0,10.9.0.254,192.168.7.0/24,0.0.0.0",
		"--dhcp-option=option:dns-server,10.9.0.53", "--domain=lan.example")
	startDaemon(t)
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "STATUS")
	a.must(t, "ADD")
	if !strings.HasPrefix(a.ip(t), "10.9.0.") || len(a.result.Routes) != 2 ||
		a.result.Routes[0].GW.String() != "10.9.0.254" ||
		a.result.DNS.Domain != "lan.example" || len(a.result.DNS.Nameservers) != 1 {
		t.Errorf("result %s", a.raw)
	}
	if out := nstest.RunIn(t, a.netns, "ip", "addr", "show", "eth0"); !strings.Contains(out, a.ip(t)) {
		t.Errorf("no %s on\n%s", a.ip(t), out)
	}
	a.must(t, "CHECK")
	if list := entries(t); len(list) != 1 || list[0].State != "bound" || len(files(t)) != 1 {
		t.Errorf("the daemon keeps %+v in %q", list, files(t))
	}
	a.must(t, "DEL")
	srv.says(t, "DHCPRELEASE", 1)
	if list := entries(t); len(list) != 0 || len(files(t)) != 0 {
		t.Errorf("after DEL the daemon keeps %+v in %q", list, files(t))
	}
	a.must(t, "DEL")
	if err := a.call(t, "CHECK"); err == nil {
		t.Error("CHECK of nothing succeeds")
	}
}

// A killed daemon's leases are its successor's, which asks the server about them by REQUEST.
func TestRestart(t *testing.T) {
	l := newLAN(t)
	srv := l.dnsmasq(t)
	d := startDaemon(t)
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "ADD")
	d.end(syscall.SIGKILL)
	d = startDaemon(t) // the socket of the first one is there, and nobody behind it
	srv.says(t, "DHCPACK", 2)
	a.must(t, "CHECK")
	if list := entries(t); len(list) != 1 || list[0].Lease.Addresses[0].Prefix.String() != a.ip(t) {
		t.Errorf("the daemon keeps %+v, want %s", list, a.ip(t))
	}
	if n := strings.Count(srv.text(), "DHCPDISCOVER"); n == 0 || strings.Contains(srv.text(), "DHCPRELEASE") {
		t.Error("the lease was given back, or never asked for")
	}
	a.must(t, "DEL")
	srv.says(t, "DHCPRELEASE", 1)
	d.end(syscall.SIGTERM)
}
