package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// Killed before and after each system call that changes something: what was remembered is remembered still, or anew;
// no record is torn, and no lease is left that DEL does not find.
// clause: P11 P12
func TestKeptKilledAtEachCall(t *testing.T) {
	web := func(s *Store) *Store { return s.keyed("web", time.Hour) }
	for name, tc := range map[string]struct {
		verb, id string
		prepare  func(t *testing.T, s *Store)
		has      []string // what the key has to get afterwards, where that is sure
	}{
		"a new key": {"key", "web-2", func(*testing.T, *Store) {}, nil},
		"a key comes back": {"key", "web-2", func(t *testing.T,
			s *Store) {
			add(t, web(s), "web-1")
			del(t, s, "web-1")
			add(t, s, "x")
		}, []string{"10.1.0.2", "fd00::2"}},
		"a key that moves": {"key", "web-2", func(t *testing.T, s *Store) {
			add(t, web(s), "web-1")
			del(t, s, "web-1")
			s.Requested = []netip.Addr{addr("10.1.0.2"), addr("fd00::2")}
			add(t, s, "x") // which remembers nothing, and knows nothing of keys
			s.Requested = nil
		}, nil},
		"a DEL": {"del", "web-1", func(t *testing.T, s *Store) { add(t, s, "x"); add(t, web(s), "web-1") },
			[]string{"10.1.0.3", "fd00::3"}},
		"a GC": {"sweep", "", func(t *testing.T, s *Store) {
			add(t, web(s), "web-1")
			add(t, s.keyed("db", 0), "db-1")
			put(t, s.DataDir, "10.1.0.77", "")
		}, []string{"10.1.0.2", "fd00::2"}},
	} {
		t.Run(name, func(t *testing.T) {
			last := nstest.Sample(t, 6, func(n int) bool {
				dir := fmt.Sprintf("/var/lib/cni/kept-%s-%d", strings.ReplaceAll(name, " ", "-"), n)
				s := &Store{DataDir: dir, Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: testLog(t)}
				tc.prepare(t, s)
				killed, at := killAt(t, n, tc.verb, dir, "10.1.0.0/24", tc.id)
				remembered(t, dir) // none is torn
				audit(t, s)
				del(t, s, "web-1")
				del(t, s, "web-2")
				for a, text := range leases(t, dir) {
					if strings.HasPrefix(text, "web") {
						t.Errorf("killed at %s: %s is left: %q", at, a, text)
					}
				}
				audit(t, s)
				got := add(t, web(s), "web-3")
				if tc.has != nil && !slices.Equal(got, tc.has) {
					t.Errorf("killed at %s: the key gets %s, and had %s", at, got, tc.has)
				}
				del(t, s, "web-3")
				rescan(t, s)
				if again := add(t, web(s), "web-4"); !slices.Equal(again, got) {
					t.Errorf("killed at %s: the key gets %s, and had %s", at, again, got)
				}
				if !audit(t, s) {
					t.Errorf("killed at %s: the index does not count", at)
				}
				if left, _ := filepath.Glob(filepath.Join(dir, keptDir, "net", newPrefix+"*")); len(left) > 0 {
					t.Errorf("killed at %s: left %s", at, left)
				}
				if t.Failed() {
					t.Fatalf("at point %d", n)
				}
				return killed
			})
			if last == 0 {
				t.Error("killed at no point")
			}
			t.Logf("the last point is %d", last)
		})
	}
	// The list of reservations is the old one or the new one.
	for n := 1; ; n++ {
		s := &Store{DataDir: fmt.Sprint("/var/lib/cni/reserve-", n), Sets: sets(t, "10.1.0.0/24", "fd00::/64"),
			Log: testLog(t)}
		reserveNow(t, s, []ipam.Reservation{{Prefix: netip.MustParsePrefix("10.1.0.2/32")}})
		killed, at := killAt(t, n, "reserve", s.DataDir, "10.1.0.0/24", "web")
		d, err := s.open(context.Background(), "net", true)
		if err != nil {
			t.Fatal(err)
		}
		list, err := d.reservations()
		d.close()
		if err != nil || len(list) != 1 || list[0].For == "" != (list[0].Prefix.String() == "10.1.0.2/32") || !killed &&
			list[0].For != "web" {
			t.Fatalf("killed at %s: %v, %v", at, list, err)
		}
		if !killed {
			break
		}
	}
}

// What is remembered or reserved is on the disk before it counts: written, synced, named, and the name synced, in this
// order, before the call ends.
func TestKeptIsSynced(t *testing.T) {
	for _, verb := range []string{"key", "del", "reserve"} {
		t.Run(verb, func(t *testing.T) {
			s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: testLog(t)}
			if verb == "del" {
				add(t, s.keyed("web", time.Hour), "web-1")
			}
			trace := filepath.Join(t.TempDir(), "trace")
			child := command(nil, verb, s.DataDir, "10.1.0.0/24", "web-1")
			child.Args = append([]string{"strace", "-f", "-y", "-o", trace, "-e",
				"trace=write,fsync,renameat,renameat2,mkdirat,exit_group", "/proc/self/exe"}, child.Args[1:]...)
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			child.Args[7] = exe
			nstest.NeedProgram(t, "strace")
			if child.Path, err = exec.LookPath("strace"); err != nil {
				t.Fatal(err)
			}
			if err := child.Run(); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(trace)
			if err != nil {
				t.Fatal(err)
			}
			kept := filepath.Join(s.DataDir, keptDir, "net")
			synced, unnamed := map[string]bool{}, 0 // files on the disk; names that are not there yet
			named := 0
			made := map[string]bool{} // directories whose names are not on the disk
			call := regexp.MustCompile(`^\d+ +(\w+)\((.*)`)
			path := regexp.MustCompile(`<([^>]*)>`)
			for line := range strings.Lines(string(text)) {
				m := call.FindStringSubmatch(line)
				if m == nil {
					continue
				}
				on := ""
				if p := path.FindStringSubmatch(m[2]); p != nil {
					on = p[1]
				}
				switch m[1] {
				case "write":
					synced[on] = false
				case "fsync":
					synced[on] = true
					if delete(made, on); on == kept {
						unnamed = 0
					}
				case "mkdirat":
					if dir := strings.Split(m[2], `"`)[1]; strings.Contains(dir, keptDir) {
						made[filepath.Dir(dir)] = true
					}
				case "renameat", "renameat2":
					if !strings.HasPrefix(on, kept) {
						continue
					}
					from := strings.Split(m[2], `"`)[1]
					if !synced[filepath.Join(kept, from)] {
						t.Errorf("%s is named before it is on the disk:\n%s", from, text)
					}
					if len(made) > 0 {
						t.Errorf("%s is named in a directory that is not on the disk: %v\n%s", from, made, text)
					}
					unnamed++
					named++
				case "exit_group":
					if unnamed > 0 {
						t.Errorf("it ends with %d names that are not on the disk:\n%s", unnamed, text)
					}
				}
			}
			if want := map[string]int{"key": 2, "del": 2, "reserve": 1}[verb]; named != want {
				t.Errorf("%d files were named, want %d:\n%s", named, want, text)
			}
		})
	}
}

// A full disk refuses who would have to be remembered, and leaves nothing; DEL works on it, and so does a hold.
// clause: P11 P12
func TestKeptFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	s := &Store{DataDir: dir, Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: slog.New(slog.DiscardHandler)}
	ctx := context.Background()
	first := add(t, s.keyed("web", time.Hour), "web-1")
	held := map[string][]string{"web": first}
	refused := 0
	for i := 0; refused < 5; i++ {
		key := fmt.Sprint("k", i)
		res, err := s.keyed(key, time.Hour).Allocate(ctx, owner(key))
		switch {
		case err == nil:
			held[key] = []string{res.IPs[0].Address.Addr().String(), res.IPs[1].Address.Addr().String()}
		case errors.Is(err, unix.ENOSPC):
			if e := spec.AsError(err, 0); e.Code != spec.CodeIO {
				t.Errorf("code %d: %v", e.Code, err)
			}
			refused++
		default:
			t.Fatal(err)
		}
		if i > 1000 {
			t.Fatal("the disk does not fill up")
		}
	}
	if got := leases(t, dir); len(got) != 2*len(held) {
		t.Errorf("%d keys hold %d leases", len(held), len(got))
	}
	m := remembered(t, dir)
	for key, addrs := range held {
		for _, a := range addrs {
			if m[a] != key {
				t.Errorf("%s is remembered for %q, want %s", a, m[a], key)
			}
		}
	}
	audit(t, s)
	// Nothing can be reserved now, and what was reserved stays.
	d, err := s.open(ctx, "net", false)
	if err != nil {
		t.Fatal(err)
	}
	var fill []string // up to the last page
	for i := 0; ; i++ {
		name := filepath.Join(dir, fmt.Sprint("fill", i))
		if err := os.WriteFile(name, make([]byte, 4096), 0o600); err != nil {
			fill = append(fill, name)
			break
		}
		fill = append(fill, name)
	}
	if err := d.reserve([]ipam.Reservation{{Prefix: netip.MustParsePrefix("10.1.0.9/32")}}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("reserve on a full disk: %v", err)
	}
	if list, err := d.reservations(); err != nil || len(list) > 0 {
		t.Errorf("reserved: %v, %v", list, err)
	}
	d.close()
	del(t, s, "web-1")
	for key := range held {
		del(t, s, key)
	}
	if got := leases(t, dir); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	for _, name := range fill {
		if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	audit(t, s)
	for i := range 20 {
		for _, a := range add(t, s.keyed("", time.Hour), fmt.Sprint("n", i)) {
			if m[a] != "" {
				t.Errorf("%s, held for %s, is given to others", a, m[a])
			}
		}
	}
	for key, addrs := range held {
		if got := add(t, s.keyed(key, time.Hour), "again-"+key); !slices.Equal(got, addrs) {
			t.Errorf("%s gets %s, and had %s", key, got, addrs)
		}
	}
}

// Processes at once under one key get different addresses, and the key has one of them.
// clause: P20
func TestStickyProcesses(t *testing.T) {
	dataDir := "/var/lib/cni/processes"
	const n = 24
	outs := make([]strings.Builder, n)
	var cmds []*exec.Cmd
	for i := range n {
		cmds = append(cmds, start(t, &outs[i], "key", dataDir, "10.1.0.0/24", fmt.Sprint("web-", i)))
	}
	of := map[string]string{}
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		f := strings.Fields(outs[i].String())
		for _, a := range f[1:] {
			if of[a] != "" {
				t.Errorf("%s and %s both have %s", of[a], f[0], a)
			}
			of[a] = f[0]
		}
	}
	if m := remembered(t, dataDir); len(of) != 2*n || len(m) != 2 || m["10.1.0.2"] != "web" || m["fd00::2"] != "web" {
		t.Errorf("%d addresses given; remembered: %v", len(of), m)
	}
	if !audit(t, &Store{DataDir: dataDir, Log: testLog(t)}) {
		t.Error("the index does not count")
	}
}

// Whatever is done in whatever order, a key gets what it had last, unless somebody has it just now or had it given
// meanwhile.
func TestStickyLaws(t *testing.T) {
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 9))
			s := &Store{DataDir: fmt.Sprint("/var/lib/cni/laws", seed), Sets: sets(t, "10.1.0.0/24", "fd00::/64"),
				Log: slog.New(slog.DiscardHandler)}
			last := map[string][]string{}  // key to addresses
			owns := map[string]string{}    // address to container
			running := map[string]string{} // container to key
			for step := range 250 {
				key, id := fmt.Sprint("k", r.IntN(6)), fmt.Sprint("c", step)
				what := ""
				switch n := r.IntN(12); {
				case n < 5:
					what = "ADD " + id + " of " + key
					got := add(t, s.keyed(key, time.Hour), id)
					for i, a := range got {
						if owns[a] != "" {
							t.Fatalf("step %d, %s: %s is %s's", step, what, a, owns[a])
						}
						if was := last[key]; was != nil && owns[was[i]] == "" && a != was[i] {
							t.Fatalf("step %d, %s: got %s, and had %s", step, what, got, was)
						}
					}
					if last[key] == nil {
						last[key] = []string{"", ""}
					}
					for i, a := range got {
						if owns[last[key][i]] == "" {
							last[key][i] = a
						}
						for other, addrs := range last {
							if other != key && addrs[i] == a {
								t.Fatalf("step %d, %s: %s is held for %s", step, what, a, other)
							}
						}
					}
					for _, a := range got {
						owns[a] = id
					}
					running[id] = key
				case n < 9:
					for id = range running {
						break
					}
					what = "DEL " + id
					del(t, &Store{DataDir: s.DataDir, Log: s.Log}, id)
					delete(running, id)
					for a, by := range owns {
						if by == id {
							delete(owns, a)
						}
					}
				case n < 10:
					what = "rescan"
					rescan(t, s)
				case n < 11:
					what = "the index goes"
					if err := os.RemoveAll(filepath.Join(s.DataDir, indexDir)); err != nil {
						t.Fatal(err)
					}
				default:
					what = "GC"
					var valid []spec.Owner
					for id := range running {
						valid = append(valid, owner(id))
					}
					if err := s.Sweep(context.Background(), "net", valid); err != nil {
						t.Fatal(err)
					}
				}
				audit(t, s)
				if t.Failed() {
					t.Fatalf("step %d, %s", step, what)
				}
			}
		})
	}
}

// Whatever a record holds, nobody's address is given twice, and nobody is refused for it.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{"", "{", `{"key":"web","ifname":"eth0","ttl":3600,"since":1,"boot":1,"clock":1}`, `{"key":"web","ttl":1e9}`, `{"key":"db","ifname":"eth0","ttl":99999999,"since":99999999999}`, "\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		s := &Store{DataDir: inMemory(t), Sets: sets(t, "10.1.0.0/29", "fd00::/64"), Log: slog.New(slog.DiscardHandler)}
		web := s.keyed("web", time.Hour)
		add(t, web, "a")
		for _, a := range []string{"10.1.0.2", "10.1.0.3", "fd00::3"} {
			if err := os.WriteFile(filepath.Join(s.DataDir, keptDir, "net", a), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		rescan(t, s)
		seen := map[string]bool{"10.1.0.2": true, "fd00::2": true}
		for _, id := range []string{"b", "c", "d", "e"} {
			for _, a := range add(t, web, id) {
				if seen[a] {
					t.Errorf("%s twice", a)
				}
				seen[a] = true
			}
		}
		del(t, s, "a")
		add(t, s.keyed("db", time.Hour), "f")
	})
}
