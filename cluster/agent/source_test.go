package agent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

// The status of a node without etcd says which addresses it keeps, and for how long.
func TestLosses(t *testing.T) {
	spot, main := netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.64.0.0/12")
	f := grant.File{Network: "net"}
	for _, tc := range []struct {
		until  map[netip.Prefix]int64
		fenced bool
		want   string
	}{
		{nil, true, ""},
		{map[netip.Prefix]int64{spot: int64(time.Hour)}, false, ", but those of 10.96.0.0/12 only for another 59m59s"},
		{map[netip.Prefix]int64{spot: int64(time.Hour)}, true, ", but those of 10.96.0.0/12 only for another 59m59s (then their containers are cut off)"},
		{map[netip.Prefix]int64{spot: int64(time.Second)}, false, ", but not those of 10.96.0.0/12, which others get"},
		{map[netip.Prefix]int64{spot: 1}, true, ", but not those of 10.96.0.0/12, which others get (now their containers are cut off)"},
	} {
		err := f.Change(func(g *grant.Grant) {
			g.Until = tc.until
			g.Pools = []grant.Pool{{Name: "main", Prefix: main}, {Name: "spot", Prefix: spot, Fenced: tc.fenced}}
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := losses("net", int64(time.Second)); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.until, got, tc.want)
		}
	}
}
