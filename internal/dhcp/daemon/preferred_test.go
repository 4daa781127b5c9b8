package daemon_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// An address that its server wants given up is deprecated by the kernel in time, whether somebody keeps the lease by
// then or not, and stays usable until the lease is over; a link that goes down keeps it.
func TestPreferred(t *testing.T) {
	l := newLAN6(t)
	srv := l.kea6(t, "fd00:9::100-fd00:9::1ff", 3600, 2000, 3000, `,"preferred-lifetime":8`)
	l.dnsmasq(t, "--dhcp-range=fd00:9::,ra-only", "--enable-ra")
	d := startDaemon(t)
	a := newAttachment(t, "c1", over("bridge", `"ipv4":"off","ipv6":"dhcpv6"`))
	a.must(t, "ADD")
	ns, err := kernel.Open(a.netns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	await := func(what string) {
		t.Helper()
		out := ""
		err := rtnl.Await(ns, t.Context(), nstest.Patience(t), []uint{rtnl.IPv6AddrEvents}, func() (bool, error) {
			out = nstest.RunIn(t, a.netns, "ip", "-6", "-o", "addr", "show", "dev", "eth0", "scope", "global")
			return strings.Contains(out, what), nil
		})
		if err != nil {
			t.Fatalf("no %q: %v: %s", what, err, out)
		}
		if !strings.Contains(out, "valid_lft forever") {
			t.Errorf("for the kernel it has an end: %s", out)
		}
	}
	await("sec\n") // of preferred_lft, which was forever
	d.end(syscall.SIGKILL)
	await(" deprecated ")
	a.show(t, "link", "set", "eth0", "down")
	a.show(t, "link", "set", "eth0", "up")
	await(" deprecated ")
	startDaemon(t)
	srv.says(t, "CONFIRM", 1)
	routes := []uint{rtnl.IPv6RouteEvents} // the router, which went with the link, is known again when it advertises itself
	if err := rtnl.Await(ns, t.Context(), nstest.Patience(t), routes, func() (bool, error) {
		return nstest.RunIn(t, a.netns, "ip", "-6", "route", "show", "default") != "", nil
	}); err != nil {
		t.Fatal(err)
	}
	a.must(t, "CHECK")
	a.must(t, "DEL")
}
