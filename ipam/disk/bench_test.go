package disk

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
)

// The figures of each verb have to be flat in the number of leases.
func Benchmark(b *testing.B) {
	ctx := context.Background()
	for _, n := range []int{0, 1000, 60000} {
		s := filled(b, n)
		b.Run(fmt.Sprintf("leases=%d/ADD+DEL", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Allocate(ctx, owner("new")); err != nil {
					b.Fatal(err)
				}
				if err := s.Release(ctx, owner("new")); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("leases=%d/ADD-from-the-start", n), func(b *testing.B) {
			for b.Loop() { // past all the leases
				put(b, s.DataDir, "last_reserved_ip.0", "10.1.0.1")
				untouched(b, s)
				if _, err := s.Allocate(ctx, owner("new")); err != nil {
					b.Fatal(err)
				}
				if err := s.Release(ctx, owner("new")); err != nil {
					b.Fatal(err)
				}
			}
		})
		prev, err := s.Allocate(ctx, owner("new"))
		if err != nil {
			b.Fatal(err)
		}
		for verb, f := range map[string]func() error{
			"CHECK":          func() error { return s.Verify(ctx, owner("new"), prev) },
			"DEL-of-nothing": func() error { return s.Release(ctx, owner("nobody")) },
			"STATUS":         func() error { return s.Status(ctx, "net") },
		} {
			b.Run(fmt.Sprintf("leases=%d/%s", n, verb), func(b *testing.B) {
				for b.Loop() {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		b.Run(fmt.Sprintf("leases=%d/after-somebody-else", n), func(b *testing.B) {
			for b.Loop() { // the one that is not flat: a scan
				put(b, s.DataDir, "172.16.0.1", "x")
				if err := os.Remove(filepath.Join(s.DataDir, "net", "172.16.0.1")); err != nil {
					b.Fatal(err)
				}
				if err := s.Status(ctx, "net"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// filled is a store with n leases in a row from the first address on.
func filled(b *testing.B, n int) *Store {
	b.Helper()
	s := &Store{DataDir: b.TempDir(), Sets: sets(b, "10.1.0.0/16"), Log: slog.New(slog.DiscardHandler)}
	for i := range n {
		put(b, s.DataDir, ipam.Plus(addr("10.1.0.2"), uint64(i)).String(), text(spec.Owner{ContainerID: fmt.Sprint("c", i), IfName: "eth0"}))
	}
	put(b, s.DataDir, "last_reserved_ip.0", ipam.Plus(addr("10.1.0.1"), uint64(n)).String())
	if err := s.Status(context.Background(), "net"); err != nil {
		b.Fatal(err)
	}
	return s
}

// untouched signs the index anew, as if last_reserved_ip had been ours.
func untouched(b testing.TB, s *Store) {
	b.Helper()
	path := filepath.Join(s.DataDir, "net")
	d, err := openDirectory(context.Background(), path, false)
	if err != nil {
		b.Fatal(err)
	}
	d.boot, d.log = thisBoot(), s.Log
	d.x = openIndex(indexPath(path))
	d.readLasts(1)
	d.dirty = true
	d.close()
}
