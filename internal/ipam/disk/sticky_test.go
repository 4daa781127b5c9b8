package disk

import (
	"context"
	"encoding/json"
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
)

// families are the sets that a test of what is equal in both runs with, and the address of each with this end.
var families = map[string]struct {
	subnets []string
	addrs   func(end int) []string
}{
	"IPv4": {[]string{"10.1.0.0/29"}, func(n int) []string { return []string{fmt.Sprint("10.1.0.", n)} }},
	"IPv6": {[]string{"fd00::/125"}, func(n int) []string { return []string{fmt.Sprint("fd00::", n)} }},
	"both": {[]string{"10.1.0.0/29", "fd00::/125"},
		func(n int) []string { return []string{fmt.Sprint("10.1.0.", n), fmt.Sprint("fd00::", n)} }},
}

// inMemory is a folder that syncing costs nothing in.
func inMemory(t testing.TB) string {
	t.Helper()
	err := os.MkdirAll("/var/lib/cni", 0o755)
	dir, merr := os.MkdirTemp("/var/lib/cni", "memory")
	if err = errors.Join(err, merr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// small are sets of which the addresses ending in 2 to 6 are given out.
func small(t testing.TB, subnets ...string) []ipam.Set {
	all := sets(t, subnets...)
	for i := range all {
		all[i].Ranges[0].RangeEnd = ipam.Plus(all[i].Ranges[0].Gateway, 5)
	}
	return all
}

// keyed is s for an owner with that key.
func (s *Store) keyed(key string, ttl time.Duration) *Store {
	c := *s
	c.Sticky = &Sticky{Key: key, TTL: ttl}
	return &c
}

// said is a log to look into.
type said struct{ strings.Builder }

func (s *said) has(t *testing.T, what string) {
	t.Helper()
	if !strings.Contains(s.String(), what) {
		t.Errorf("nothing is said of %q:\n%s", what, s.String())
	}
	s.Reset()
}

func (s *said) log() *slog.Logger { return slog.New(slog.NewTextHandler(s, nil)) }

// remembered is what is kept, address to key.
func remembered(t testing.TB, dataDir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dataDir, keptDir, "net"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err != nil {
			if e.Name() != "reserved" && !strings.HasPrefix(e.Name(), newPrefix) {
				t.Errorf("a stray file %s", e.Name())
			}
			continue
		}
		b, err := os.ReadFile(filepath.Join(dataDir, keptDir, "net", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		var r record
		if err := json.Unmarshal(b, &r); err != nil {
			t.Errorf("%s is torn: %q", e.Name(), b)
		}
		m[e.Name()] = r.Key
	}
	return m
}

// write puts a record as it would have been made at another time.
func write(t testing.TB, s *Store, a string, change func(*record)) {
	t.Helper()
	path := filepath.Join(s.DataDir, keptDir, "net", a)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	change(&r)
	if b, err = json.Marshal(r); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	rescan(t, s)
}

// rescan has the next call make the index anew.
func rescan(t testing.TB, s *Store) {
	t.Helper()
	put(t, s.DataDir, "172.16.0.1", "x")
	if err := os.Remove(filepath.Join(s.DataDir, "net", "172.16.0.1")); err != nil {
		t.Fatal(err)
	}
}

// Who comes under a key gets what the key had last; nobody else does while others are free and its time runs.
// clause: K5 K11
func TestSticky(t *testing.T) {
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			var log said
			s := &Store{DataDir: inMemory(t), Sets: small(t, f.subnets...), Log: log.log()}
			web, db, nobody := s.keyed("default/web", time.Hour), s.keyed("default/db", time.Hour), s.keyed("", time.Hour)
			is := func(what string, got []string, end int) {
				t.Helper()
				if !slices.Equal(got, f.addrs(end)) {
					t.Fatalf("%s: got %s, want %s", what, got, f.addrs(end))
				}
				if !audit(t, s) {
					t.Fatalf("%s: the index does not count", what)
				}
			}
			is("web", add(t, web, "w1"), 2)
			is("db", add(t, db, "d1"), 3)
			is("nobody", add(t, nobody, "n1"), 4)
			del(t, &Store{DataDir: s.DataDir}, "w1") // DEL comes without the configuration
			is("another", add(t, nobody, "n2"), 5)
			is("web again", add(t, web, "w2"), 2)

			// An address of its own is not the next one: others go on where they were.
			is("nobody goes on", add(t, nobody, "n5"), 6)
			del(t, nobody, "n5")
			if last, err := os.ReadFile(filepath.Join(s.DataDir, "net", "last_reserved_ip.0")); err != nil ||
				string(last) != f.addrs(6)[0] {
				t.Errorf("last_reserved_ip.0: %q, %v", last, err)
			}
			del(t, web, "w2")
			is("web once more", add(t, web, "w2"), 2)
			if last, err := os.ReadFile(filepath.Join(s.DataDir, "net", "last_reserved_ip.0")); err != nil ||
				string(last) != f.addrs(6)[0] {
				t.Errorf("after the key's own address, last_reserved_ip.0: %q, %v", last, err)
			}

			// Two of one key at the same time.
			is("a second web", add(t, web, "w3"), 6)
			log.has(t, "the sticky address is in use, so this owner gets another one")
			del(t, web, "w3")
			del(t, web, "w2")
			is("the first one's is the key's", add(t, web, "w4"), 2)

			// With nothing else free it is given to others: those that rest before it, and it last.
			del(t, web, "w4")
			s.Cooldown, web.Cooldown, nobody.Cooldown = time.Hour, time.Hour, time.Hour
			is("what rests", add(t, nobody, "n3"), 6)
			is("what is held", add(t, nobody, "n4"), 2)
			if m := remembered(t, s.DataDir); m[f.addrs(2)[0]] != "" || m[f.addrs(3)[0]] != "default/db" {
				t.Errorf("remembered: %v", m)
			}
			if _, err := web.Allocate(context.Background(), owner("w5")); err == nil {
				t.Error("one too many")
			}
			// The reference, or a hand, removes a lease: the hold begins.
			if err := os.Remove(filepath.Join(s.DataDir, "net", f.addrs(3)[0])); err != nil {
				t.Fatal(err)
			}
			for _, a := range f.addrs(3)[1:] {
				if err := os.Remove(filepath.Join(s.DataDir, "net", a)); err != nil {
					t.Fatal(err)
				}
			}
			del(t, nobody, "n1")
			is("past the held one", add(t, nobody, "n6"), 4)
			is("db, after somebody else's DEL", add(t, db, "d2"), 3)
		})
	}
}

// A hold is over when its time is, and whatever the clock says, it is over some time.
func TestStickyTime(t *testing.T) {
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			for what, tc := range map[string]struct {
				ttl    time.Duration
				change func(*record)
				held   bool
			}{
				"fresh":                  {time.Hour, func(*record) {}, true},
				"over":                   {time.Hour, func(r *record) { r.Clock, r.Since = 1, r.Since-36000; r.TTL = 0 }, false},
				"no time at all":         {0, func(*record) {}, false},
				"of an earlier boot":     {time.Hour, func(r *record) { r.Boot = 7; r.Since -= 1800 }, true},
				"over since an old boot": {time.Hour, func(r *record) { r.Boot = 7; r.Since -= 3601 }, false},
				"of an unknown boot":     {time.Hour, func(r *record) { r.Boot = 0; r.Since -= 3601 }, false},
				// Within a boot the wall clock may be set at will.
				"clock set forward":                    {time.Hour, func(r *record) { r.Since -= 1e8 }, true},
				"clock set back":                       {time.Hour, func(r *record) { r.Since += 1e8 }, true},
				"clock set back, in an earlier boot":   {time.Hour, func(r *record) { r.Boot = 7; r.Since += 1e8 }, true},
				"a clock that begins in 1970":          {time.Hour, func(r *record) { r.Boot = 7; r.Since = 5 }, false},
				"a time to live beyond the clock's":    {90 * 365 * 24 * time.Hour, func(*record) {}, true},
				"… of an earlier boot":                 {90 * 365 * 24 * time.Hour, func(r *record) { r.Boot = 7 }, true},
				"a clock of this boot from the future": {time.Hour, func(r *record) { r.Clock = holdBit - 1 }, true},
			} {
				t.Run(what, func(t *testing.T) {
					s := &Store{DataDir: inMemory(t), Sets: small(t, f.subnets...), Log: testLog(t)}
					web, nobody := s.keyed("web", tc.ttl), s.keyed("", tc.ttl)
					add(t, web, "w1")
					del(t, web, "w1")
					for _, a := range f.addrs(2) {
						write(t, s, a, tc.change)
					}
					for i, end := range []int{3, 4, 5, 6} {
						if got := add(t, nobody, fmt.Sprint("n", i)); !slices.Equal(got, f.addrs(end)) {
							t.Fatalf("got %s, want %s", got, f.addrs(end))
						}
					}
					del(t, nobody, "n1")
					want := 4 // what others had lately comes before what is held
					if !tc.held {
						want = 2
					}
					if got := add(t, nobody, "n4"); !slices.Equal(got, f.addrs(want)) {
						t.Errorf("got %s, want %s", got, f.addrs(want))
					}
					if !audit(t, s) {
						t.Error("the index does not count")
					}
				})
			}
		})
	}
}

// A reboot takes leases and not what is sticky, and so does the loss of the index.
func TestStickyAfterReboot(t *testing.T) {
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			s := &Store{DataDir: inMemory(t), Sets: small(t, f.subnets...), Log: testLog(t), Results: t.TempDir()}
			web, nobody := s.keyed("web", time.Hour), s.keyed("", time.Hour)
			add(t, web, "w1")
			add(t, nobody, "n1")
			reboot(t, "b")
			// The container comes under another ID, and its lease is there still.
			if got := add(t, web, "w2"); !slices.Equal(got, f.addrs(2)) {
				t.Errorf("after a reboot: %s", got)
			}
			del(t, web, "w2")
			if err := os.RemoveAll(filepath.Join(s.DataDir, indexDir)); err != nil {
				t.Fatal(err)
			}
			if got := add(t, nobody, "n2"); !slices.Equal(got, f.addrs(4)) {
				t.Errorf("others, without the index: %s", got)
			}
			reboot(t, "c")
			if got := add(t, web, "w3"); !slices.Equal(got, f.addrs(2)) {
				t.Errorf("after another reboot: %s", got)
			}
			// A container that died without a DEL, as the runtime's cache knows.
			cache(t, "net", "w3", "eth0", "/run/netns/nowhere")
			s.Results, web.Results = "/var/lib/cni/results", "/var/lib/cni/results"
			if got := add(t, web, "w4"); !slices.Equal(got, f.addrs(2)) {
				t.Errorf("after a death: %s", got)
			}
			// A whole set of leases of an earlier boot goes before what is held does.
			for _, id := range []string{"w4", "n1", "n2"} {
				del(t, web, id)
			}
			for i := range 4 {
				add(t, nobody, fmt.Sprint("x", i))
			}
			reboot(t, "d")
			for i := range 4 {
				if got := add(t, nobody, fmt.Sprint("y", i)); slices.Contains(got, f.addrs(2)[0]) {
					t.Errorf("others got %s", got)
				}
			}
			if got := add(t, web, "w5"); !slices.Equal(got, f.addrs(2)) {
				t.Errorf("at last: %s", got)
			}
		})
	}
}

// What is asked for by name comes before what is sticky, and is what the key has from then on.
func TestStickyAndRequested(t *testing.T) {
	s := &Store{DataDir: inMemory(t), Sets: sets(t, "10.1.0.0/28", "fd00::/64"), Log: testLog(t)}
	web := s.keyed("web", time.Hour)
	add(t, web, "w1")
	del(t, web, "w1")
	web.Requested = []netip.Addr{addr("10.1.0.9")}
	if got := add(t, web, "w2"); !slices.Equal(got, []string{"10.1.0.9", "fd00::2"}) {
		t.Errorf("got %s", got)
	}
	web.Requested = nil
	del(t, web, "w2")
	if got := add(t, web, "w3"); !slices.Equal(got, []string{"10.1.0.9", "fd00::2"}) {
		t.Errorf("got %s", got)
	}
	if m := remembered(t, s.DataDir); len(m) != 2 {
		t.Errorf("remembered: %v", m)
	}
	// Somebody asks for what is held.
	del(t, web, "w3")
	other := s.keyed("db", time.Hour)
	other.Requested = []netip.Addr{addr("10.1.0.9"), addr("fd00::2")}
	add(t, other, "d1")
	if m := remembered(t, s.DataDir); len(m) != 2 || m["10.1.0.9"] != "db" || m["fd00::2"] != "db" {
		t.Errorf("remembered: %v", m)
	}
	if got := add(t, web, "w4"); slices.Contains(got, "10.1.0.9") || slices.Contains(got, "fd00::2") {
		t.Errorf("got %s", got)
	}
	// What somebody without a key took is the key's no more, for as long as that one has it.
	del(t, web, "w4")
	was := add(t, web, "w4")
	del(t, web, "w4")
	s.Requested = []netip.Addr{addr(was[0]), addr(was[1])}
	add(t, s, "taker")
	s.Requested = nil
	moved := add(t, web, "w4")
	if slices.Equal(moved, was) {
		t.Errorf("two have %s", was)
	}
	del(t, web, "w4")
	if got := add(t, web, "w4"); !slices.Equal(got, moved) {
		t.Errorf("got %s, and had moved to %s", got, moved)
	}
	// Another interface of the container is another owner.
	two := s.keyed("web", time.Hour)
	res, err := two.Allocate(context.Background(), spec.Owner{Network: "net", ContainerID: "w4", IfName: "eth1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := two.Release(context.Background(),
		spec.Owner{Network: "net", ContainerID: "w4", IfName: "eth1"}); err != nil {
		t.Fatal(err)
	}
	again, err := two.Allocate(context.Background(), spec.Owner{Network: "net", ContainerID: "w5", IfName: "eth1"})
	if err != nil || again.IPs[0].Address != res.IPs[0].Address || again.IPs[1].Address != res.IPs[1].Address {
		t.Errorf("the other interface: %v and then %v, %v", res.IPs, again, err)
	}
}

// Records of keys that never come back do not pile up.
func TestStickyPruned(t *testing.T) {
	s := &Store{DataDir: "/var/lib/cni/pruned", Sets: sets(t, "fd00::/64"), Log: testLog(t)} // in memory
	const n = 700
	for i := range n {
		one := s.keyed(fmt.Sprint("pod-", i), 0)
		add(t, one, fmt.Sprint("c", i))
		if i > 0 {
			del(t, one, fmt.Sprint("c", i))
		}
		if m := remembered(t, s.DataDir); i%100 == 0 && len(m) > 2*fewRecords {
			t.Fatalf("%d records after %d keys", len(m), i)
		}
	}
	if m := remembered(t, s.DataDir); m["fd00::2"] != "pod-0" {
		t.Errorf("the one that is in use is forgotten")
	}
	if !audit(t, s) {
		t.Error("the index does not count")
	}
}

// What cannot be read is nobody's, and stops nobody.
func TestStickyGarbage(t *testing.T) {
	for _, content := range []string{"", "{", "null", `{"key":""}`, `{"key":"web","ttl":-1}`, "\x00\x00\x00", `{"key":7}`, `{"key":"web","ttl":1e30}`} {
		for name, f := range families {
			s := &Store{DataDir: inMemory(t), Sets: small(t, f.subnets...), Log: testLog(t)}
			web := s.keyed("web", time.Hour)
			add(t, web, "w1")
			del(t, web, "w1")
			for _, a := range f.addrs(2) {
				if err := os.WriteFile(filepath.Join(s.DataDir, keptDir, "net", a), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := add(t, web, "w2"); len(got) != len(f.subnets) {
				t.Errorf("%s, %q: got %s", name, content, got)
			}
			del(t, web, "w2")
			rescan(t, s)
			add(t, web, "w3")
			if !audit(t, s) {
				t.Errorf("%s, %q: the index does not count", name, content)
			}
		}
	}
}

// A sticky address that is the gateway today is not given out again.
func TestStickyOnTodaysGateway(t *testing.T) {
	s := (&Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24"), Log: testLog(t)}).keyed("k", time.Hour)
	if got := add(t, s, "a"); got[0] != "10.1.0.2" {
		t.Fatal(got)
	}
	del(t, s, "a")
	s.Sets[0].Ranges[0].Gateway = addr("10.1.0.2")
	if got := add(t, s, "b"); got[0] == "10.1.0.2" {
		t.Errorf("got the gateway's address %s", got)
	}
}
