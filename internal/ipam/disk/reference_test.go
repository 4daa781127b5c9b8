package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/ipam"
)

// A reference is the host-local of the reference implementation, as a distribution installs it.
type reference struct {
	path, dataDir string
	sets          []ipam.Set
}

func findReference(t testing.TB, dataDir string, sets []ipam.Set) reference {
	t.Helper()
	const path = "/usr/lib/cni/host-local"
	nstest.NeedProgram(t, path)
	return reference{path, dataDir, sets}
}

func (r reference) run(verb, id string, ips ...string) ([]string, error) {
	var ranges [][]map[string]string
	for _, s := range r.sets {
		var list []map[string]string
		for _, g := range s.Ranges {
			list = append(list, map[string]string{"subnet": g.Subnet.String(), "rangeStart": g.RangeStart.String(),
				"rangeEnd": g.RangeEnd.String(), "gateway": g.Gateway.String()})
		}
		ranges = append(ranges, list)
	}
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "0.4.0", "name": "net", "type": "x",
		"ipam":          map[string]any{"type": "host-local", "dataDir": r.dataDir, "ranges": ranges},
		"runtimeConfig": map[string]any{"ips": ips},
		"prevResult":    map[string]any{"cniVersion": "0.4.0"},
	})
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(r.path)
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/none",
		"CNI_PATH=/"}
	cmd.Stdin = bytes.NewReader(conf)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	var got []string
	if verb == "ADD" {
		var result struct{ IPs []struct{ Address string } }
		if err := json.Unmarshal(out, &result); err != nil {
			return nil, err
		}
		for _, ip := range result.IPs {
			got = append(got, netip.MustParsePrefix(ip.Address).Addr().String())
		}
	}
	return got, nil
}

// Two folders, one for each, see the same calls: addresses, files and refusals are the same.
func TestSameAsTheReference(t *testing.T) {
	in := []ipam.Set{
		{Path: "ipam.ranges[0]", Ranges: []ipam.Range{
			{Subnet: netip.MustParsePrefix("10.1.0.0/28"), RangeStart: addr("10.1.0.3"), Gateway: addr("10.1.0.5")},
			{Subnet: netip.MustParsePrefix("10.2.0.0/24"), RangeStart: addr("10.2.0.1"), RangeEnd: addr("10.2.0.4")},
			{Subnet: netip.MustParsePrefix("10.3.0.0/30")},
		}},
		{Path: "ipam.ranges[1]", Ranges: []ipam.Range{{Subnet: netip.MustParsePrefix("fd00::/124"),
			Gateway: addr("fd00::7")}}},
	}
	sets, err := ipam.Complete(in)
	if err != nil {
		t.Fatal(err)
	}
	ours := &Store{DataDir: t.TempDir(), Sets: sets, Log: testLog(t)}
	ref := findReference(t, t.TempDir(), sets)
	r := rand.New(rand.NewPCG(7, 7))
	for step := range 160 {
		id := fmt.Sprint("c", r.IntN(22))
		what := "ADD " + id
		var got, want []string
		var gotErr, wantErr error
		if r.IntN(5) < 2 {
			what = "DEL " + id
			gotErr = ours.Release(context.Background(), owner(id))
			_, wantErr = ref.run("DEL", id)
		} else {
			var ask []string
			if r.IntN(4) == 0 {
				ask = append(ask, fmt.Sprint("10.1.0.", r.IntN(17)))
			}
			what += " " + strings.Join(ask, ",")
			ours.Requested = nil
			for _, a := range ask {
				ours.Requested = append(ours.Requested, addr(a))
			}
			want, wantErr = ref.run("ADD", id, ask...)
			res, err := ours.Allocate(context.Background(), owner(id))
			if gotErr = err; err == nil {
				for _, ip := range res.IPs {
					got = append(got, ip.Address.Addr().String())
				}
			}
		}
		if !slices.Equal(got, want) || (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("step %d, %s: got %s, %v; the reference %s, %v", step, what, got, gotErr, want, wantErr)
		}
		if gotErr != nil && strings.HasPrefix(what, "ADD") {
			// Where ADD is refused in the second set, the reference takes back all that the owner held, its
			// former addresses too. We do not, so start this owner anew.
			if err := ours.Release(context.Background(), owner(id)); err != nil {
				t.Fatal(err)
			}
			if _, err := ref.run("DEL", id); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := fmt.Sprint(leases(t, ours.DataDir)), fmt.Sprint(leases(t, ref.dataDir)); a != b {
			t.Fatalf("step %d, %s:\nours      %s\nreference %s", step, what, a, b)
		}
		for _, f := range []string{"last_reserved_ip.0", "last_reserved_ip.1"} {
			a, _ := os.ReadFile(filepath.Join(ours.DataDir, "net", f))
			b, _ := os.ReadFile(filepath.Join(ref.dataDir, "net", f))
			if gotErr == nil && string(a) != string(b) {
				t.Fatalf("step %d, %s: %s is %q, the reference's %q", step, what, f, a, b)
			}
			if gotErr != nil { // a refused ADD may have moved either's cursor
				if err := os.WriteFile(filepath.Join(ours.DataDir, "net", f), b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		audit(t, ours)
	}
}

// Both work on one folder in turn: each finds, checks and removes what the other made.
func TestInTurnWithTheReference(t *testing.T) {
	ours := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: testLog(t)}
	ref := findReference(t, ours.DataDir, ours.Sets)
	r := rand.New(rand.NewPCG(3, 3))
	held := map[string][]string{}
	for step := range 120 {
		id := fmt.Sprint("c", r.IntN(30))
		mine := r.IntN(2) == 0
		switch {
		case held[id] == nil && mine:
			held[id] = add(t, ours, id)
		case held[id] == nil:
			got, err := ref.run("ADD", id)
			if err != nil {
				t.Fatal(err)
			}
			held[id] = got
		case r.IntN(4) == 0: // a second ADD is refused, whoever made the first
			if _, err := ours.Allocate(context.Background(), owner(id)); err == nil {
				t.Errorf("step %d: ADD twice of %s", step, id)
			}
			if _, err := ref.run("ADD", id); err == nil {
				t.Errorf("step %d: ADD twice of %s by the reference", step, id)
			}
		default:
			if _, err := ref.run("CHECK", id); err != nil {
				t.Errorf("step %d: the reference's CHECK of %s: %v", step, id, err)
			}
			if mine {
				del(t, ours, id)
			} else if _, err := ref.run("DEL", id); err != nil {
				t.Fatal(err)
			}
			delete(held, id)
		}
		files := leases(t, ours.DataDir)
		n := 0
		for id, as := range held {
			for _, a := range as {
				n++
				if files[a] != id+"\r\neth0" {
					t.Fatalf("step %d: %s is %s's, and its file says %q", step, a, id, files[a])
				}
			}
		}
		if n != len(files) {
			t.Fatalf("step %d: %d leases for %d addresses: %v", step, len(files), n, files)
		}
		audit(t, ours)
	}
}

// Both work on one folder at once.
// clause: P20
func TestAtOnceWithTheReference(t *testing.T) {
	ours := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/16", "fd00::/64"), Log: testLog(t)}
	ref := findReference(t, ours.DataDir, ours.Sets)
	var mu sync.Mutex
	var wg sync.WaitGroup
	of := map[string]string{}
	note := func(id string, as []string) {
		mu.Lock()
		defer mu.Unlock()
		for _, a := range as {
			if of[a] != "" {
				t.Errorf("%s and %s both have %s", of[a], id, a)
			}
			of[a] = id
		}
	}
	const workers, each = 6, 8
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("r%d-%d", w, i)
				as, err := ref.run("ADD", id)
				if err != nil {
					t.Error(err)
				}
				note(id, as)
			}
		})
		wg.Go(func() {
			var out strings.Builder
			if err := command(&out, "add-many", ours.DataDir, "10.1.0.0/16", fmt.Sprint("f", w),
				fmt.Sprint(each)).Run(); err != nil {
				t.Error(err)
			}
			for line := range strings.Lines(out.String()) {
				f := strings.Fields(line)
				note(f[0], f[1:])
			}
		})
	}
	wg.Wait()
	if files := leases(t, ours.DataDir); len(files) != 4*workers*each || len(of) != len(files) {
		t.Errorf("%d leases, %d addresses given, want %d", len(files), len(of), 4*workers*each)
	}
	audit(t, ours)
	// And each takes away what the other made, at once.
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				if err := ours.Release(context.Background(), owner(fmt.Sprintf("r%d-%d", w, i))); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for i := range each {
				if _, err := ref.run("DEL", fmt.Sprintf("f%d-%d", w, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if files := leases(t, ours.DataDir); len(files) > 0 {
		t.Errorf("left: %v", files)
	}
	audit(t, ours)
}

// One goes over to the reference and back while addresses are sticky and reserved: the reference sees the leases and no
// more, and what was remembered is there still.
func TestKeptAndTheReference(t *testing.T) {
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			s := &Store{DataDir: t.TempDir(), Sets: small(t, f.subnets...), Log: testLog(t)}
			ref := findReference(t, s.DataDir, s.Sets)
			web := s.keyed("web", time.Hour)
			is := func(what string, got []string, err error, end int) {
				t.Helper()
				if err != nil || !slices.Equal(got, f.addrs(end)) {
					t.Fatalf("%s: got %s, %v; want %s", what, got, err, f.addrs(end))
				}
			}
			is("ours", add(t, web, "w1"), nil, 2)
			kept := addr(f.addrs(4)[0])
			reserveNow(t, s, []ipam.Reservation{{Prefix: netip.PrefixFrom(kept, kept.BitLen())}})
			if _, err := ref.run("CHECK", "w1"); err != nil {
				t.Errorf("CHECK by the reference: %v", err)
			}
			got, err := ref.run("ADD", "r1")
			is("theirs", got, err, 3)
			got, err = ref.run("ADD", "r2") // it knows of no reservation
			is("theirs, though it is reserved", got, err, 4)
			if _, err := ref.run("DEL", "w1"); err != nil {
				t.Errorf("DEL by the reference: %v", err)
			}
			is("others, by ours", add(t, s.keyed("", 0), "n1"), nil, 5)
			is("the key comes back", add(t, web, "w2"), nil, 2)
			del(t, s, "w2")
			got, err = ref.run("ADD", "r3")
			is("theirs", got, err, 6)
			got, err = ref.run("ADD", "r4") // nor of a hold
			is("theirs, though it is held", got, err, 2)
			for _, id := range []string{"r1", "r2", "r3", "r4"} {
				del(t, s, id)
			}
			is("the key comes back again", add(t, web, "w3"), nil, 2)
			if _, err := ref.run("DEL", "n1"); err != nil {
				t.Error(err)
			}
			del(t, s, "w3")
			if left := leases(t, s.DataDir); len(left) > 0 || !audit(t, s) { // leases complains of stray files
				t.Errorf("left %v", left)
			}
		})
	}
}
