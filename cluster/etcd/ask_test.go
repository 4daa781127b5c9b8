package etcd

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
)

// start runs a member until the test ends.
func (m *Member) start(t *testing.T) { t.Cleanup(m.run(t)) }

// run runs a member until end is called.
func (m *Member) run(t *testing.T) (end func()) {
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()
	return func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// sees follows etcd in the member's view, and returns when that says something.
func (m *Member) sees(t *testing.T, says func(*View) bool) {
	seen := make(chan struct{}, 1)
	go m.Store.Follow(t.Context(), m.View, func(bool) {
		if says(m.View) {
			notify(seen)
		}
	}, func(err error) { t.Log(err) })
	select {
	case <-seen:
	case <-t.Context().Done():
		t.Fatal("etcd does not say it")
	}
}

// refused returns what the refusal of a call of Ask says.
func refused(t *testing.T, m *Member, want grant.Want) string {
	t.Helper()
	err := m.Ask(t.Context(), want)
	var r *grant.Refusal
	if err != nil && !errors.As(err, &r) {
		t.Fatal(err)
	}
	if r == nil {
		return ""
	}
	return r.Why + ". " + r.Hint
}

// An address of a pinned pool is of the node whose container asked for it, as long as that has it. Both families come in one
// transaction, or none.
func TestPin(t *testing.T) {
	s := startEtcd(t)
	four, six := netip.MustParseAddr("10.72.0.7"), netip.MustParseAddr("fd00:72::7")
	setPools(t, s, blocks.Pool{Name: "p", Prefix: blockOf(10), Bits: 26, Parts: 1},
		blocks.Pool{Name: "fixed", Prefix: netip.MustParsePrefix("10.72.0.0/24"), Bits: 32, Parts: 1, Pinned: true},
		blocks.Pool{Name: "fixed6", Prefix: netip.MustParsePrefix("fd00:72::/64"), Bits: 128, Parts: 1, Pinned: true})
	a, b := member(t.Output(), s, "a", 1), member(t.Output(), s, "b", 1)
	a.Pools, b.Pools = nil, nil
	var claims []blocks.Txn
	a.before = func(action blocks.Action) {
		if txn, is := action.(blocks.Txn); is && len(txn.Put) > 0 && strings.HasPrefix(txn.Put[0].Key.Pool, "fixed") {
			claims = append(claims, txn)
		}
	}
	a.start(t)
	b.start(t)
	if why := refused(t, a, grant.Want{Pins: []netip.Addr{four, six}}); why != "" {
		t.Fatal(why)
	}
	b.sees(t, func(v *View) bool { return slices.Contains(slices.Collect(maps.Values(v.Names())), "a") })
	g, err := grant.OfBoot("a")
	if err != nil || !slices.Equal(g.Pins, []netip.Addr{four, six}) || len(g.Pools) != 3 {
		t.Errorf("%+v, %v", g, err)
	}
	if len(claims) != 1 || len(claims[0].Put) != 4 {
		t.Errorf("%+v: want one claim of both addresses", claims)
	}

	leases := &disk.Store{Requested: []netip.Addr{four, six}}
	leases.Sets = []ipam.Set{{Ranges: []ipam.Range{{Subnet: netip.MustParsePrefix("10.72.0.0/24")}}},
		{Ranges: []ipam.Range{{Subnet: netip.MustParsePrefix("fd00:72::/64")}}}}
	if leases.Sets, err = ipam.Complete(leases.Sets); err != nil {
		t.Fatal(err)
	}
	o := spec.Owner{Network: "a", ContainerID: "x", IfName: "eth0"}
	if _, err := leases.Allocate(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for _, pins := range [][]netip.Addr{{six}, {netip.MustParseAddr("10.72.0.9"), six}} {
		if why := refused(t, b, grant.Want{Pins: pins}); !strings.Contains(why, "the address "+six.String()) ||
			!strings.Contains(why, "a container on the node a has") {
			t.Error(why)
		}
	}
	if g, err := grant.OfBoot("b"); err != nil || len(g.Pins) > 0 {
		t.Errorf("%+v, %v: want no address, because another one is taken", g, err)
	}
	if why := refused(t, b, grant.Want{Pins: []netip.Addr{netip.MustParseAddr("10.73.0.7")}}); !strings.Contains(why, "no pinned pool") {
		t.Error(why)
	}

	if err := leases.Release(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); refused(t, b, grant.Want{Pins: []netip.Addr{four, six}}) != ""; {
		if t.Context().Err() != nil {
			t.Fatal("node a does not give the addresses back", time.Since(begun))
		}
	}
	if g, err := grant.OfBoot("a"); err != nil || len(g.Pins) > 0 {
		t.Errorf("%+v, %v: want what b has not", g, err)
	}
	check(t, s)
}

// A node claims of a pool that a network names, also if it has free addresses of another one. If the pool has no free block,
// the answer says who has free addresses of it.
func TestNamedPool(t *testing.T) {
	s := startEtcd(t)
	setPools(t, s, blocks.Pool{Name: "x", Prefix: blockOf(10), Bits: 26, Parts: 1},
		blocks.Pool{Name: "y", Prefix: blockOf(11), Bits: 25, Parts: 1})
	a, b := member(t.Output(), s, "a", 1), member(t.Output(), s, "b", 1)
	a.Pools, b.Pools = nil, nil
	a.Idle, b.Idle = time.Hour, time.Hour
	a.start(t)
	b.start(t)
	if why := refused(t, a, grant.Want{Pools: []string{"y"}}); why != "" {
		t.Fatal(why)
	}
	if got := ranges(t, "a"); len(got) != 2 || !slices.Contains(got, blockOf(11)) {
		t.Errorf("%v: want a block of each pool", got)
	}
	b.sees(t, func(v *View) bool { return v.Pools()[1].Usable.Sign() > 0 })
	why := refused(t, b, grant.Want{Pools: []string{"y"}})
	if !strings.Contains(why, "no block is free in the pool y (11.0.0.0/25)") || !strings.Contains(why, "a (") {
		t.Errorf("%q", why)
	}
	if why := refused(t, b, grant.Want{}); why != "" {
		t.Error(why)
	}
	expect(t, "b", 1)
}
