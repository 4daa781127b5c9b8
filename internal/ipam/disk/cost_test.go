package disk

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
)

// occupied is a store of one subnet whose index takes the first n addresses for taken, and believes it. The lease files
// are not there: a directory of a million is no matter of ours.
func occupied(t testing.TB, dir, subnet string, n int, lastGiven netip.Addr) *Store {
	t.Helper()
	s := &Store{DataDir: dir, Sets: sets(t, subnet), Log: slog.New(slog.DiscardHandler)}
	path := filepath.Join(dir, "net")
	d, err := openDirectory(context.Background(), path, true)
	if err != nil {
		t.Fatal(err)
	}
	d.boot, d.log, d.dirty = thisBoot(), s.Log, true
	d.x = openIndex(indexPath(path))
	d.x.make(indexPath(path))
	d.x.boot = d.boot
	first := s.Sets[0].Ranges[0].Gateway.Next()
	for i := range n {
		d.x.mark(ipam.Plus(first, uint64(i)), taken)
	}
	if err := d.setLast(0, lastGiven); err != nil {
		t.Fatal(err)
	}
	d.close()
	return s
}

// What a call asks of the kernel does not grow with the range, nor with the leases, but for the words of taken
// addresses that are passed over: 4096 of them are one read.
func TestCost(t *testing.T) {
	nstest.NeedProgram(t, "strace")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	calls := func(dir string, args ...string) map[string]int {
		trace := filepath.Join(t.TempDir(), "trace")
		child := command(nil, args...)
		child.Args = append([]string{"strace", "-f", "-o", trace, "-e",
			"trace=pread64,pwrite64,openat,read,getdents64,linkat,unlinkat", exe}, child.Args[1:]...)
		child.Path, _ = exec.LookPath("strace")
		child.Stderr = nil
		failed := child.Run()
		b, err := os.ReadFile(trace)
		if err != nil {
			t.Fatal(err)
		}
		n := map[string]int{}
		for line := range strings.Lines(string(b)) {
			for _, name := range []string{"pread64", "pwrite64", "getdents64", "linkat", "unlinkat"} {
				if strings.Contains(line, " "+name+"(") {
					n[name]++
				}
			}
			if strings.Contains(line, "openat(") && (strings.Contains(line, dir) || strings.Contains(line, `"10.`) || strings.Contains(line, `"fd`) || strings.Contains(line, `"words/`)) {
				n["openat"]++
			}
		}
		if failed != nil {
			n["refused"]++
		}
		return n
	}
	const million = 1_000_000
	var rows []string
	base := map[string]map[string]int{}
	for i, tc := range []struct {
		subnet string
		n      int
	}{
		{"10.1.0.0/24", 200}, {"10.0.0.0/12", million}, {"10.0.0.0/12", 0}, {"fd01::/120", 200}, {"fd01::/108",
			million}, {"fd01::/64", 0}, {"fd01::/64", million},
	} {
		p := netip.MustParsePrefix(tc.subnet)
		first := p.Addr().Next().Next()
		dir := fmt.Sprint("/var/lib/cni/cost", i)
		s := occupied(t, dir, tc.subnet, tc.n, ipam.Plus(first, uint64(max(tc.n, 1)-1)))
		for _, what := range []string{"ADD", "DEL", "ADD past all leases", "ADD to a full range"} {
			args := []string{"add", dir, tc.subnet, "a"}
			switch what {
			case "DEL":
				args[0] = "del"
			case "ADD past all leases":
				put(t, dir, "last_reserved_ip.0", first.String())
				untouched(t, s)
			case "ADD to a full range":
				if tc.n == 0 || p.Bits() == 64 {
					continue
				}
				n := 1<<(p.Addr().BitLen()-p.Bits()) - 3 + p.Addr().BitLen()/128 // IPv6 has no broadcast address
				args[1] = dir + "full"
				occupied(t, args[1], tc.subnet, n, first)
			}
			got := calls(dir, args...)
			rows = append(rows, fmt.Sprintf("%s with %d leases, %s: %v", tc.subnet, tc.n, what, got))
			if base[what] == nil {
				base[what] = got
				if refused := what == "ADD to a full range"; (got["refused"] == 1) != refused || got["openat"] == 0 {
					t.Errorf("%s: %v", what, got)
				}
				continue
			}
			full := what == "ADD to a full range" // it reads all leases, to find those of the dead
			more := 8
			if tc.n == million {
				more += 1 << 20 / chunk // words that are passed over
			}
			for name, n := range got {
				if full && name == "getdents64" {
					continue
				}
				if n > base[what][name]+more {
					t.Errorf("%s with %d leases, %s: %d times %s; of %s with 200 %d times", tc.subnet, tc.n, what, n, name,
						"10.1.0.0/24", base[what][name])
				}
			}
			if got["refused"] != base[what]["refused"] || got["getdents64"] > 0 && !full {
				t.Errorf("%s with %d leases, %s: %v, want %v", tc.subnet, tc.n, what, got, base[what])
			}
		}
	}
	t.Log(strings.Join(rows, "\n"))
}

// The time that a call takes, as ratios to a /24 with 200 leases: medians of calls in turn. The leases are there as
// files, so it takes a while to make them: go test -run XXX -bench Size -benchtime 500x ./ipam/disk
func BenchmarkSize(b *testing.B) {
	ctx := context.Background()
	type row struct {
		name  string
		store *Store
		prev  *spec.Result
		took  []time.Duration
	}
	var rows []*row
	for i, tc := range []struct {
		subnet string
		n      int
	}{{"10.1.0.0/24", 200}, {"fd01::/120", 200}, {"fd01::/64", 200}, {"10.0.0.0/12", 500_000}, {"fd01::/64", 500_000}} {
		r := &row{name: fmt.Sprintf("x-%s-%d", tc.subnet, tc.n)}
		r.store = &Store{DataDir: fmt.Sprint("/var/lib/cni/size", i), Sets: sets(b, tc.subnet),
			Log: slog.New(slog.DiscardHandler)}
		first := r.store.Sets[0].Ranges[0].Gateway.Next()
		book := &ipam.Book{}
		for i := range tc.n {
			book.Leases = append(book.Leases, ipam.Lease{Address: ipam.Plus(first, uint64(i)), ContainerID: fmt.Sprint("c", i),
				IfName: "eth0"})
		}
		if _, err := r.store.Import(ctx, "net", book, false, false); err != nil {
			b.Fatal(err)
		}
		var err error
		if r.prev, err = r.store.Allocate(ctx, owner("kept")); err != nil {
			b.Fatal(err)
		}
		rows = append(rows, r)
	}
	for verb, f := range map[string]func(r *row) error{
		"ADD+DEL": func(r *row) error {
			if _, err := r.store.Allocate(ctx, owner("new")); err != nil {
				return err
			}
			return r.store.Release(ctx, owner("new"))
		},
		"sticky-ADD+DEL": func(r *row) error {
			web := r.store.keyed("web", time.Hour)
			if _, err := web.Allocate(ctx, owner("web")); err != nil {
				return err
			}
			return web.Release(ctx, owner("web"))
		},
		"STATUS": func(r *row) error { return r.store.Status(ctx, "net") },
		"CHECK":  func(r *row) error { return r.store.Verify(ctx, owner("kept"), r.prev) },
	} {
		b.Run(verb, func(b *testing.B) {
			for _, r := range rows {
				r.took = nil
			}
			for b.Loop() {
				for _, r := range rows {
					from := time.Now()
					if err := f(r); err != nil {
						b.Fatal(err)
					}
					r.took = append(r.took, time.Since(from))
				}
			}
			median := func(r *row) float64 { slices.Sort(r.took); return float64(r.took[len(r.took)/2]) }
			b.ReportMetric(0, "ns/op") // of all together, which says nothing
			b.ReportMetric(median(rows[0])/1000, "us-"+rows[0].name[2:])
			for _, r := range rows[1:] {
				b.ReportMetric(median(r)/median(rows[0]), r.name)
			}
		})
	}
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
	d.readLasts()
	d.dirty = true
	d.close()
}
