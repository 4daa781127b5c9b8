package disk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
	"golang.org/x/sys/unix"
)

// What the index finds free is what a map of the same addresses would, across blocks and up to the ends
// of the address space.
func TestFree(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	starts := []string{"10.1.0.0", "10.1.3.250", "0.0.0.0", "255.255.240.0", "fd00::", "fd00::fff0", "::",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:e000"}
	dir := inMemory(t)
	for i := range 200 {
		path := filepath.Join(dir, indexDir, fmt.Sprint(i))
		x := openIndex(path)
		if x.make(path); i%2 == 0 { // half of them where nothing can be written
			x.note(errors.New("read-only"))
			unix.Close(x.fd)
			x.fd = -1
		}
		model := map[netip.Addr]uint32{}
		start := addr(starts[r.IntN(len(starts))])
		n := 1 + r.IntN(4096)
		now := clock(1000)
		for j := range n { // mostly long runs
			if word := []uint32{0, taken, taken, taken, uint32(1 + r.IntN(1000)),
				now.held(time.Duration(r.IntN(100)-20) * time.Second)}[r.IntN(6)]; word != 0 && r.IntN(50) > 0 {
				model[ipam.Plus(start, uint64(j))] = word
				x.mark(ipam.Plus(start, uint64(j)), word)
			}
		}
		first, last := r.IntN(n), r.IntN(n)
		spans := []ipam.Span{{First: ipam.Plus(start, uint64(min(first, last))),
			Last: ipam.Plus(start, uint64(max(first, last)))}}
		if r.IntN(2) == 0 { // in two parts, the later one first
			cut := spans[0].First
			for range r.IntN(max(first, last) - min(first, last) + 1) {
				cut = cut.Next()
			}
			if cut != spans[0].Last {
				spans = []ipam.Span{{First: cut.Next(), Last: spans[0].Last}, {First: spans[0].First, Last: cut}}
			}
		}
		gateway := ipam.Plus(start, uint64(r.IntN(n)))
		var want, tired, held netip.Addr
		rest := 50 * time.Second
		for i := range spans {
			spans[i].Gateway = gateway
			for a := spans[i].First; a.IsValid() && !spans[i].Last.Less(a); a = a.Next() {
				word := model[a]
				switch {
				case a == gateway || word == taken || want.IsValid():
				case word == 0 || !isHold(word) && time.Duration(1000-word)*time.Second/10 >= rest || isHold(word) &&
					now.left(word) <= 0:
					want = a
				case isHold(word):
					if !held.IsValid() || word < model[held] {
						held = a
					}
				case !tired.IsValid() || word < model[tired]:
					tired = a
				}
			}
		}
		if !want.IsValid() {
			want = tired
		}
		if !want.IsValid() {
			want = held
		}
		got, how := x.free(spans, now, rest)
		if (x.err != nil) != (i%2 == 0) || got != want || (how != nowhere) != want.IsValid() {
			t.Fatalf("%v: got %s, want %s (%v)", spans, got, want, x.err)
		}
		used := uint64(0)
		set := ipam.Set{Ranges: []ipam.Range{{RangeStart: start, RangeEnd: ipam.Plus(start, uint64(n-1)), Gateway: gateway}}}
		for a, word := range model {
			if word == taken && a != gateway {
				used++
			}
		}
		if got := x.census(set, nil, 0, 0).Used; got != ipam.CountOf(used) {
			t.Fatalf("%s of %d are used", got, used)
		}
		x.close()
	}
}

// Words that cannot be read are not the words of free addresses.
func TestUnreadableWords(t *testing.T) {
	for name, used := range map[string]func(*testing.T, *Store) string{
		"room": func(t *testing.T, s *Store) string {
			free, size, err := s.Room(t.Context(), "net")
			return fmt.Sprint(size.Sub(free), " ", err)
		},
		"look": func(t *testing.T, s *Store) string {
			book, err := s.Look(t.Context(), "net")
			return fmt.Sprint(book.Uses[0].Used, " ", err)
		},
		"add": func(t *testing.T, s *Store) string {
			return fmt.Sprint(add(t, s, "f"), " <nil>")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Store{DataDir: inMemory(t), Sets: small(t, "10.1.0.0/24"), Log: testLog(t)}
			for _, id := range []string{"a", "b", "c", "d", "e"} {
				add(t, s, id)
			}
			del(t, s, "c")
			words := filepath.Join(indexPath(filepath.Join(s.DataDir, "net")), "words", "10.1.0.0")
			if err := errors.Join(os.Remove(words), os.Mkdir(words, 0o700)); err != nil {
				t.Fatal(err)
			}
			if got := used(t, s); got != "4 <nil>" && got != "[10.1.0.4] <nil>" {
				t.Errorf("%s, want 4 addresses in use and 10.1.0.4 free", got)
			}
		})
	}
}

// A lease without a binding is declined, too.
func TestDeclineUnbound(t *testing.T) {
	s := &Store{DataDir: inMemory(t), Sets: small(t, "10.1.0.0/24"), Log: testLog(t)}
	a := add(t, s, "w")[0]
	if err := s.Decline(t.Context(), owner("w"), addr(a)); err != nil || len(leases(t, s.DataDir)) != 0 {
		t.Errorf("%v, left: %v", err, leases(t, s.DataDir))
	}
}

// A binding that cannot be read may still hold the address that was declined.
func TestDeclineUnreadable(t *testing.T) {
	s := (&Store{DataDir: inMemory(t), Sets: small(t, "10.1.0.0/24"), Log: testLog(t)}).keyed("web", time.Hour)
	a := add(t, s, "w")[0]
	kept := filepath.Join(s.DataDir, keptDir, "net", a)
	if err := errors.Join(os.Remove(kept), os.Mkdir(kept, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := s.Decline(t.Context(), owner("w"), addr(a)); err == nil || !strings.Contains(err.Error(), kept) {
		t.Errorf("declined beside an unreadable binding: %v", err)
	}
	if got := leases(t, s.DataDir); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// A lease that another program rewrote for another container stays when the former owner is deleted.
func TestRewrittenLease(t *testing.T) {
	s := &Store{DataDir: inMemory(t), Sets: small(t, "10.1.0.0/24"), Log: testLog(t)}
	a := add(t, s, "a")[0]
	path := filepath.Join(s.DataDir, "net", a)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(text(owner("b")))
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	del(t, s, "a")
	if now, err := os.ReadFile(path); string(now) != text(owner("b")) {
		t.Errorf("the lease of b is %q, %v", now, err)
	}
}
