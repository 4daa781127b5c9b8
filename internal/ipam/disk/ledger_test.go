package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

func look(t testing.TB, s *Store) *ipam.Book {
	t.Helper()
	b, err := s.Look(context.Background(), "net")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Who is gone is so by proof, and nobody else's lease is reclaimed.
// clause: P15
func TestReclaim(t *testing.T) {
	ctx := context.Background()
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			s := &Store{DataDir: inMemory(t), Sets: small(t, f.subnets...), Log: testLog(t)}
			if gone, err := s.Reclaim(ctx, "net", false); err != nil || len(gone) > 0 {
				t.Errorf("of nothing: %v, %v", gone, err)
			}
			add(t, s, "earlier")
			reboot(t, "z")
			add(t, s, "alive")
			add(t, s, "dead")
			add(t, s, "unknown")
			cache(t, "net", "alive", "eth0", "/proc/self/ns/net")
			cache(t, "net", "dead", "eth0", "/run/netns/nowhere")
			cache(t, "other", "unknown", "eth0", "/run/netns/nowhere")
			for _, a := range f.addrs(6) { // somebody else's, and older than any
				put(t, s.DataDir, a, "old\r\neth0")
				if err := os.Chtimes(filepath.Join(s.DataDir, "net", a), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
					t.Fatal(err)
				}
			}
			states := map[string]string{}
			for _, l := range look(t, s).Leases {
				states[l.ContainerID] = l.State
			}
			if fmt.Sprint(states) != "map[alive:alive dead:gone earlier:gone old:unknown unknown:unknown]" {
				t.Errorf("states: %v", states)
			}
			for _, dry := range []bool{true, false} {
				gone, err := s.Reclaim(ctx, "net", dry)
				if err != nil || len(gone) != 2*len(f.subnets) {
					t.Errorf("dry %t: %v, %v", dry, gone, err)
				}
				want := 5 * len(f.subnets)
				if !dry {
					want = 3 * len(f.subnets)
				}
				if left := leases(t, s.DataDir); len(left) != want {
					t.Errorf("dry %t: left %v", dry, left)
				}
				if !audit(t, s) {
					t.Errorf("dry %t: the index does not count", dry)
				}
			}
		})
	}
}

// What is kept, and how much, is what was done.
func TestLook(t *testing.T) {
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			s := &Store{DataDir: inMemory(t), Sets: small(t, f.subnets...), Log: testLog(t), Cooldown: time.Hour}
			if b := look(t, s); len(b.Uses) != len(f.subnets) || b.Uses[0].Available != ipam.CountOf(5) {
				t.Errorf("before the first: %+v", b)
			}
			web := s.keyed("web", time.Hour)
			add(t, web, "w")
			add(t, s, "a")
			add(t, s, "b")
			del(t, s, "w")
			del(t, s, "a")
			last := addr(f.addrs(6)[0])
			reserveNow(t, s, []ipam.Reservation{{Prefix: netip.PrefixFrom(last, last.BitLen()), For: "db", Note: "x"}})
			put(t, s.DataDir, "note", "no lease")
			b := look(t, s)
			want := ipam.Use{Path: "ipam.ranges[0]", Range: s.Sets[0].String(), Size: ipam.CountOf(5), Reserved: ipam.CountOf(1),
				Used: ipam.CountOf(1), Held: ipam.CountOf(1), Resting: ipam.CountOf(1), Available: ipam.CountOf(3)}
			if b.Uses[0] != want {
				t.Errorf("got  %+v\nwant %+v", b.Uses[0], want)
			}
			if len(b.Leases) != len(f.subnets) || b.Leases[0].Address != addr(f.addrs(4)[0]) || b.Leases[0].ContainerID != "b" ||
				b.Leases[0].IfName != "eth0" {
				t.Errorf("leases: %+v", b.Leases)
			}
			if len(b.Sticky) != len(f.subnets) || b.Sticky[0].Key != "web" || b.Sticky[0].Address != addr(f.addrs(2)[0]) ||
				time.Until(b.Sticky[0].Until) < 59*time.Minute {
				t.Errorf("sticky: %+v", b.Sticky)
			}
			if len(b.Reserved) != 1 || b.Reserved[0].For != "db" || b.Reserved[0].Note != "x" || len(b.Problems) > 0 {
				t.Errorf("reserved: %+v, problems %v", b.Reserved, b.Problems)
			}
			mine := addr(f.addrs(4)[0]) // reserved only now, so "b" keeps it
			reserveNow(t, s, []ipam.Reservation{{Prefix: netip.PrefixFrom(mine, mine.BitLen())}})
			want.Available = ipam.CountOf(4)
			if b := look(t, s); b.Uses[0] != want {
				t.Errorf("with the lease reserved: got  %+v\nwant %+v", b.Uses[0], want)
			}
			names, err := s.Networks(context.Background())
			if err != nil || !slices.Equal(names, []string{"net"}) {
				t.Errorf("networks: %v, %v", names, err)
			}
			os.RemoveAll(filepath.Join(s.DataDir, "net")) // by hand; what is kept is kept
			if b := look(t, s); len(b.Leases)+len(b.Sticky)+len(b.Reserved) > 0 {
				t.Errorf("a network without a directory: %+v", b)
			}
			if names, err := s.Networks(context.Background()); err != nil || len(names) != 1 {
				t.Errorf("networks: %v, %v", names, err)
			}
			if got := add(t, web, "w2"); !slices.Equal(got, f.addrs(2)) {
				t.Errorf("web gets %s", got)
			}
		})
	}
}

// Exported and imported, a network is the same; and the reference reads it.
func TestImport(t *testing.T) {
	ctx := context.Background()
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			from := &Store{DataDir: inMemory(t), Sets: small(t, f.subnets...), Log: testLog(t)}
			add(t, from.keyed("web", time.Hour), "w")
			add(t, from, "a")
			del(t, from, "w")
			one := addr(f.addrs(5)[0])
			reserveNow(t, from, []ipam.Reservation{{Prefix: netip.PrefixFrom(one, one.BitLen())}})
			b := look(t, from)
			to := &Store{DataDir: inMemory(t), Sets: from.Sets, Log: testLog(t)}
			for _, dry := range []bool{true, false, false} {
				had := len(leases(t, to.DataDir))
				added, err := to.Import(ctx, "net", b, false, dry)
				if err != nil || (had == 0) != (len(added.Leases) == len(f.subnets)) ||
					(had == 0) != (len(added.Sticky) == len(f.subnets)) || (had == 0) != (len(added.Reserved) == 1) {
					t.Fatalf("dry %t, after %d: %+v, %v", dry, had, added, err)
				}
				if dry != (len(leases(t, to.DataDir)) == 0) {
					t.Errorf("dry %t: %v", dry, leases(t, to.DataDir))
				}
			}
			if fmt.Sprint(leases(t, to.DataDir)) != fmt.Sprint(leases(t, from.DataDir)) || !audit(t, to) {
				t.Errorf("got %v, want %v", leases(t, to.DataDir), leases(t, from.DataDir))
			}
			if got := add(t, to, "b"); slices.Equal(got, f.addrs(2)) || slices.Equal(got, f.addrs(5)) {
				t.Errorf("others get %s", got)
			}
			if got := add(t, to.keyed("web", time.Hour), "w2"); !slices.Equal(got, f.addrs(2)) {
				t.Errorf("web gets %s", got)
			}
			ref := findReference(t, to.DataDir, to.Sets)
			if _, err := ref.run("DEL", "a"); err != nil {
				t.Error(err)
			}
			for _, text := range leases(t, to.DataDir) {
				if strings.HasPrefix(text, "a\r") {
					t.Error("the reference does not find an imported lease")
				}
			}
			// What contradicts is named, all of it, and nothing is done.
			b.Leases = append(b.Leases, ipam.Lease{Address: addr(f.addrs(2)[0]), ContainerID: "thief", IfName: "eth0"},
				ipam.Lease{Address: addr("192.0.2.1"), ContainerID: "stray"},
				ipam.Lease{Address: addr("2001:db8::1"), ContainerID: "\x00"}, ipam.Lease{Address: to.Sets[0].Ranges[0].Gateway,
					ContainerID: "gw", IfName: "eth0"})
			before := fmt.Sprint(leases(t, to.DataDir))
			_, err := to.Import(ctx, "net", b, false, false)
			for _, want := range []string{f.addrs(2)[0] + " is in use by w2 eth0, and not by thief eth0", "192.0.2.1 is not in any range of the network", `lease 2001:db8::1 of "\x00": containerID: container ID "\x00" begins with`, "is the gateway"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v: nothing of %q", err, want)
				}
			}
			if after := fmt.Sprint(leases(t, to.DataDir)); after != before {
				t.Errorf("a refused import left\n%s\nbefore it was\n%s", after, before)
			}
		})
	}
}

// An import that a full disk ends leaves nothing.
func TestImportFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	s := &Store{DataDir: dir, Sets: sets(t, "10.1.0.0/16", "fd00::/64"), Log: slog.New(slog.DiscardHandler)}
	add(t, s, "a")
	b := &ipam.Book{}
	for i := range 200 {
		b.Leases = append(b.Leases, ipam.Lease{Address: ipam.Plus(addr("10.1.1.0"), uint64(i)),
			ContainerID: fmt.Sprint("c", i), IfName: "eth0"},
			ipam.Lease{Address: ipam.Plus(addr("fd00::1:0"), uint64(i)), ContainerID: fmt.Sprint("c", i), IfName: "eth0"})
	}
	_, err := s.Import(context.Background(), "net", b, false, false)
	if !errors.Is(err, unix.ENOSPC) || spec.AsError(err, 0).Code != spec.CodeIO {
		t.Errorf("got %v", err)
	}
	if left := leases(t, dir); len(left) != 2 {
		t.Errorf("left %d leases", len(left))
	}
	audit(t, s)
	add(t, s, "b")
}

// importable is a little of everything.
func importable() *ipam.Book {
	b := &ipam.Book{Reserved: []ipam.Reservation{{Prefix: netip.MustParsePrefix("10.1.0.9/32")},
		{Prefix: netip.MustParsePrefix("fd00::9/128")}}}
	for _, a := range []string{"10.1.0.5", "fd00::5"} {
		b.Leases = append(b.Leases, ipam.Lease{Address: addr(a), ContainerID: "i", IfName: "eth0"})
		b.Sticky = append(b.Sticky, ipam.Binding{Address: addr(a).Next(), Key: "web", IfName: "eth0", Seconds: 3600,
			Since: time.Now()})
	}
	return b
}

// An import that is killed is finished by doing it again.
// clause: P11
func TestImportKilled(t *testing.T) {
	for n := 1; ; n++ {
		s := &Store{DataDir: inMemory(t), Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: testLog(t)}
		add(t, s, "a")
		killed, at := killAt(t, n, "import", s.DataDir, "10.1.0.0/24", "x")
		remembered(t, s.DataDir)
		audit(t, s)
		if _, err := s.Import(context.Background(), "net", importable(), false, false); err != nil {
			t.Errorf("killed at %s: %v", at, err)
		}
		b := look(t, s)
		if len(b.Leases) != 4 || len(b.Sticky) != 2 || len(b.Reserved) != 2 || len(b.Problems) > 0 || !audit(t, s) {
			t.Errorf("killed at %s: %+v", at, b)
		}
		if got := add(t, s.keyed("web", time.Hour), "w"); got[0] != "10.1.0.6" || got[1] != "fd00::6" {
			t.Errorf("killed at %s: the key gets %s", at, got)
		}
		del(t, s, "i")
		if left := leases(t, s.DataDir); len(left) != 4 || t.Failed() {
			t.Fatalf("killed at point %d, %s: %v", n, at, left)
		}
		if !killed {
			t.Logf("killed at %d points", n-1)
			return
		}
	}
}

// What is on a second machine, and in a second document, is not contradicted by what is held there either; and an
// import that cannot write down its reservations leaves neither leases nor holds.
func TestImportAllOrNothing(t *testing.T) {
	ctx := context.Background()
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			s := &Store{DataDir: inMemory(t), Sets: small(t, f.subnets...), Log: testLog(t)}
			add(t, s, "a")
			b := &ipam.Book{Reserved: []ipam.Reservation{{Prefix: netip.MustParsePrefix("10.1.0.4/32")},
				{Prefix: netip.MustParsePrefix("fd00::4/128")}}}
			b.Reserved = slices.DeleteFunc(b.Reserved,
				func(r ipam.Reservation) bool { _, ok := s.find(r.Prefix.Addr()); return !ok })
			for i := range f.subnets {
				b.Leases = append(b.Leases, ipam.Lease{Address: addr(f.addrs(5)[i]), ContainerID: "i", IfName: "eth0"})
				b.Sticky = append(b.Sticky, ipam.Binding{Address: addr(f.addrs(5)[i]), Key: "web", IfName: "eth0", Seconds: 60,
					Since: time.Now()},
					ipam.Binding{Address: addr(f.addrs(6)[i]), Key: "db", IfName: "eth0", Seconds: 60, Since: time.Now()})
			}
			before := fmt.Sprint(look(t, s))
			taken := *b
			taken.Sticky = append(slices.Clone(b.Sticky),
				ipam.Binding{Address: addr(f.addrs(2)[0]), Key: "x", IfName: "eth0", Since: time.Now()})
			if _, err := s.Import(ctx, "net", &taken, true, false); err == nil ||
				!strings.Contains(err.Error(), fmt.Sprintf("sticky[%d]: %s is in use by a eth0, and cannot be held for x",
					2*len(f.subnets), f.addrs(2)[0])) {
				t.Errorf("what another has is held: %v", err)
			}
			// in the way of the last file
			if err := os.MkdirAll(filepath.Join(s.DataDir, keptDir, "net", newPrefix+"reserved"), 0o700); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Import(ctx, "net", b, false, false); err == nil || spec.AsError(err, 0).Code != spec.CodeIO {
				t.Errorf("with a folder in the way: %v", err)
			}
			if after := fmt.Sprint(look(t, s)); after != before || !audit(t, s) {
				t.Errorf("a failed import left\n%s\nbefore it was\n%s", after, before)
			}
			if err := os.Remove(filepath.Join(s.DataDir, keptDir, "net", newPrefix+"reserved")); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Import(ctx, "net", b, false, false); err != nil {
				t.Error(err)
			}
		})
	}
}

// One reservation ends, and the others stay.
func TestUnreserve(t *testing.T) {
	s := &Store{DataDir: inMemory(t), Log: testLog(t)}
	first, second := netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.2/32")
	for _, p := range []netip.Prefix{first, second} {
		if err := s.Reserve(t.Context(), "net", ipam.Reservation{Prefix: p, For: "db"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Unreserve(t.Context(), "net", first); err != nil {
		t.Error(err)
	}
	if err := s.Unreserve(t.Context(), "net", first); err == nil {
		t.Errorf("%v ended twice", first)
	}
	left := look(t, s).Reserved
	if len(left) != 1 || left[0].Prefix != second {
		t.Errorf("left %v, want %v", left, second)
	}
}
