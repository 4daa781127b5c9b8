package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// newLink is eth0 of a namespace of its own, which carries packets.
func newLink(t *testing.T, promote int) (link reached, ip func(args ...string) string) {
	t.Helper()
	path := nstest.NewNS(t)
	nstest.RunIn(t, path, "sh", "-ec",
		fmt.Sprintf("echo %d >/proc/sys/net/ipv4/conf/all/promote_secondaries; ip link add eth0 type veth peer name peer; ip link set peer up; ip link set eth0 up",
			promote))
	ns, err := kernel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	l, err := rtnl.LinkByName(ns, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	return reachedLink(ns, l), func(args ...string) string {
		t.Helper()
		return nstest.RunIn(t, path, "ip", args...)
	}
}

func leaseOf(addr, router string) *dhcp.Lease {
	return &dhcp.Lease{Addresses: []dhcp.Address{{Prefix: netip.MustParsePrefix(addr)}}, Valid: time.Hour,
		T1: time.Hour / 2, T2: time.Hour / 8 * 7, Asked: time.Now(),
		Routes: []spec.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParseAddr(router)},
			{Dst: netip.MustParsePrefix("10.11.0.0/24"), GW: netip.MustParseAddr(router)}}}
}

// Another address of the same subnet takes the place of the old one, whatever the kernel does with those that came
// later; what others put on the link stays, and routes have the metric that ADD gave them.
func TestExchangeInSubnet(t *testing.T) {
	for promote := range 2 {
		for _, metric := range []int{0, 500} {
			t.Run(fmt.Sprintf("promote %d metric %d", promote, metric), func(t *testing.T) {
				link, ip := newLink(t, promote)
				of := ""
				if metric != 0 {
					of = fmt.Sprint(" metric ", metric)
				}
				ip("addr", "add", "10.9.0.50/24", "dev", "eth0")
				ip("addr", "add", "10.9.0.200/24", "dev", "eth0")
				for _, r := range []string{"default via 10.9.0.1" + of, "10.11.0.0/24 via 10.9.0.1" + of,
					"10.12.0.0/24 via 10.9.0.3", "10.13.0.0/24 via 10.9.0.3 table 77"} {
					ip(append([]string{"route", "add"}, append(strings.Fields(r), "dev", "eth0")...)...)
				}
				if err := exchange(link, leaseOf("10.9.0.50/24", "10.9.0.1"), leaseOf("10.9.0.60/24", "10.9.0.2"), metric,
					false); err != nil {
					t.Fatal(err)
				}
				got := ip("-4", "addr", "show", "eth0") + ip("-4", "route", "show", "table", "all", "dev", "eth0")
				for _, words := range []string{"inet 10.9.0.60/24", "inet 10.9.0.200/24", "default via 10.9.0.2" + of,
					"10.11.0.0/24 via 10.9.0.2" + of, "10.12.0.0/24 via 10.9.0.3", "10.13.0.0/24 via 10.9.0.3 table 77"} {
					if !strings.Contains(got, words) {
						t.Errorf("no %s in\n%s", words, got)
					}
				}
				for _, words := range []string{"10.9.0.50", "10.9.0.1 "} {
					if strings.Contains(got, words) {
						t.Errorf("%s is left in\n%s", words, got)
					}
				}
				if n := strings.Count(got, "metric"); n != min(metric, 2) {
					t.Errorf("%d routes have a metric:\n%s", n, got)
				}
			})
		}
	}
}

// newTestKeeper keeps a lease without a server.
func newTestKeeper(t *testing.T, l *dhcp.Lease) *keeper {
	d := &Daemon{store: store{t.TempDir()}}
	return d.newKeeper(nil, leaseFile{Format: format, Protocol: dhcp.DHCPv4,
		Ask: dhcp.Ask{Owner: spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}}, Placed: true, Lease: l})
}

// What cannot be put on the link is not taken for done: it is tried again for a while, also by the next daemon, and
// nothing of what was there before is left then.
func TestPutAgain(t *testing.T) {
	link, ip := newLink(t, 0)
	ip("addr", "add", "10.9.0.50/24", "dev", "eth0")
	ip("route", "add", "default", "via", "10.9.0.1")
	k := newTestKeeper(t, leaseOf("10.9.0.50/24", "10.9.0.1"))
	l := leaseOf("10.9.0.60/24", "10.10.0.1") // out of reach
	if err := k.bind(link, l); err != nil {
		t.Fatal(err)
	}
	for n := range maxPuts {
		p, begin, end := k.next(time.Now())
		if p != placing || begin.After(time.Now()) {
			t.Fatalf("after %d tries it is to %v at %v", n, p, begin)
		}
		err := k.place(link)
		if err == nil {
			t.Fatal("a route to nowhere is there")
		}
		if at := k.after(p, end, err); !at.After(time.Now()) {
			t.Errorf("again at once after %d tries", n)
		}
	}
	if p, _, _ := k.next(time.Now()); p != renewing {
		t.Errorf("it is to %v", p)
	}
	if r, err := k.d.store.read(k.d.store.path(k.rec.Ask.Owner, dhcp.DHCPv4)); err != nil || r.Was == nil ||
		r.Lease.Prefixes()[0] != l.Prefixes()[0] {
		t.Errorf("the file has %+v, %v", r, err)
	}
	ip("addr", "add", "10.10.0.9/24", "dev", "eth0")
	if err := k.bind(link, l); err != nil { // as at the next renewal
		t.Fatal(err)
	}
	got := ip("addr", "show", "eth0") + ip("route")
	if k.rec.Was != nil || !strings.Contains(got, "10.9.0.60/24") || !strings.Contains(got, "default via 10.10.0.1") ||
		strings.Contains(got, "10.9.0.50") {
		t.Errorf("left %+v, and\n%s", k.rec.Was, got)
	}
}

// A lease that is refused after somebody took its address off the link is followed by one that goes there; one whose
// address was never there, as a virtual machine's, by none.
func TestRefusedWithoutAddress(t *testing.T) {
	for _, placed := range []bool{true, false} {
		link, ip := newLink(t, 0)
		k := newTestKeeper(t, leaseOf("10.9.0.50/24", "10.9.0.1"))
		k.rec.Placed = placed
		k.lose(link, context.Canceled)
		if err := k.bind(link, leaseOf("10.9.0.60/24", "10.9.0.2")); err != nil {
			t.Fatal(err)
		}
		if got := ip("addr", "show", "eth0"); strings.Contains(got, "10.9.0.60/24") != placed || k.lost != nil {
			t.Errorf("placed %v: lost %v\n%s", placed, k.lost, got)
		}
	}
}
