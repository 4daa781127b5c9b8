package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
)

// Benchmark times one call each, with the leases on the disk and in memory. ADD and DEL have to be flat in the number
// of leases; what is linear is a full range, which looks for leases of the dead, GC, and the first call after somebody
// else changed the directory. Filling a range takes a while: go test -run XXX -bench . ./ipam/disk
func Benchmark(b *testing.B) {
	const full = 65533 // of a /16
	for _, where := range []string{"disk", "memory"} {
		for _, n := range []int{10, 65000, full - 1, full} {
			dir := b.TempDir()
			if where == "memory" {
				dir = inMemory(b)
			}
			s := filled(b, dir, n)
			name := fmt.Sprintf("%s/leases=%d/", where, n)
			if n == full {
				b.Run(name+"ADD-refused", func(b *testing.B) {
					for b.Loop() {
						if _, err := s.Allocate(context.Background(), owner("new")); !errors.Is(err, ipam.ErrExhausted) {
							b.Fatal(err)
						}
					}
				})
				continue
			}
			benchmark(b, name, s)
		}
	}
}

func benchmark(b *testing.B, name string, s *Store) {
	ctx := context.Background()
	run := func(what string, f func() error, after func() error) {
		b.Run(name+what, func(b *testing.B) {
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
				if after == nil {
					continue
				}
				b.StopTimer()
				if err := after(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
	add := func() error { _, err := s.Allocate(ctx, owner("new")); return err }
	del := func() error { return s.Release(ctx, owner("new")) }
	run("ADD", add, del)
	if err := add(); err != nil {
		b.Fatal(err)
	}
	run("DEL", del, add)
	if err := del(); err != nil {
		b.Fatal(err)
	}
	run("DEL-of-nothing", func() error { return s.Release(ctx, owner("nobody")) }, nil)
	run("STATUS", func() error { return s.Status(ctx, "net") }, nil)
	run("ADD-from-the-start", add, func() error { // the next one comes after all leases
		s.Requested = []netip.Addr{addr("10.1.0.2")}
		defer func() { s.Requested = nil }()
		err := errors.Join(del(), s.Release(ctx, owner("c0")))
		_, aerr := s.Allocate(ctx, owner("c0"))
		return errors.Join(err, aerr)
	})
	if err := del(); err != nil {
		b.Fatal(err)
	}
	theirs := func() error { // somebody else's ADD and DEL
		put(b, s.DataDir, "172.16.0.1", "x")
		return os.Remove(filepath.Join(s.DataDir, "net", "172.16.0.1"))
	}
	if err := theirs(); err != nil {
		b.Fatal(err)
	}
	run("DEL-of-nothing-after-somebody-else", func() error { return s.Release(ctx, owner("nobody")) }, theirs)
	run("the-first-ADD-without-an-index", add, func() error {
		return errors.Join(del(), os.RemoveAll(filepath.Join(s.DataDir, indexDir)))
	})
	var valid []spec.Owner
	for i := range 65533 {
		valid = append(valid, owner(fmt.Sprint("c", i)))
	}
	run("GC-of-nothing", func() error { return s.Sweep(ctx, "net", valid) }, nil)
}

// filled is a store with n leases in a row from the first address on.
func filled(b *testing.B, dir string, n int) *Store {
	b.Helper()
	s := &Store{DataDir: dir, Sets: sets(b, "10.1.0.0/16"), Log: slog.New(slog.DiscardHandler)}
	for i := range n {
		put(b, s.DataDir, ipam.Plus(addr("10.1.0.2"), uint64(i)).String(), text(owner(fmt.Sprint("c", i))))
	}
	put(b, s.DataDir, "last_reserved_ip.0", ipam.Plus(addr("10.1.0.1"), uint64(n)).String())
	if err := s.Status(context.Background(), "net"); err != nil && n < 65533 {
		b.Fatal(err)
	}
	return s
}
