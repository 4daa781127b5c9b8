package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	nstest.Main(m)
}

func sets(t testing.TB, subnets ...string) []ipam.Set {
	t.Helper()
	var in []ipam.Set
	for i, s := range subnets {
		in = append(in, ipam.Set{Path: fmt.Sprintf("ipam.ranges[%d]", i),
			Ranges: []ipam.Range{{Subnet: netip.MustParsePrefix(s)}}})
	}
	out, err := ipam.Complete(in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func owner(id string) spec.Owner { return spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"} }

// addr is an address, or none.
func addr(s string) (a netip.Addr) {
	if s != "" {
		a = netip.MustParseAddr(s)
	}
	return a
}

// add allocates and returns the addresses as text.
func add(t testing.TB, s *Store, id string) []string {
	t.Helper()
	r, err := s.Allocate(context.Background(), owner(id))
	if err != nil {
		t.Fatalf("ADD %s: %v", id, err)
	}
	var got []string
	for _, ip := range r.IPs {
		got = append(got, ip.Address.Addr().String())
	}
	return got
}

func del(t testing.TB, s *Store, id string) {
	t.Helper()
	if err := s.Release(context.Background(), owner(id)); err != nil {
		t.Fatalf("DEL %s: %v", id, err)
	}
}

// leases reads the directory as it is: address to content.
func leases(t testing.TB, dataDir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dataDir, "net"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err != nil {
			if e.Name() != "lock" && !strings.HasPrefix(e.Name(), "last_reserved_ip.") {
				t.Errorf("the directory has a stray file %s", e.Name())
			}
			continue
		}
		b, err := os.ReadFile(filepath.Join(dataDir, "net", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		m[e.Name()] = string(b)
	}
	return m
}

// put writes a lease file as somebody else would.
func put(t testing.TB, dataDir, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dataDir, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dataDir, "net", name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFillAndEmpty(t *testing.T) {
	for where, dataDir := range map[string]string{"disk": t.TempDir(), "tmpfs": "/var/lib/cni/networks",
		"to be made": filepath.Join(t.TempDir(), "a/b")} {
		t.Run(where, func(t *testing.T) {
			s := &Store{DataDir: dataDir, Sets: sets(t, "10.1.0.0/29", "fd00::/64"), Log: testLog(t)}
			ctx := context.Background()
			ids := []string{"a", "b", "c", "d", "e"}
			for i, id := range ids {
				want := []string{fmt.Sprintf("10.1.0.%d", i+2), fmt.Sprintf("fd00::%d", i+2)}
				if got := add(t, s, id); !slices.Equal(got, want) {
					t.Errorf("%s: got %s, want %s", id, got, want)
				}
				if !audit(t, s) {
					t.Error("the index does not count")
				}
			}
			// clause: P8 P21
			t.Run("exhausted", func(t *testing.T) {
				_, err := s.Allocate(ctx, owner("f"))
				const want = "ipam.ranges[0]: no address is left in 10.1.0.1-10.1.0.6: 5 of 5 are in use; the state of 5 of the containers is unknown (fairlead ipam ls net)"
				if e := spec.AsError(err, 0); !errors.Is(err, ipam.ErrExhausted) || e.Code != spec.CodeTryAgain || e.Msg != want {
					t.Errorf("ADD: code %d, %v", e.Code, err)
				}
				err = s.Status(ctx, "net")
				if e := spec.AsError(err, 0); !errors.Is(err, ipam.ErrExhausted) || e.Code != spec.CodeUnavailable ||
					e.Msg != want {
					t.Errorf("STATUS: code %d, %v", e.Code, err)
				}
				if n := len(leases(t, dataDir)); n != 10 {
					t.Errorf("%d leases after a refused ADD, want 10", n)
				}
			})
			if free, size, err := s.Room(ctx, "net"); free.String() != "0" || size.String() != "5" || err != nil {
				t.Errorf("room: %s of %s, %v", free, size, err)
			}
			// clause: P12 P13
			t.Run("DEL", func(t *testing.T) {
				bare := &Store{DataDir: dataDir} // DEL may come without the ranges
				for _, id := range ids {
					del(t, bare, id)
					del(t, bare, id)
				}
				if got := leases(t, dataDir); len(got) > 0 {
					t.Errorf("left: %v", got)
				}
				if !audit(t, s) {
					t.Error("the index does not count")
				}
			})
			if err := s.Status(ctx, "net"); err != nil {
				t.Errorf("STATUS of an empty range: %v", err)
			}
		})
	}
}

// The files are what the reference makes, to the byte.
func TestFormat(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24", "fd00:9::/64"), Log: testLog(t)}
	s.Requested = []netip.Addr{addr("10.1.0.200"), addr("fd00:9::0:ab")}
	add(t, s, "ctr1")
	s.Requested = []netip.Addr{addr("10.1.0.7")}
	add(t, s, "ctr2") // a shorter last_reserved_ip than before
	for name, want := range map[string]struct {
		mode fs.FileMode
		text string
	}{
		"10.1.0.200":         {0o600, "ctr1\r\neth0"},
		"fd00:9::ab":         {0o600, "ctr1\r\neth0"},
		"10.1.0.7":           {0o600, "ctr2\r\neth0"},
		"fd00:9::ac":         {0o600, "ctr2\r\neth0"},
		"last_reserved_ip.0": {0o600, "10.1.0.7"},
		"last_reserved_ip.1": {0o600, "fd00:9::ac"},
		"lock":               {0o750, ""},
		".":                  {fs.ModeDir | 0o755, ""},
	} {
		path := filepath.Join(s.DataDir, "net", name)
		st, err := os.Stat(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if st.Mode() != want.mode {
			t.Errorf("%s: mode %s, want %s", name, st.Mode(), want.mode)
		}
		if st.IsDir() {
			continue
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != want.text {
			t.Errorf("%s: %q, want %q", name, b, want.text)
		}
	}
	if got := leases(t, s.DataDir); len(got) != 4 {
		t.Errorf("%d leases, want 4: %v", len(got), got)
	}
}

// Released addresses rest while there are others, and then the one that rested longest is first.
func TestCooldown(t *testing.T) {
	hour := uint32(min(36000, clockNow()/2)) // in tenths of a second, or less where the host is up for less
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/29"), Cooldown: time.Duration(hour) * time.Second / 10,
		Log: testLog(t)}
	for _, id := range []string{"a", "b", "c"} {
		add(t, s, id) // .2 .3 .4
	}
	del(t, s, "b")
	release(t, s, "10.1.0.3", 100)
	del(t, s, "a")
	release(t, s, "10.1.0.2", 50)
	for _, step := range []struct{ id, want string }{{"d", "10.1.0.5"}, {"e", "10.1.0.6"}, {"f", "10.1.0.3"},
		{"g", "10.1.0.2"}} {
		if got := add(t, s, step.id); got[0] != step.want {
			t.Errorf("%s got %s, want %s", step.id, got[0], step.want)
		}
	}
	if _, err := s.Allocate(context.Background(), owner("h")); !errors.Is(err, ipam.ErrExhausted) {
		t.Errorf("all are in use: %v", err)
	}
	del(t, s, "c")
	if err := s.Status(context.Background(), "net"); err != nil {
		t.Errorf("STATUS counts an address that rests: %v", err)
	}
	s.Requested = []netip.Addr{addr("10.1.0.4")}
	if got := add(t, s, "i"); got[0] != "10.1.0.4" {
		t.Errorf("asked for an address that rests: got %s", got)
	}
	s.Requested = nil
	// Somebody else's release counts too, and time passes.
	if err := os.Remove(filepath.Join(s.DataDir, "net", "10.1.0.5")); err != nil {
		t.Fatal(err)
	}
	del(t, s, "e")
	release(t, s, "10.1.0.6", hour+1)
	if got := add(t, s, "j"); got[0] != "10.1.0.6" {
		t.Errorf("an hour later: got %s", got)
	}
	audit(t, s)
}

// release puts the release of an address some tenths of a second back.
func release(t *testing.T, s *Store, a string, ago uint32) {
	t.Helper()
	x := openIndex(indexPath(filepath.Join(s.DataDir, "net")))
	defer x.close()
	now := uint32(clockNow())
	if now <= ago {
		t.Fatalf("this host is up for %d tenths of a second only", now)
	}
	if was := x.word(addr(a)); was == 0 || was == taken {
		t.Fatalf("%s is not released: %d", a, was)
	}
	x.mark(addr(a), now-ago)
	if x.err != nil {
		t.Fatal(x.err)
	}
}

// A file system whose clock is coarse may show the time of our signature for somebody else's change too:
// what they wrote to last_reserved_ip gives them away.
func TestCoarseClock(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24"), Log: testLog(t)}
	add(t, s, "a")
	dir := filepath.Join(s.DataDir, "net")
	st, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s.DataDir, "10.1.0.3", "b\r\neth0")
	put(t, s.DataDir, "last_reserved_ip.0", "10.1.0.3")
	if err := os.Chtimes(dir, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	del(t, s, "b")
	if got := leases(t, s.DataDir); len(got) != 1 {
		t.Errorf("leases: %v", got)
	}
}

// An owner may have as many addresses as it asks for.
func TestOneOwnerManyAddresses(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24"), Log: testLog(t)}
	for i := range 100 {
		s.Requested = []netip.Addr{ipam.Plus(addr("10.1.0.10"), uint64(i))}
		add(t, s, "a")
	}
	if n := len(leases(t, s.DataDir)); n != 100 {
		t.Fatalf("%d leases", n)
	}
	s.Requested = nil
	if got := add(t, s, "b"); got[0] != "10.1.0.110" {
		t.Errorf("got %s", got)
	}
	del(t, s, "a")
	if got := leases(t, s.DataDir); len(got) != 1 {
		t.Errorf("%d left", len(got))
	}
	audit(t, s)
}

// The index grows with the leases, IPv6 addresses far apart included.
func TestGrowth(t *testing.T) {
	s := &Store{DataDir: "/var/lib/cni/networks", Sets: sets(t, "10.1.0.0/16", "fd00::/64"), Log: testLog(t)}
	const n = 1500
	for i := range n {
		s.Requested = nil
		if i%3 == 0 {
			s.Requested = []netip.Addr{ipam.Plus(addr("fd00::"), uint64(i+1)<<40)}
		}
		add(t, s, fmt.Sprint("c", i))
	}
	if !audit(t, s) {
		t.Error("the index does not count")
	}
	for i := range n {
		del(t, s, fmt.Sprint("c", i))
	}
	if got := leases(t, s.DataDir); len(got) != 0 || !audit(t, s) {
		t.Errorf("%d left", len(got))
	}
}

// A lock that somebody else holds is waited for as long as the caller allows.
func TestLock(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24"), Log: testLog(t)}
	add(t, s, "a")
	fd, err := unix.Open(filepath.Join(s.DataDir, "net", "lock"), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := s.Allocate(ctx, owner("b")); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "net/lock") {
		t.Errorf("got %v", err)
	}
	if got := leases(t, s.DataDir); len(got) != 1 {
		t.Errorf("leases: %v", got)
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.Allocate(context.Background(), owner("c"))
		done <- err
	}()
	// While c waits, the directory is removed, and the lock that c gets keeps nobody out.
	waiters(t, fd, 2)
	if err := os.RemoveAll(filepath.Join(s.DataDir, "net")); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := leases(t, s.DataDir); len(got) != 1 || got["10.1.0.2"] != "c\r\neth0" {
		t.Errorf("leases: %v", got)
	}
	audit(t, s)
}

// waiters returns when the kernel says that n wait for the lock of fd: b's abandoned thread, and c.
func waiters(t *testing.T, fd, n int) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	where := fmt.Sprintf(":%d ", st.Ino)
	for end := nstest.Deadline(t); ; {
		b, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, "-> FLOCK") && strings.Contains(line, where) {
				got++
			}
		}
		if got == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d wait, want %d:\n%s", got, n, b)
		}
	}
}

// Where the file system makes no nameless files, a lease is written outside the directory.
func TestNamedDraft(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24"), Log: testLog(t)}
	add(t, s, "a")
	d, err := s.open(context.Background(), "net", false)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	for _, want := range []error{nil, fs.ErrExist, nil} {
		a := addr("10.1.0.9")
		f, err := d.namedDraft("b\r\neth0")
		if err != nil {
			t.Fatal(err)
		}
		if got := leases(t, s.DataDir); len(got) > 2 {
			t.Errorf("visible before its time: %v", got)
		}
		if err := d.publish(f, a); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		if want != nil { // as if killed here: the name stays, and the next call must not write to that file
			f.discard()
			if err := d.unlink(a); err != nil {
				t.Error(err)
			}
			continue
		}
		unix.Close(f.fd)
		if got := leases(t, s.DataDir)[a.String()]; got != "b\r\neth0" {
			t.Errorf("%s says %q", a, got)
		}
	}
}
