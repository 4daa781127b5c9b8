package disk

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
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

// kept9 is what faultStore reserves.
var kept9 = netip.MustParsePrefix("10.1.0.9/32")

// faultStore is a Store of a directory with two leases, one of them sticky, and a reservation.
func faultStore(dataDir string, log *slog.Logger) *Store {
	sets, _ := ipam.Complete([]ipam.Set{{Path: "ipam.ranges[0]", Ranges: []ipam.Range{{Subnet: netip.MustParsePrefix("10.1.0.0/28")}}}})
	return &Store{DataDir: dataDir, Sets: sets, Log: log, Sticky: &Sticky{Key: "k", TTL: time.Hour}}
}

// faultCalls are calls whose system calls fail.
var faultCalls = map[string]func(context.Context, *Store) (any, error){
	"allocate": func(ctx context.Context, s *Store) (any, error) {
		return s.keyed("other", time.Hour).Allocate(ctx, owner("new"))
	},
	"release":  func(ctx context.Context, s *Store) (any, error) { return nil, s.Release(ctx, owner("plain")) },
	"sweep":    func(ctx context.Context, s *Store) (any, error) { return nil, s.Sweep(ctx, "net", owners("plain")) },
	"status":   func(ctx context.Context, s *Store) (any, error) { return nil, s.Status(ctx, "net") },
	"networks": func(ctx context.Context, s *Store) (any, error) { return s.Networks(ctx) },
	"look":     func(ctx context.Context, s *Store) (any, error) { return timeless(s.Look(ctx, "net")) },
	"read": func(_ context.Context, s *Store) (any, error) {
		return timeless(s.Read(filepath.Join(s.DataDir, "net")))
	},
	"reserve": func(ctx context.Context, s *Store) (any, error) {
		return nil, s.Reserve(ctx, "net", ipam.Reservation{Prefix: netip.MustParsePrefix("10.1.0.8/32")})
	},
	"unreserve": func(ctx context.Context, s *Store) (any, error) { return nil, s.Unreserve(ctx, "net", kept9) },
	"forget":    func(ctx context.Context, s *Store) (any, error) { return nil, s.Forget(ctx, "net", addr("10.1.0.3")) },
	"reclaim":   func(ctx context.Context, s *Store) (any, error) { return s.Reclaim(ctx, "net", false) },
	"drop": func(ctx context.Context, s *Store) (any, error) {
		return nil, s.Drop(ctx, "net", ipam.Lease{Address: addr("10.1.0.2"), ContainerID: "plain", IfName: "eth0"})
	},
	"withdraw": func(ctx context.Context, s *Store) (any, error) {
		return s.Withdraw(ctx, "net", []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}, func() error { return nil })
	},
	"verify": func(ctx context.Context, s *Store) (any, error) {
		return nil, s.Verify(ctx, owner("plain"), &spec.Result{IPs: []spec.IP{{Address: netip.MustParsePrefix("10.1.0.2/28")}}})
	},
	"import": func(ctx context.Context, s *Store) (any, error) {
		b := &ipam.Book{Leases: []ipam.Lease{{Address: addr("10.1.0.5"), ContainerID: "other", IfName: "eth0"}},
			Sticky:   []ipam.Binding{{Address: addr("10.1.0.6"), Key: "l", IfName: "eth0", Seconds: 60, Since: unixTime(1e9)}},
			Reserved: []ipam.Reservation{{Prefix: netip.MustParsePrefix("10.1.0.7/32")}}}
		return timeless(s.Import(ctx, "net", b, false, false))
	},
}

// timeless is a book without what a clock says.
func timeless(b *ipam.Book, err error) (*ipam.Book, error) {
	if b != nil {
		for i := range b.Sticky {
			b.Sticky[i].Since, b.Sticky[i].Until = time.Time{}, time.Time{}
		}
	}
	return b, err
}

// done matches what a call says of which the former one has done the work before it failed.
var done = regexp.MustCompile(`is not reserved|no such file|already has`)

// TestFaults lets each system call fail by which a Store reads or changes files. A call that succeeds has done what it
// does without the fault, or has warned of it. One that fails says why, and the next one succeeds.
func TestFaults(t *testing.T) {
	faults := nstest.Faults()
	for what := range faultCalls {
		t.Run(what, func(t *testing.T) {
			dir := faultDir(t)
			want, _, err := faulty(dir, what, 0, 0)
			if err != nil {
				t.Fatal(want, err)
			}
			nstest.Sample(t, 20, func(n int) bool {
				dir, errno := faultDir(t), faults[n%len(faults)]
				said, at, err := faulty(dir, what, n, errno)
				told := strings.Contains(said, errno.Error())
				if !told && (err != nil || said != want) {
					t.Errorf("call %d, %s, is %s: %v, it says\n%swant\n%s", n, at, unix.ErrnoName(errno), err, said, want)
				}
				if again, _, err := faulty(dir, what, 0, 0); err != nil && !done.MatchString(again) {
					t.Errorf("after call %d, %s, was %s: %v, it says\n%s", n, at, unix.ErrnoName(errno), err, again)
				}
				return at != ""
			})
		})
	}
}

// faultDir is a new directory for a faultStore.
func faultDir(t *testing.T) string {
	t.Helper()
	dir := inMemory(t)
	s := faultStore(dir, slog.New(slog.DiscardHandler))
	keyless := *s
	keyless.Sticky = nil
	add(t, &keyless, "plain")
	add(t, s, "sticky")
	if err := s.Reserve(t.Context(), "net", ipam.Reservation{Prefix: kept9}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// faultChild makes one of faultCalls, and says what it returns.
func faultChild(dataDir, what string) error {
	s := faultStore(dataDir, slog.New(slog.NewTextHandler(os.Stdout, nil)))
	answer, err := faultCalls[what](context.Background(), s)
	if b, ok := answer.(*ipam.Book); ok && b != nil {
		fmt.Println(b.Problems)
	}
	text, cannot := json.Marshal(answer)
	fmt.Printf("%s\n", text)
	return errors.Join(err, cannot)
}

var clocks = regexp.MustCompile(`"(since|clock)":\d+|time=\S+`)

// faulty makes a call in a process of its own, and has its nth system call about files fail, if there is one: at. It
// returns what the call says, and what there is in the directory afterwards.
func faulty(dir, what string, n int, errno unix.Errno) (said, at string, err error) {
	var out bytes.Buffer
	cmd, count, begun := command(nil, "fault", dir, what), 0, false
	cmd.Stdout, cmd.Stderr = &out, &out
	err = nstest.WithFaults(cmd, func(c nstest.Syscall) unix.Errno {
		begun = begun || strings.HasPrefix(c.Path, dir) // the program itself is loaded before
		isOther := slices.ContainsFunc([]string{"/proc/", "/sys/", "pipe:"}, func(p string) bool { return strings.HasPrefix(c.Path, p) })
		if !begun || isOther {
			return 0
		}
		if count++; count != n {
			return 0
		}
		at = c.Name + " " + c.Path
		return errno
	}, "openat", "mkdirat", "linkat", "write", "pwrite64", "renameat", "unlinkat", "fsync", "fstat", "getdents64")
	err = errors.Join(err, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() == indexDir {
			return cmp.Or(err, fs.SkipDir)
		}
		if d.IsDir() || strings.HasPrefix(d.Name(), newPrefix) {
			return nil
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(&out, "%s: %s\n", path, text)
		return err
	}))
	return clocks.ReplaceAllString(strings.ReplaceAll(out.String(), dir, "DIR"), ""), at, err
}
