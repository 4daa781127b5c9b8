package etcd

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/spec"
)

// Two nodes cannot have one name, and two agents cannot have one network of a host.
func TestTwice(t *testing.T) {
	s := startEtcd(t)
	member(t.Output(), s, "a", 1).rest(t)
	other := member(t.Output(), s, "b", 1)
	other.Host.Name = "a"
	other.rest(t)
	expect(t, "b", 0)
	if g, err := grant.OfBoot("b"); err != nil || !strings.Contains(g.Missing, "has this node's name") {
		t.Errorf("%+v, %v", g, err)
	}

	unlock, err := (&host{network: "a"}).lock()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := member(t.Output(), s, "a", 1).Run(t.Context()); err == nil {
		t.Error("a second agent runs")
	}
}

// A node claims before its containers need the addresses, and gives back what they need no longer.
func TestAhead(t *testing.T) {
	s := startEtcd(t)
	m := member(t.Output(), s, "a", 0)
	m.Spare = 8
	idle := make(chan int, 1000)
	m.before = func(a blocks.Action) {
		if a == nil {
			idle <- len(ranges(t, "a"))
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()
	until := func(blocks int) {
		t.Helper()
		for got := range idle {
			if got == blocks {
				return
			}
		}
	}
	until(1)
	leases := allocator("a")
	owner := func(n int) spec.Owner {
		return spec.Owner{Network: "a", ContainerID: fmt.Sprint("x", n), IfName: "eth0"}
	}
	for n := range 100 { // each gets one at once, or the test fails: a block has 61
		if n == 54 {
			until(2)
		}
		if _, err := leases.Allocate(t.Context(), owner(n)); err != nil {
			t.Fatal(n, err)
		}
	}
	for n := range 100 {
		if err := leases.Release(t.Context(), owner(n)); err != nil {
			t.Fatal(err)
		}
	}
	until(1)
	check(t, s)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
