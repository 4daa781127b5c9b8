package filter

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// overlapping are attachments of networks that overlap, with one address: what is for the address is the same for all.
func overlapping(n int) (all []plan.Plan) {
	for i := range n {
		p := publishOf("c1", fmt.Sprint("net", i), "10.1.2.5/24", tcp("", uint16(8080+i)))
		p.Owner.ContainerID = fmt.Sprint("c", i)
		p.Ports[0].AllowFrom = []netip.Prefix{contract.Prefix("192.0.2.0/24")}
		all = append(all, plan.Plan{Masquerade{Owner: p.Owner, From: []netip.Prefix{p.To4, p.To6}}, p})
	}
	return all
}

// What is for an address stays until the last DEL of those who have the address, whatever the order; and nothing is
// left then.
func TestHolders(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 0, 3, 2}, {2, 3, 0, 1}, {1, 3, 0, 2}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			w := contract.NewHost(t)
			skeleton(t, w)
			all := overlapping(len(order))
			must := func(p plan.Plan) {
				t.Helper()
				if err := p.Verify(t.Context(), w); err != nil {
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
				if err := all[at].Remove(t.Context(), w); err != nil {
					t.Fatal(err)
				}
				if err := all[at].Verify(t.Context(), w); err == nil {
					t.Errorf("%d has been removed, and CHECK finds nothing missing", at)
				}
			}
			if s := nftState(t, w); strings.Contains(s, "elements") {
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
		if err := sweepNFT(t.Context(), w, fmt.Sprint("net", gone), func([8]byte) bool { return false }); err != nil {
			t.Fatal(err)
		}
		for i, p := range all {
			if i == gone {
				continue
			}
			if err := p.Verify(t.Context(), w); err != nil {
				t.Errorf("%d is swept, and %d lacks: %v", gone, i, err)
			}
			if err := p.Remove(t.Context(), w); err != nil {
				t.Fatal(err)
			}
		}
		if s := nftState(t, w); strings.Contains(s, "elements") {
			t.Errorf("%d is swept, and left:\n%s", gone, s)
		}
	}
}

// Whatever of it is deleted by hand, ensuring all of them makes them whole, once; and they go as they came.
func TestHoldersMended(t *testing.T) {
	for _, broken := range []string{"flush set inet fairlead holders", "flush set inet fairlead owners",
		"delete element inet fairlead itself_ip { 10.1.2.5 . 10.1.2.5 }",
		"flush set inet fairlead holders; flush set inet fairlead owners; flush set inet fairlead itself_ip", "delete table inet fairlead"} {
		t.Run(broken, func(t *testing.T) {
			w := contract.NewHost(t)
			skeleton(t, w)
			all := overlapping(3)
			each := func(do func(plan.Resource)) {
				for _, p := range all {
					for _, r := range p {
						do(r)
					}
				}
			}
			each(func(r plan.Resource) { contract.Ensure(t, w, r) })
			runNFT(t, w, broken)
			each(func(r plan.Resource) { contract.Ensure(t, w, r) })
			each(func(r plan.Resource) { contract.Verify(t, w, r) })
			each(func(r plan.Resource) {
				if changed, err := r.Ensure(t.Context(), w); changed || err != nil {
					t.Errorf("%v again: changed %v, error %v", r, changed, err)
				}
			})
			for _, i := range []int{2, 0, 1} {
				if err := all[i].Remove(t.Context(), w); err != nil {
					t.Fatal(err)
				}
			}
			if s := nftState(t, w); strings.Contains(s, "elements") {
				t.Errorf("left:\n%s", s)
			}
		})
	}
}

// A living container goes on to reach the outside when one of another network, which has its address, goes.
func TestHoldersPackets(t *testing.T) {
	l := newLab(t)
	l.serve(l.neighbour, "neighbour", "tcp", ":80")
	from := []netip.Prefix{l.toA, l.toA6}
	mine := Masquerade{Owner: l.ownerA, From: from}
	other := Masquerade{Owner: spec.Owner{Network: "other", ContainerID: "c9", IfName: "eth0"}, From: from}
	reaches := func() {
		t.Helper()
		l.expect(l.a, "tcp", "192.0.2.2:80", "neighbour 192.0.2.1")
		l.expect(l.a, "tcp", "[2001:db8::2]:80", "neighbour 2001:db8::1")
	}
	host := &kernel.World{Host: l.w.Host, Store: l.w.Store}
	for _, first := range []bool{true, false} {
		if first {
			l.ensure(mine, l.w)
		}
		if _, err := other.Ensure(context.Background(), host); err != nil {
			t.Fatal(err)
		}
		l.ensure(mine, l.w)
		reaches()
		contract.Remove(t, host, other)
		reaches()
		contract.Remove(t, l.w, mine)
	}
}
