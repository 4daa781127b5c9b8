package filter_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/spec"
)

// overlapping are attachments of networks that overlap, with one address: what is for the address is the same for all.
func overlapping(n int) (all []plan.Plan) {
	for i := range n {
		p := filtertest.PortsOf("c1", fmt.Sprint("net", i), "10.1.2.5/24", filtertest.TCP("", uint16(8080+i)))
		p.Owner.ContainerID = fmt.Sprint("c", i)
		p.Mappings[0].AllowFrom = []netip.Prefix{contract.Prefix("192.0.2.0/24")}
		all = append(all, plan.Plan{masquerade.Sources{Owner: p.Owner, From: []netip.Prefix{p.To4, p.To6}}, p})
	}
	return all
}

// What is for an address stays until the last DEL of those who have the address, whatever the order; and nothing is
// left then.
func TestHolders(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 0, 3, 2}, {2, 3, 0, 1}, {1, 3, 0, 2}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			w := contract.NewHost(t)
			filtertest.MakeTables(t, w)
			all := overlapping(len(order))
			must := func(p plan.Plan) {
				t.Helper()
				if err := engine.Verify(t.Context(), w, p); err != nil {
					t.Error(err)
				}
				for _, r := range p {
					if changed, err := r.Ensure(t.Context(), w); changed || err != nil {
						t.Errorf("%v again: changed %v, error %v", r, changed, err)
					}
				}
			}
			for _, p := range all {
				for _, r := range p {
					contract.Ensure(t, w, r)
				}
			}
			for i, at := range order {
				for _, j := range order[i:] {
					must(all[j])
				}
				if err := engine.Undo(t.Context(), w, all[at]); err != nil {
					t.Fatal(err)
				}
				if err := engine.Verify(t.Context(), w, all[at]); err == nil {
					t.Errorf("%d has been removed, and CHECK finds nothing missing", at)
				}
			}
			if s := filtertest.State(t, w); strings.Contains(s, "elements") {
				t.Errorf("left:\n%s", s)
			}
		})
	}
}

// GC of one network leaves what another has at the same address.
func TestSweepOfAHolder(t *testing.T) {
	for _, gone := range []int{0, 1, 2} {
		w := contract.NewHost(t)
		all := overlapping(3)
		for _, p := range all {
			for _, r := range p {
				contract.Ensure(t, w, r)
			}
		}
		if err := filtertest.SweepNFT(t.Context(), w, fmt.Sprint("net", gone),
			func([8]byte) bool { return false }); err != nil {
			t.Fatal(err)
		}
		for i, p := range all {
			if i == gone {
				continue
			}
			if err := engine.Verify(t.Context(), w, p); err != nil {
				t.Errorf("%d is swept, and %d lacks: %v", gone, i, err)
			}
			if err := engine.Undo(t.Context(), w, p); err != nil {
				t.Fatal(err)
			}
		}
		if s := filtertest.State(t, w); strings.Contains(s, "elements") {
			t.Errorf("%d is swept, and left:\n%s", gone, s)
		}
	}
}

// Whatever of it is deleted by hand, ensuring all of them makes them whole, once; and they go as they came.
func TestHoldersFixed(t *testing.T) {
	for _, broken := range []string{"flush set inet fairlead holders", "flush set inet fairlead owners",
		"delete element inet fairlead itself_ip { 10.1.2.5 . 10.1.2.5 }",
		"flush set inet fairlead holders; flush set inet fairlead owners; flush set inet fairlead itself_ip", "delete table inet fairlead"} {
		t.Run(broken, func(t *testing.T) {
			w := contract.NewHost(t)
			filtertest.MakeTables(t, w)
			all := overlapping(3)
			each := func(do func(plan.Resource)) {
				for _, p := range all {
					for _, r := range p {
						do(r)
					}
				}
			}
			each(func(r plan.Resource) { contract.Ensure(t, w, r) })
			filtertest.NFT(t, w, broken)
			each(func(r plan.Resource) { contract.Ensure(t, w, r) })
			each(func(r plan.Resource) { contract.Verify(t, w, r) })
			each(func(r plan.Resource) {
				if changed, err := r.Ensure(t.Context(), w); changed || err != nil {
					t.Errorf("%v again: changed %v, error %v", r, changed, err)
				}
			})
			for _, i := range []int{2, 0, 1} {
				if err := engine.Undo(t.Context(), w, all[i]); err != nil {
					t.Fatal(err)
				}
			}
			if s := filtertest.State(t, w); strings.Contains(s, "elements") {
				t.Errorf("left:\n%s", s)
			}
		})
	}
}

// A living container goes on to reach the outside when one of another network, which has its address, goes.
func TestHoldersPackets(t *testing.T) {
	l := filtertest.NewLab(t)
	l.Serve(l.Neighbour, "neighbour", "tcp", ":80")
	from := []netip.Prefix{l.ToA, l.ToA6}
	mine := masquerade.Sources{Owner: l.OwnerA, From: from}
	other := masquerade.Sources{Owner: spec.Owner{Network: "other", ContainerID: "c9", IfName: "eth0"}, From: from}
	reaches := func() {
		t.Helper()
		l.Expect(l.A, "tcp", "192.0.2.2:80", "neighbour 192.0.2.1")
		l.Expect(l.A, "tcp", "[2001:db8::2]:80", "neighbour 2001:db8::1")
	}
	host := &kernel.World{Host: l.W.Host, Store: l.W.Store}
	for _, first := range []bool{true, false} {
		if first {
			l.Ensure(mine, l.W)
		}
		if _, err := other.Ensure(context.Background(), host); err != nil {
			t.Fatal(err)
		}
		l.Ensure(mine, l.W)
		reaches()
		contract.Remove(t, host, other)
		reaches()
		contract.Remove(t, l.W, mine)
	}
}
