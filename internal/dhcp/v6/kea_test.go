package v6

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

func acquire(t *testing.T, l dhcp.Link, a dhcp.Ask) *dhcp.Lease {
	t.Helper()
	got, err := Client{}.Acquire(nstest.Context(t), l, a)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestLease(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	l := n.host(false)
	kea := n.kea("fd00:1::100-fd00:1::1ff", `, {"name": "sntp-servers", "data": "fd00:1::123"}`, "")
	a := owner("one")
	a.Hostname = "box"
	began := time.Now()
	got := acquire(t, l, a)
	if len(got.Addresses) != 1 || !netip.MustParsePrefix("fd00:1::100/120").Contains(got.Addresses[0].Prefix.Addr()) ||
		got.Addresses[0].Prefix.Bits() != 128 {
		t.Errorf("addresses are %v", got.Addresses)
	}
	if got.T1 != 2*time.Second || got.T2 != 5*time.Second || got.Valid != 8*time.Second ||
		got.Addresses[0].Preferred != 7*time.Second {
		t.Errorf("times are %+v", got)
	}
	if !slices.Equal(got.DNS.Nameservers, []string{"fd00:1::53", "fd00:1::54"}) ||
		!slices.Equal(got.DNS.Search, []string{"a.example", "b.example"}) {
		t.Errorf("DNS is %+v", got.DNS)
	}
	if len(got.NTP) != 1 || got.NTP[0].String() != "fd00:1::123" {
		t.Errorf("NTP is %v", got.NTP)
	}
	if len(got.Server.ID) == 0 || got.Server.Addr.String() != n.linkLocal() || got.Gateway.IsValid() ||
		got.Asked.Before(began) {
		t.Errorf("lease is %+v", got)
	}
	kea.await("duid=[00:04:")

	ctx := nstest.Context(t)
	for name, ask := range map[string]func() (*dhcp.Lease, error){
		"confirm": func() (*dhcp.Lease, error) { return Client{}.Confirm(ctx, l, a, got) },
		"renew":   func() (*dhcp.Lease, error) { return Client{}.Renew(ctx, l, a, got) },
		"rebind":  func() (*dhcp.Lease, error) { return Client{}.Rebind(ctx, l, a, got) },
		"again":   func() (*dhcp.Lease, error) { return Client{}.Acquire(ctx, l, a) }, // of the same owner
	} {
		next, err := ask()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !next.SameConfiguration(got) {
			t.Errorf("%s: %+v, had %+v", name, next, got)
		}
		if later := next.Asked.After(got.Asked); later != (name != "confirm") {
			t.Errorf("%s: asked at %v, had %v", name, next.Asked, got.Asked)
		}
	}
	if err := (Client{}).Release(ctx, l, a, got); err != nil {
		t.Fatal(err)
	}
	kea.await("DHCP6_RELEASE_NA")
	if log := kea.log(); strings.Contains(log, "DHCP6_RELEASE_NA_DELETED_FAIL") || strings.Contains(log, "PACKET_DROP") {
		t.Error(kea.notable())
	}
	_, err := Client{}.Confirm(ctx, l, a,
		&dhcp.Lease{Addresses: []dhcp.Address{{Prefix: netip.MustParsePrefix("fd00:2::1/128")}}})
	wantErr(t, err, dhcp.ErrRefused) // an address of another link
}

// The plugin has to say that the pool is empty, which is code 11.
func TestEmptyPool(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	one, two := n.host(false), n.host(false)
	n.kea("fd00:1::100-fd00:1::100", "", `, "pd-pools": [{"prefix": "fd00:100::", "prefix-len": 64, "delegated-len": 64}]`)
	got := acquire(t, one, owner("one"))
	_, err := Client{}.Acquire(nstest.Context(t), two, owner("two"))
	wantErr(t, err, dhcp.ErrEmpty)
	if !strings.Contains(err.Error(), "NoAddrsAvail") {
		t.Error(err)
	}
	if err := (Client{}).Release(nstest.Context(t), one, owner("one"), got); err != nil {
		t.Fatal(err)
	}
	a := owner("two")
	a.Delegate = 64
	first := acquire(t, two, a)
	if len(first.Delegated) != 1 || first.Delegated[0].Prefix.String() != "fd00:100::/64" {
		t.Fatalf("delegated is %v", first.Delegated)
	}
	b := owner("three")
	b.Delegate = 64
	_, err = Client{}.Acquire(nstest.Context(t), one, b)
	wantErr(t, err, dhcp.ErrEmpty)
}

func TestPrefixDelegation(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	l := n.host(false)
	kea := n.kea("fd00:1::100-fd00:1::1ff", "", `, "pd-pools": [{"prefix": "fd00:100::", "prefix-len": 48, "delegated-len": 56}]`)
	a := owner("one")
	a.Delegate = 56
	got := acquire(t, l, a)
	if len(got.Addresses) != 1 || len(got.Delegated) != 1 || got.Delegated[0].Prefix.Bits() != 56 ||
		got.Delegated[0].Valid != 8*time.Second {
		t.Fatalf("lease is %+v", got)
	}
	ctx := nstest.Context(t)
	for name, ask := range map[string]func() (*dhcp.Lease, error){
		"confirm": func() (*dhcp.Lease, error) { return Client{}.Confirm(ctx, l, a, got) },
		"renew":   func() (*dhcp.Lease, error) { return Client{}.Renew(ctx, l, a, got) },
		"rebind":  func() (*dhcp.Lease, error) { return Client{}.Rebind(ctx, l, a, got) },
	} {
		next, err := ask()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !next.SameConfiguration(got) || next.Delegated[0].Prefix != got.Delegated[0].Prefix ||
			!next.Asked.After(got.Asked) {
			t.Errorf("%s: %+v, had %+v", name, next, got)
		}
	}
	if err := (Client{}).Release(ctx, l, a, got); err != nil {
		t.Fatal(err)
	}
	kea.await("DHCP6_RELEASE_NA")
	kea.await("DHCP6_RELEASE_PD")

	b := owner("two")
	b.Delegate = 56
	got = acquire(t, l, b)
	if err := (Client{}).Decline(ctx, l, b, got); err != nil {
		t.Fatal(err)
	}
	kea.await("DHCP6_DECLINE_LEASE")
	kea.awaitTimes(2, "DHCP6_RELEASE_PD ")
}

// A server that dies is waited for, and one that comes back without its memory gives the lease again or refuses it.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	l, a := n.host(false), owner("one")
	kea := n.kea("fd00:1::100-fd00:1::1ff", "", "")
	got := acquire(t, l, a)
	kea.stop()
	_, err := Client{First: 100 * time.Millisecond}.Renew(within(t, time.Second), l, a, got)
	wantErr(t, err, dhcp.ErrNoServer)
	if err := (Client{First: 50 * time.Millisecond}).Release(within(t, time.Second), l, a, got); err == nil {
		t.Error("nobody was there to take the lease back")
	}
	type answer struct {
		*dhcp.Lease
		error
	}
	came := make(chan answer)
	go func() { // it asks before the server is there
		next, err := Client{First: 100 * time.Millisecond, Max: 500 * time.Millisecond}.Rebind(nstest.Context(t), l,
			a, got)
		came <- answer{next, err}
	}()
	kea = n.kea("fd00:1::100-fd00:1::1ff", "", "")
	if x := <-came; x.error != nil || !x.SameConfiguration(got) {
		t.Fatalf("%+v, %v\n%s", x.Lease, x.error, kea.notable())
	}
	kea.stop()
	n.ip("addr", "add", "fd00:9::1/64", "dev", "br0", "nodad")
	n.kea("fd00:1::800-fd00:1::8ff", "", "") // another pool: what is held is nobody's
	next, err := Client{First: time.Second}.Rebind(nstest.Context(t), l, a, got)
	if err != nil || next.Addresses[0].Prefix == got.Addresses[0].Prefix {
		t.Errorf("%+v, %v", next, err)
	}
}

func TestTwoServers(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	l := n.host(false)
	// The other one is a host of the same link. Its clock of answers is the same; its preference is not.
	other := newLAN(t, "fd00:1::2/64")
	n.ip("link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", other.path)
	n.ip("link", "set", "cable", "master", "br0", "up")
	other.ip("link", "set", "cable", "master", "br0", "up")
	n.kea("fd00:1::100-fd00:1::1ff", `, {"name": "preference", "data": "5", "always-send": true}`, "")
	preferred := other.kea("fd00:1::200-fd00:1::2ff", `, {"name": "preference", "data": "200", "always-send": true}`, "")
	for _, id := range []string{"one", "two", "three"} {
		if got := acquire(t, l, owner(id)); !netip.MustParsePrefix("fd00:1::200/120").Contains(got.Addresses[0].Prefix.Addr()) {
			t.Errorf("%s has %v", id, got.Addresses)
		}
	}
	preferred.stop() // the other one serves
	if got := acquire(t, l, owner("four")); !netip.MustParsePrefix("fd00:1::100/120").Contains(got.Addresses[0].Prefix.Addr()) {
		t.Errorf("four has %v", got.Addresses)
	}
}

// An address that a host on the link has is declined, and the next one is taken.
func TestConflict(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	l, squatter := n.host(false), n.host(false)
	kea := n.kea("fd00:1::100-fd00:1::101", "", "")
	show(t, squatter, "addr", "add", "fd00:1::100/64", "dev", "eth0", "nodad")
	got := acquire(t, l, owner("one"))
	if got.Addresses[0].Prefix.String() != "fd00:1::101/128" {
		t.Errorf("addresses are %v", got.Addresses)
	}
	kea.await("DHCP6_DECLINE_LEASE")
	show(t, squatter, "addr", "add", "fd00:1::101/64", "dev", "eth0", "nodad")
	_, err := Client{}.Acquire(nstest.Context(t), l, owner("two"))
	if err == nil {
		t.Error("two has an address of somebody else")
	}
	if out := nstest.RunIn(t, l.NS.Path, "ip", "-6", "addr", "show", "scope", "global"); strings.TrimSpace(out) != "" {
		t.Errorf("the client put addresses on the link: %s", out)
	}
}

// A server that commits at once is not kept waiting for others, nor is the container; one that does so unasked, as for
// a prefix, is not believed.
func TestRapidCommit(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	n.router(&advert{managed: true, lifetime: time.Hour})
	l, a := n.host(false), owner("one")
	kea := n.kea("fd00:1::100-fd00:1::100", "", `, "rapid-commit": true, "pd-pools": [{"prefix": "fd00:100::", "prefix-len": 48, "delegated-len": 56}]`)
	began := time.Now()
	got := acquire(t, l, a)
	took := time.Since(began)
	for took > 900*time.Millisecond { // who waits for other servers waits a second every time, and a busy machine not always
		if err := (Client{}).Release(nstest.Context(t), l, a, got); err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		got = acquire(t, l, a)
		took = time.Since(began)
	}
	if got.Addresses[0].Prefix.String() != "fd00:1::100/128" || len(got.Server.ID) == 0 ||
		got.Server.Addr.String() != n.linkLocal() || got.Asked.Before(began) || got.T1 != 2*time.Second {
		t.Errorf("after %v: %+v", took, got)
	}
	if log := kea.log(); strings.Contains(log, "ADVERTISE") {
		t.Error(kea.notable())
	}
	if next, err := (Client{}).Renew(nstest.Context(t), l, a, got); err != nil || !next.SameConfiguration(got) {
		t.Errorf("%+v, %v", next, err)
	}
	_, err := Client{}.Acquire(nstest.Context(t), n.host(false), owner("two")) // the pool is empty
	wantErr(t, err, dhcp.ErrEmpty)
	if err := (Client{}).Release(nstest.Context(t), l, a, got); err != nil {
		t.Fatal(err)
	}
	b := owner("three")
	b.Delegate = 56
	if got := acquire(t, l, b); len(got.Delegated) != 1 || !strings.Contains(kea.log(), "ADVERTISE") {
		t.Errorf("%+v\n%s", got, kea.notable())
	}
}
