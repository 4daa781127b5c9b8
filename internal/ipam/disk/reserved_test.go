package disk

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// What is reserved goes to nobody who does not ask for it by name.
// clause: K5
func TestReserved(t *testing.T) {
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			s := &Store{DataDir: inMemory(t), Sets: small(t, f.subnets...), Log: testLog(t)}
			for _, end := range []int{2, 4, 5} {
				for _, a := range f.addrs(end) {
					s.Reserved = append(s.Reserved, netip.PrefixFrom(addr(a), addr(a).BitLen()))
				}
			}
			for i, end := range []int{3, 6} {
				if got := add(t, s, fmt.Sprint("c", i)); !slices.Equal(got, f.addrs(end)) {
					t.Errorf("got %s, want %s", got, f.addrs(end))
				}
			}
			_, err := s.Allocate(context.Background(), owner("d"))
			if err == nil || !strings.Contains(err.Error(), "2 of 2 are in use, and 3 are reserved") {
				t.Errorf("one too many: %v", err)
			}
			if err := s.Status(context.Background(), "net"); err == nil || spec.AsError(err, 0).Code != spec.CodeUnavailable {
				t.Errorf("STATUS: %v", err)
			}
			for _, a := range f.addrs(4) {
				s.Requested = append(s.Requested, addr(a))
			}
			if got := add(t, s, "asks"); !slices.Equal(got, f.addrs(4)) {
				t.Errorf("got %s", got)
			}
		})
	}
}

// Who has the key of a reservation gets it unasked, and nobody else does.
func TestReservedForAKey(t *testing.T) {
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			var log said
			s := &Store{DataDir: inMemory(t), Sets: small(t, f.subnets...), Log: log.log()}
			web, other := s.keyed("web", time.Hour), s.keyed("other", time.Hour)
			add(t, web, "w1") // has another one so far
			del(t, web, "w1")
			var list []ipam.Reservation
			for _, a := range f.addrs(5) {
				list = append(list, ipam.Reservation{Prefix: netip.PrefixFrom(addr(a), addr(a).BitLen()), For: "web"})
			}
			reserveNow(t, s, list)
			if got := add(t, web, "w2"); !slices.Equal(got, f.addrs(5)) {
				t.Errorf("got %s", got)
			}
			if m := remembered(t, s.DataDir); len(m) != len(f.subnets) || m[f.addrs(5)[0]] != "web" {
				t.Errorf("remembered: %v", m)
			}
			if got := add(t, web, "w3"); slices.Equal(got, f.addrs(5)) {
				t.Errorf("a second one: %s", got)
			}
			log.has(t, "the addresses that are reserved for the key are in use")
			del(t, web, "w2")
			other.Requested = []netip.Addr{addr(f.addrs(5)[0])}
			if _, err := other.Allocate(context.Background(), owner("o1")); err == nil ||
				!strings.Contains(err.Error(), "requested address "+f.addrs(5)[0]+" is reserved for web") {
				t.Errorf("another asks for it: %v", err)
			}
			s.Requested = other.Requested
			if _, err := s.Allocate(context.Background(), owner("o1")); err == nil ||
				!strings.Contains(err.Error(), "is reserved for web") {
				t.Errorf("another without a key asks for it: %v", err)
			}
			// A sticky address that was reserved for somebody else since.
			for i := range list {
				list[i].For = "other"
			}
			reserveNow(t, s, list)
			if got := add(t, web, "w4"); slices.Contains(got, f.addrs(5)[0]) {
				t.Errorf("got %s", got)
			}
			log.has(t, "is reserved for other")
			other.Requested = nil
			if got := add(t, other, "o2"); !slices.Equal(got, f.addrs(5)) {
				t.Errorf("got %s", got)
			}
		})
	}
}

func reserveNow(t testing.TB, s *Store, list []ipam.Reservation) {
	t.Helper()
	d, err := s.open(context.Background(), "net", true)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if err := d.reserve(list); err != nil {
		t.Fatal(err)
	}
}

// Reservations that cannot be read are a promise that cannot be kept: nothing is given out, and all else goes on.
// clause: P12 P21
func TestReservedGarbage(t *testing.T) {
	for _, content := range []string{"", "{", "{}", "null", `{"reserved":[{}]}`, `{"reserved":[{"prefix":"10.1.0.5/24"}]}`, "\x00"} {
		s := &Store{DataDir: inMemory(t), Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: testLog(t)}
		add(t, s, "a")
		reserveNow(t, s, nil)
		path := filepath.Join(s.DataDir, keptDir, "net", "reserved")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Allocate(context.Background(), owner("b")); err == nil || spec.AsError(err, 0).Code != spec.CodeIO ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%q: ADD: %v", content, err)
		}
		if err := s.Status(context.Background(), "net"); err == nil || spec.AsError(err, 0).Code != spec.CodeUnavailable {
			t.Errorf("%q: STATUS: %v", content, err)
		}
		del(t, s, "a")
		if err := s.Sweep(context.Background(), "net", nil); err != nil {
			t.Errorf("%q: GC: %v", content, err)
		}
		if err := unix.Unlink(path); err != nil {
			t.Fatal(err)
		}
		add(t, s, "b")
	}
}
