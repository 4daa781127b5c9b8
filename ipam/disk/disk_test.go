package disk

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func sets(t testing.TB, subnets ...string) []ipam.Set {
	t.Helper()
	var in []ipam.Set
	for _, s := range subnets {
		in = append(in, ipam.Set{Path: "ipam", Ranges: []ipam.Range{{Subnet: netip.MustParsePrefix(s)}}})
	}
	out, err := ipam.Complete(in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func owner(id string) spec.Owner { return spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"} }

// clause: P12 P21
func TestFillAndEmpty(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/29", "fd00::/64")}
	ctx := context.Background()
	ids := []string{"a", "b", "c", "d", "e"}
	for i, id := range ids {
		r, err := s.Allocate(ctx, owner(id))
		if err != nil {
			t.Fatal(err)
		}
		want := netip.AddrFrom4([4]byte{10, 1, 0, byte(2 + i)})
		if got := r.IPs[0].Address; got != netip.PrefixFrom(want, 29) {
			t.Errorf("%s: got %s, want %s", id, got, want)
		}
	}
	if _, err := s.Allocate(ctx, owner("f")); !errors.Is(err, ipam.ErrExhausted) {
		t.Errorf("ADD to a full range: %v", err)
	}
	if err := s.Status(ctx, "net"); !errors.Is(err, ipam.ErrExhausted) {
		t.Errorf("STATUS of a full range: %v", err)
	}
	for _, id := range ids {
		if err := errors.Join(s.Release(ctx, owner(id)), s.Release(ctx, owner(id))); err != nil {
			t.Error(err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(s.DataDir, "net"))
	if err != nil || len(entries) != 3 {
		t.Errorf("left: %v, %v; want lock and two last_reserved_ip", entries, err)
	}
}
