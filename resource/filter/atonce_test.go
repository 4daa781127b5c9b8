package filter_test

import (
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestAtOnceRestoresTable: what AtOnce itself restores of the table is no reason to read again.
func TestAtOnceRestoresTable(t *testing.T) {
	w := contract.NewWorld(t)
	m := func(id, at string) masquerade.Sources {
		return masquerade.Sources{Owner: spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"},
			From: []netip.Prefix{netip.MustParsePrefix(at)}}
	}
	contract.Ensure(t, w, m("a", "10.1.0.2/24"))
	filtertest.NFT(t, w, "flush chain inet fairlead postrouting")

	ctx, times := filter.Together(t.Context()), 0
	err := filter.AtOnce(ctx, w, func() {
		if _, err := m("b", "10.1.0.3/24").Ensure(ctx, w); err != nil {
			t.Error(err)
		}
		times++
	})
	if err != nil || times != 1 {
		t.Errorf("done %d times, %v", times, err)
	}
	contract.Verify(t, w, m("b", "10.1.0.3/24"))
}

// TestAtOnceAgain has somebody else change the packet filter between what AtOnce reads and what it writes: it reads
// again, and nothing is lost. Somebody who never stops does not keep it from ending.
func TestAtOnceAgain(t *testing.T) {
	for name, meddles := range map[string]int{"nobody": 0, "once": 1, "three times": 3, "always": 100} {
		t.Run(name, func(t *testing.T) {
			w := contract.NewWorld(t)
			m := func(i byte) masquerade.Sources {
				o := spec.Owner{Network: "net", ContainerID: string('a' + rune(i)), IfName: "eth0"}
				return masquerade.Sources{Owner: o, From: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1,
					0, 2 + i}), 24)}}
			}
			contract.Ensure(t, w, m(9)) // the table stands
			ctx, times := filter.Together(t.Context()), 0
			err := filter.AtOnce(ctx, w, func() {
				for i := range byte(3) {
					if _, err := m(i).Ensure(ctx, w); err != nil {
						t.Error(err)
					}
				}
				if times < meddles {
					filtertest.NFT(t, w, "add table inet other; delete table inet other")
				}
				times++
			})
			if err != nil || times != min(meddles, 4)+1 {
				t.Errorf("done %d times, %v", times, err)
			}
			for i := range byte(3) {
				contract.Verify(t, w, m(i))
			}
		})
	}
}
