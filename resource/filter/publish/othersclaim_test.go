package publish_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
)

// CHECK of a container whose port leads to another container says so. Only another attachment of the same container
// may stand there in its stead.
//
// clause: P14
func TestCheckOfAnothersPort(t *testing.T) {
	w := contract.NewHost(t)
	filtertest.MakeTables(t, w)
	mine := filtertest.PortsOf("c1", "net", "10.1.2.5/24", filtertest.TCP("", 8080))
	other := filtertest.PortsOf("c2", "net", "10.1.2.6/24", filtertest.TCP("", 8080))
	contract.Ensure(t, w, mine)

	maps := filter.PortMapsOf(filter.Inet(), false, "")
	maps6 := filter.PortMapsOf(filter.Inet(), true, "")
	var claims []nft.Elem
	change(t, w, func(f filter.Tx, b *nft.Batch) error { // as somebody does who flushes them
		for _, set := range []*nft.Set{maps.Claims, maps.Any, maps6.Claims, maps6.Any} {
			all, err := f.List(set)
			if err != nil {
				return err
			}
			if set == maps.Claims {
				claims = all
			}
			for _, e := range all {
				b.Delete(e)
			}
		}
		return nil
	})
	contract.Ensure(t, w, other)
	change(t, w, func(_ filter.Tx, b *nft.Batch) error { // and loads them again
		for _, e := range claims {
			f := nft.Fields(e.Set.Key, e.Key)
			e.Key = nft.Key(f[0], f[1], uint32(1))
			b.Add(e)
		}
		return nil
	})

	contract.Verify(t, w, other)
	err := mine.Verify(t.Context(), w)
	if err == nil || !strings.Contains(err.Error(), `publish_ip_any { tcp . 8080 : 10.1.2.5 . 80 } belongs to`) ||
		!strings.Contains(err.Error(), "net/c2/eth0") {
		t.Errorf("CHECK says %v", err)
	}
}

// change makes one transaction on our table.
func change(t *testing.T, w *kernel.World, fn func(filter.Tx, *nft.Batch) error) {
	t.Helper()
	err := filter.Transact(t.Context(), w, filter.Inet(), func(f filter.Tx) error {
		var b nft.Batch
		if err := fn(f, &b); err != nil {
			return err
		}
		return f.Write(&b)
	})
	if err != nil {
		t.Fatal(err)
	}
}
