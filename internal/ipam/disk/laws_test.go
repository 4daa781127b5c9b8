package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
)

// Whatever we and others do to a directory, in whatever order and however soon after each other, it is as
// a map from addresses to owners would be, and the index is right where it counts.
// clause: P19
func TestLaws(t *testing.T) {
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { laws(t, rand.New(rand.NewPCG(seed, 1)), 300) })
	}
}

// seeds are one of four in a run.
func seeds(t *testing.T) []uint64 { return nstest.Some(t, 4, []uint64{0, 1, 2, 3}) }

func laws(t *testing.T, r *rand.Rand, steps int) {
	ctx := context.Background()
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/27", "10.2.0.0/28"), Log: slog.New(slog.DiscardHandler)}
	model := map[string]string{} // address: content
	of := func(text string) (as []string) {
		for a, x := range model {
			if x == text {
				as = append(as, a)
			}
		}
		return as
	}
	file := func(a string) string { return filepath.Join(s.DataDir, "net", a) }
	for step := range steps {
		o := spec.Owner{Network: "net", ContainerID: fmt.Sprint("c", r.IntN(12)), IfName: fmt.Sprint("eth", r.IntN(2))}
		a := fmt.Sprint("10.1.0.", 1+r.IntN(30))
		var what string
		switch n := r.IntN(20); {
		case n < 8:
			what = "ADD " + o.String()
			s.Requested = nil
			if r.IntN(3) == 0 && a != "10.1.0.1" {
				s.Requested = []netip.Addr{addr(a)}
				what += " " + a
			}
			res, err := s.Allocate(ctx, o)
			switch {
			case err == nil:
				for _, ip := range res.IPs {
					got := ip.Address.Addr().String()
					if model[got] != "" || got == "10.1.0.1" || got == "10.2.0.1" {
						t.Fatalf("step %d, %s: got %s, which is %q's", step, what, got, model[got])
					}
					model[got] = text(o)
				}
			case errors.Is(err, ipam.ErrExhausted):
				used := map[byte]int{}
				for a := range model {
					used[a[3]]++
				}
				if used['1'] < 29 && used['2'] < 13 {
					t.Fatalf("step %d, %s: %v, and there are %v of 29 and 13", step, what, err, used)
				}
			case len(s.Requested) == 0 && len(of(text(o)))+len(of(oldText(o))) == 0, model[a] == "" && len(of(text(o)))+
				len(of(oldText(o))) == 0:
				t.Fatalf("step %d, %s: %v", step, what, err)
			}
		case n < 13:
			what = "DEL " + o.String()
			if err := s.Release(ctx, o); err != nil {
				t.Fatal(err)
			}
			for _, a := range append(of(text(o)), of(oldText(o))...) {
				delete(model, a)
			}
		case n < 14:
			what = "GC"
			var valid []spec.Owner
			keep := map[string]bool{}
			for a, text := range model {
				if id, ifName, ok := strings.Cut(text, "\r\n"); ok && r.IntN(2) == 0 {
					valid = append(valid, spec.Owner{Network: "net", ContainerID: id, IfName: ifName})
					keep[id], keep[text] = true, true
				}
				_ = a
			}
			if err := s.Sweep(ctx, "net", valid); err != nil {
				t.Fatal(err)
			}
			for a, text := range model {
				if !keep[text] {
					delete(model, a)
				}
			}
		case n < 16 && model[a] == "": // somebody else takes an address
			texts := []string{text(o), text(o), oldText(o), "a note of the operator's", ""}
			what = "their ADD of " + a
			model[a] = texts[r.IntN(len(texts))]
			put(t, s.DataDir, a, model[a])
			if model[a] == "" { // which is nobody's
				delete(model, a)
			}
		case n < 18:
			what = "their DEL of " + a
			if err := os.Remove(file(a)); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			delete(model, a)
		case n < 19:
			what = "their last_reserved_ip"
			put(t, s.DataDir, "last_reserved_ip.0", []string{a, "", "nonsense", "fd00::1"}[r.IntN(4)])
		default:
			what = "the index goes"
			if err := os.RemoveAll(filepath.Join(s.DataDir, indexDir)); err != nil {
				t.Fatal(err)
			}
		}
		audit(t, s)
		files := leases(t, s.DataDir)
		for a, text := range files {
			if text == "" && model[a] == "" {
				delete(files, a)
			}
		}
		if got, want := fmt.Sprint(files), fmt.Sprint(model); got != want {
			t.Fatalf("step %d, %s:\ngot  %s\nwant %s", step, what, got, want)
		}
		if t.Failed() {
			t.Fatalf("step %d, %s", step, what)
		}
	}
	// The index never has an address for used that is free: all can be had.
	for a := range model {
		if err := os.Remove(file(a)); err != nil {
			t.Fatal(err)
		}
	}
	s.Requested = nil
	for i := range 13 {
		if _, err := s.Allocate(ctx, owner(fmt.Sprint("z", i))); err != nil {
			t.Fatalf("address %d of 13: %v", i, err)
		}
	}
}

// Whatever an index file holds, no address is given twice, nobody loses a lease, and GC finds all.
func FuzzIndex(f *testing.F) {
	dir := f.TempDir()
	s := &Store{DataDir: dir, Sets: sets(f, "10.1.0.0/28"), Log: slog.New(slog.DiscardHandler)}
	junk := []string{"", "x", "\xff\xff", strings.Repeat("\xff", 64), strings.Repeat("\x01", 4096), "10.1.0.3 1 2 3 4",
		"10.1.0.2 1 2 3 4"}
	for i, s := range junk {
		for file := range uint8(5) {
			f.Add(file, uint32(i*4), []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, file uint8, at uint32, junk []byte) {
		if at > 1<<20 || len(junk) > 1<<16 {
			return
		}
		s := &Store{DataDir: t.TempDir(), Sets: s.Sets, Log: slog.New(slog.DiscardHandler)}
		add(t, s, "a")
		add(t, s, "b")
		index := indexPath(filepath.Join(s.DataDir, "net"))
		name := filepath.Join(index, []string{"state", "words/10.1.0.0", ownerName("a\r\neth0"),
			ownerName("b\r\neth0") + ".1", "k" + digest("sticky", "web\r\neth0")}[file%5])
		if file%5 > 1 {
			_ = os.Symlink(string(junk), name+"x") // what cannot be one cannot stand there
			_ = os.Rename(name+"x", name)
		} else {
			x, err := os.OpenFile(name, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, err = x.WriteAt(junk, int64(at))
			if err = errors.Join(err, x.Close()); err != nil {
				t.Fatal(err)
			}
		}
		for range 12 { // more than there are, maybe refused
			_, _ = s.Allocate(context.Background(), owner("c"))
			_ = s.Release(context.Background(), owner("d"))
		}
		got := leases(t, s.DataDir)
		if got["10.1.0.2"] != "a\r\neth0" || got["10.1.0.3"] != "b\r\neth0" {
			t.Errorf("leases: %v", got)
		}
		if err := s.Sweep(context.Background(), "net", owners("b")); err != nil {
			t.Error(err)
		}
		if got := leases(t, s.DataDir); len(got) != 1 || got["10.1.0.3"] != "b\r\neth0" {
			t.Errorf("after GC: %v", got)
		}
		if got := add(t, s, "e"); got[0] == "10.1.0.3" {
			t.Errorf("e got b's %s", got)
		}
	})
}

// Whatever a lease file holds, it is somebody's, and counts, or nobody's, and goes.
// clause: P11
func FuzzLease(f *testing.F) {
	for _, s := range []string{"", "\x00", "a\r\neth0", "a", " \r\n", "a\n", "\xff", "a\r\neth0\x00", "a note", "ä",
		strings.Repeat("x", 5000)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		ctx := context.Background()
		s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/30"), Log: slog.New(slog.DiscardHandler)}
		put(t, s.DataDir, "10.1.0.2", string(content)) // the only one there is
		_, err := s.Allocate(ctx, owner("new"))
		after := leases(t, s.DataDir)["10.1.0.2"]
		switch {
		case err == nil && (after != "new\r\neth0" || !garbage(strings.TrimSpace(string(content)))):
			t.Errorf("%q: given to somebody else, and now %q", content, after)
		case err != nil && after != string(content):
			t.Errorf("%q: refused (%v), and changed to %q", content, err, after)
		case err != nil:
			id, ifName, _ := strings.Cut(strings.TrimSpace(string(content)), "\r\n")
			if err := s.Release(ctx, spec.Owner{Network: "net", ContainerID: id, IfName: ifName}); err != nil {
				t.Error(err)
			}
		}
		if err := s.Sweep(ctx, "net", nil); err != nil {
			t.Error(err)
		}
		if left := leases(t, s.DataDir); len(left) > 0 {
			t.Errorf("%q: GC left %v", content, left)
		}
	})
}
