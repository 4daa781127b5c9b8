package v6

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// clause: P25
func TestGatewayFromRouter(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	l := n.host(false)
	n.dnsmasq("--dhcp-range=fd00:1::100,fd00:1::1ff,64,2m", "--dhcp-option=option6:dns-server,[fd00:1::53]",
		"--ra-param=br0,mtu:1400,0,1200")
	got := acquire(t, l, owner("one"))
	router := netip.MustParseAddr(n.linkLocal())
	if got.Gateway != router || len(got.Routes) != 1 || got.Routes[0].GW != router ||
		got.Routes[0].Dst.String() != "::/0" {
		t.Errorf("gateway is %v, routes %v, want %v", got.Gateway, got.Routes, router)
	}
	if got.MTU != 1400 {
		t.Errorf("MTU is %d", got.MTU)
	}
	if out := show(t, l, "route"); !strings.Contains(out, "default via "+router.String()) ||
		!strings.Contains(out, "fd00:1::/64") {
		t.Errorf("the kernel's routes are %s", out)
	}
	if out := show(t, l, "addr", "show", "scope", "global"); strings.TrimSpace(out) != "" {
		t.Errorf("the link has %s", out)
	}

	// Another network's default route stays the only one.
	second := n.host(false)
	show(t, second, "link", "set", "lo", "up")
	show(t, second, "route", "add", "default", "dev", "lo", "metric", "512")
	acquire(t, second, owner("two"))
	if out := show(t, second, "route"); strings.Contains(out, "default via") {
		t.Errorf("the kernel's routes are %s", out)
	}
	third := owner("three") // unless it has a metric of its own
	third.Metric = 2000
	got = acquire(t, second, third)
	// The router may answer later than an ADD waits for it, on a machine that is busy; the kernel has its route then all
	// the same.
	out := ""
	err := rtnl.Await(second.NS, t.Context(), nstest.Patience(t), []uint{rtnl.IPv6RouteEvents}, func() (bool, error) {
		out = show(t, second, "route")
		return strings.Contains(out, "default via "+router.String()+" dev eth0 proto ra metric 2000"), nil
	})
	if err != nil {
		take, _ := procsys.Get(second.NS, "net/ipv6/conf/eth0/accept_ra_defrtr")
		metric, _ := procsys.Get(second.NS, "net/ipv6/conf/eth0/ra_defrtr_metric")
		t.Errorf("accept_ra_defrtr is %s, ra_defrtr_metric %s, the lease %+v, and the kernel's routes are %s", take, metric,
			got, out)
	}
}

func TestSLAAC(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64", "fd00:2::1/64")
	l := n.host(true)
	n.dnsmasq("--dhcp-range=fd00:1::,slaac,64,1h", "--dhcp-range=fd00:2::,ra-only,64,1h",
		"--dhcp-option=option6:dns-server,[fd00:1::53]", "--dhcp-option=option6:domain-search,a.example,b.example", "--ra-param=br0,mtu:1400,0,1200")
	got, err := SLAAC{}.Acquire(nstest.Context(t), l, owner("one"))
	if err != nil {
		t.Fatal(err)
	}
	ps := got.Prefixes()
	slices.SortFunc(ps, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	if len(ps) != 2 || ps[0].Masked().String() != "fd00:1::/64" || ps[1].Masked().String() != "fd00:2::/64" {
		t.Fatalf("addresses are %v", ps)
	}
	out := show(t, l, "addr", "show", "scope", "global")
	for _, p := range ps {
		if !strings.Contains(out, p.String()) {
			t.Errorf("%v is not among %s", p, out)
		}
	}
	if strings.Contains(out, "tentative") {
		t.Errorf("not sure of %s", out)
	}
	if got.Gateway.String() != n.linkLocal() || got.MTU != 1400 || got.T1 != dhcp.Forever || !got.Over().IsZero() {
		t.Errorf("lease is %+v", got)
	}
	if !slices.Equal(got.DNS.Nameservers, []string{"fd00:1::53"}) ||
		!slices.Equal(got.DNS.Search, []string{"a.example", "b.example"}) {
		t.Errorf("DNS is %+v", got.DNS)
	}
	for _, f := range []func() (*dhcp.Lease, error){
		func() (*dhcp.Lease, error) { return SLAAC{}.Renew(t.Context(), l, owner("one"), got) },
		func() (*dhcp.Lease, error) { return SLAAC{}.Confirm(t.Context(), l, owner("one"), got) },
	} {
		if same, err := f(); err != nil || !same.SameConfiguration(got) {
			t.Errorf("%+v, %v", same, err)
		}
	}
}

// What routers leave to DHCPv6 is asked for there.
func TestStateless(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	l := n.host(false)
	ra := &advert{other: true, lifetime: 30 * time.Minute,
		prefixes: []advertPrefix{{prefix: netip.MustParsePrefix("fd00:1::/64"), auto: true}}}
	n.router(ra)
	n.kea("fd00:1::100-fd00:1::1ff", "", "")
	slow := Client{First: 10 * time.Second} // a busy machine answers late
	got, err := SLAAC{Client: slow}.Acquire(nstest.Context(t), l, owner("one"))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Addresses) != 1 || !slices.Equal(got.DNS.Nameservers, []string{"fd00:1::53", "fd00:1::54"}) ||
		len(got.DNS.Search) != 2 {
		t.Errorf("lease is %+v", got)
	}
}

// What no interface identifier fits is ignored (RFC 4862, 5.5.3 d): the kernel would be waited for in vain.
func TestPrefixesIgnored(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	l := n.host(false)
	ra := &advert{lifetime: 30 * time.Minute}
	for _, p := range []string{"fd00:8::/63", "fd00:1::/64", "fd00:9::/65"} {
		ra.prefixes = append(ra.prefixes, advertPrefix{prefix: netip.MustParsePrefix(p), auto: true, valid: time.Hour,
			preferred: time.Hour})
	}
	if got := prefixes([]*advert{ra}); len(got) != 1 || got[0].String() != "fd00:1::/64" {
		t.Errorf("addresses are to be of %v", got)
	}
	n.router(ra)
	got, err := SLAAC{}.Acquire(nstest.Context(t), l, owner("one"))
	if err != nil || len(got.Addresses) != 1 || got.Addresses[0].Prefix.Masked().String() != "fd00:1::/64" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestSilence(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	l := n.host(false)
	_, err := SLAAC{}.Acquire(within(t, 2*time.Second), l, owner("one"))
	wantErr(t, err, dhcp.ErrNoServer)
	_, err = Client{}.Acquire(within(t, 2*time.Second), l, owner("one"))
	wantErr(t, err, dhcp.ErrNoServer)

	n.router(&advert{managed: true, lifetime: time.Hour})
	slaac := func(l dhcp.Link) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := SLAAC{}.Acquire(ctx, l, owner("one"))
			return err
		}
	}
	untilSaid(t, `"dhcpv6"`, slaac(l))
	untilSaid(t, "announces one", func(ctx context.Context) error {
		_, err := Client{}.Acquire(ctx, l, owner("one"))
		return err
	})

	odd := newLAN(t, "fd00:1::1/64")
	odd.router(&advert{lifetime: time.Hour, prefixes: []advertPrefix{{prefix: netip.MustParsePrefix("fd00:8::/63"),
		auto: true}}})
	untilSaid(t, "(fd00:8::/63 is none: want a /64)", slaac(odd.host(false)))

	small := n.host(true)
	show(t, small, "link", "set", "eth0", "mtu", "1279")
	if _, err := (SLAAC{}).Acquire(within(t, time.Second), small, owner("two")); err == nil ||
		!strings.Contains(err.Error(), "1280") {
		t.Error(err)
	}
	down := n.host(true)
	show(t, down, "link", "set", "eth0", "down")
	if _, err := (Client{}).Acquire(within(t, time.Second), down, owner("two")); err == nil ||
		!strings.Contains(err.Error(), "link-local") {
		t.Error(err)
	}
}

// TestSlowLinkLocal has the kernel take longer than ten seconds to make sure of the link-local address, as where its
// workers serve many containers. Whoever waits goes by the kernel's event.
func TestSlowLinkLocal(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	n.router(&advert{lifetime: time.Hour, prefixes: []advertPrefix{{prefix: netip.MustParsePrefix("fd00:1::/64"),
		auto: true}}})
	l := n.host(true)
	show(t, l, "link", "set", "eth0", "down")
	lan{l.NS.Path, t}.sysctl("net/ipv6/conf/eth0/dad_transmits", "10")
	show(t, l, "link", "set", "eth0", "up")
	began := time.Now()
	if _, err := (SLAAC{}).Acquire(within(t, time.Minute), l, owner("one")); err != nil {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

// A container's settings may have IPv6 off; who asks for an IPv6 address wants it on.
func TestIPv6Off(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	l := n.host(false)
	for _, kv := range [][2]string{{"disable_ipv6", "1"}, {"accept_ra", "0"}, {"addr_gen_mode", "1"},
		{"forwarding", "1"}} {
		lan{l.NS.Path, t}.sysctl("net/ipv6/conf/eth0/"+kv[0], kv[1])
	}
	n.router(&advert{lifetime: time.Hour, prefixes: []advertPrefix{{prefix: netip.MustParsePrefix("fd00:1::/64"),
		auto: true}}})
	got, err := SLAAC{}.Acquire(nstest.Context(t), l, owner("one"))
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := procsys.Get(l.NS, "net/ipv6/conf/eth0/accept_ra"); v != "2" || len(got.Addresses) != 1 {
		t.Errorf("accept_ra is %s, lease %+v", v, got)
	}
	// A router behind the container is none of the link.
	if out := show(t, l, "route"); !strings.Contains(out, "default via "+got.Gateway.String()) {
		t.Error(out)
	}
	show(t, l, "addr", "flush", "scope", "global") // what was made before is not kept where DHCPv6 is to give addresses
	if _, err := (Client{}).Acquire(within(t, 2*time.Second), l, owner("one")); err == nil {
		t.Error("nobody gave anything")
	}
	if out := show(t, l, "addr", "show", "scope", "global"); strings.TrimSpace(out) != "" {
		t.Errorf("the link has %s", out)
	}
}

// Routers are asked, and answer, while the kernel makes sure of the link-local address; so that it makes sure of what
// it makes of their prefixes at the same time.
func TestAskedFromNowhere(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	n.router(&advert{lifetime: time.Hour, prefixes: []advertPrefix{{prefix: netip.MustParsePrefix("fd00:1::/64"),
		auto: true}}})
	ns, index := n.open()
	c, err := packet.ListenICMP6(ns, index, "br0", routerSolicitation)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l := n.host(true)
	done := make(chan error, 1)
	go func() {
		got, err := SLAAC{}.Acquire(nstest.Context(t), l, owner("one"))
		if err == nil && (len(got.Addresses) != 1 || got.Gateway.String() != n.linkLocal()) {
			err = fmt.Errorf("lease %+v", got)
		}
		done <- err
	}()
	var buf [1500]byte
	k, from, hops, err := c.Receive(t.Context(), nstest.Deadline(t), buf[:])
	if err != nil || !from.Addr().IsUnspecified() || hops != 255 || k != 8 { // without a link address (RFC 4861, 4.1)
		t.Errorf("%d bytes from %v, hop limit %d, %v", k, from, hops, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
