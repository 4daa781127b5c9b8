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

	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// clause: R10
func TestTwice(t *testing.T) {
	ctx := context.Background()
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: testLog(t)}
	add(t, s, "a")
	before := leases(t, s.DataDir)
	if _, err := s.Allocate(ctx, owner("a")); err == nil || !strings.Contains(err.Error(), "already has 10.1.0.2") {
		t.Errorf("ADD twice: %v", err)
	}
	s.Requested = []netip.Addr{addr("10.1.0.2")}
	if _, err := s.Allocate(ctx, owner("a")); err == nil || !strings.Contains(err.Error(), "already has 10.1.0.2") {
		t.Errorf("ADD twice for one address: %v", err)
	}
	// What the first set gave before the second refused is given back.
	s.Requested = []netip.Addr{addr("10.1.0.77")}
	if _, err := s.Allocate(ctx, owner("a")); err == nil || !strings.Contains(err.Error(), "already has fd00::2") {
		t.Errorf("ADD twice for another address of one set: %v", err)
	}
	if after := leases(t, s.DataDir); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("a refused ADD changed the leases: %v, then %v", before, after)
	}
	// As in the reference, further addresses can be had by name.
	s.Requested = []netip.Addr{addr("10.1.0.77"), addr("fd00::77")}
	add(t, s, "a")
	s.Requested = nil
	other := spec.Owner{Network: "net", ContainerID: "a", IfName: "eth1"}
	if _, err := s.Allocate(ctx, other); err != nil {
		t.Errorf("another interface of the container: %v", err)
	}
	if !audit(t, s) {
		t.Error("the index does not count")
	}
	del(t, s, "a")
	if got := leases(t, s.DataDir); len(got) != 2 || got["10.1.0.78"] != "a\r\neth1" {
		t.Errorf("left: %v, want eth1's", got)
	}
}

// clause: K5 P11
func TestRequested(t *testing.T) {
	ctx := context.Background()
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: testLog(t)}
	s.Requested = []netip.Addr{addr("fd00::9"), addr("10.1.0.9"), addr("10.1.0.9")}
	if got := add(t, s, "a"); !slices.Equal(got, []string{"10.1.0.9", "fd00::9"}) {
		t.Errorf("got %s", got)
	}
	_, err := s.Allocate(ctx, owner("b"))
	if e := spec.AsError(err, 0); e == nil || e.Code != spec.CodeTryAgain ||
		e.Msg != "requested address 10.1.0.9 is in use by a eth0" {
		t.Errorf("an address in use: %v", err)
	}
	s.Requested = []netip.Addr{addr("10.1.0.10"), addr("fd00::9")}
	if _, err := s.Allocate(ctx, owner("b")); err == nil {
		t.Error("the second address is in use, and ADD succeeds")
	}
	if got := leases(t, s.DataDir); len(got) != 2 {
		t.Errorf("a refused ADD left %v", got)
	}
	// The cursor follows what was asked for.
	s.Requested = []netip.Addr{addr("10.1.0.200")}
	add(t, s, "c")
	s.Requested = nil
	if got := add(t, s, "d"); got[0] != "10.1.0.201" {
		t.Errorf("after 10.1.0.200 came %s", got[0])
	}
	// An empty file in the way is nobody's.
	put(t, s.DataDir, "10.1.0.50", "")
	s.Requested = []netip.Addr{addr("10.1.0.50")}
	if got := add(t, s, "e"); got[0] != "10.1.0.50" {
		t.Errorf("got %s", got)
	}
	// … even one that became empty behind the index's back.
	put(t, s.DataDir, "10.1.0.50", "\x00\x00\x00")
	if got := add(t, s, "f"); got[0] != "10.1.0.50" {
		t.Errorf("got %s", got)
	}
	audit(t, s)
}

// clause: P14 P15 P17
func TestVerify(t *testing.T) {
	ctx := context.Background()
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: testLog(t)}
	prev, err := s.Allocate(ctx, owner("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(ctx, owner("a"), prev); err != nil {
		t.Errorf("right after ADD: %v", err)
	}
	more := &spec.Result{IPs: append([]spec.IP{{Address: netip.MustParsePrefix("192.0.2.1/24")}}, prev.IPs...)}
	if err := s.Verify(ctx, owner("a"), more); err != nil {
		t.Errorf("an address that another allocator gave: %v", err)
	}
	elsewhere := &Store{DataDir: s.DataDir, Sets: sets(t, "10.9.0.0/24")}
	for what, got := range map[string]error{
		"no prevResult":            s.Verify(ctx, owner("a"), nil),
		"is held by a eth0":        s.Verify(ctx, owner("b"), prev),
		"no address of prevResult": elsewhere.Verify(ctx, owner("a"), prev),
		"lease 10.1.0.2: is missing": s.Verify(ctx, spec.Owner{Network: "new", ContainerID: "a", IfName: "eth0"},
			prev),
		"no address of prevResult is in 10.": s.Verify(ctx, owner("a"), &spec.Result{}),
	} {
		if what == "no prevResult" {
			what = "prevResult: is missing"
		}
		if got == nil || !strings.Contains(got.Error(), what) {
			t.Errorf("want %q, got %v", what, got)
		}
	}
	put(t, s.DataDir, "fd00::2", "")
	if err := s.Verify(ctx, owner("a"), prev); !errors.Is(err, errGarbage) {
		t.Errorf("an empty lease: %v", err)
	}
	put(t, s.DataDir, "fd00::2", "a")
	if err := s.Verify(ctx, owner("a"), prev); err != nil {
		t.Errorf("the old format: %v", err)
	}
	if err := os.Remove(filepath.Join(s.DataDir, "net", "10.1.0.2")); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(ctx, owner("a"), prev); err == nil || !strings.Contains(err.Error(), "lease 10.1.0.2: is missing") {
		t.Errorf("a lease that is gone: %v", err)
	}
	if _, err := os.Stat(filepath.Join(s.DataDir, "new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CHECK made a directory: %v", err)
	}
}

// Files of former versions of the reference name a container and no interface.
func TestOldFormat(t *testing.T) {
	ctx := context.Background()
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24"), Log: testLog(t)}
	put(t, s.DataDir, "10.1.0.2", "a")
	put(t, s.DataDir, "10.1.0.3", "b\n")
	put(t, s.DataDir, "10.1.0.4", "b\r\neth0")
	if _, err := s.Allocate(ctx, owner("a")); err == nil || !strings.Contains(err.Error(), "already has 10.1.0.2") {
		t.Errorf("ADD twice: %v", err)
	}
	if got := add(t, s, "c"); got[0] != "10.1.0.5" {
		t.Errorf("got %s", got)
	}
	del(t, s, "b") // both of its: a runtime asks once
	if got := leases(t, s.DataDir); len(got) != 2 {
		t.Errorf("after DEL of b: %v", got)
	}
	del(t, s, "a")
	if got := leases(t, s.DataDir); len(got) != 1 {
		t.Errorf("left: %v", got)
	}
	audit(t, s)
}

// A lease of ours that another program writes anew in the old format goes with its owner's DEL, and one in the old format
// that names the interface now, too.
func TestWrittenOver(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24"), Log: testLog(t)}
	put(t, s.DataDir, "10.1.0.9", "old")
	for _, id := range []string{"a", "b"} {
		add(t, s, id)
	}
	put(t, s.DataDir, "10.1.0.2", "a")
	put(t, s.DataDir, "10.1.0.9", "old\r\neth0")
	if _, err := s.Allocate(t.Context(), owner("a")); err == nil || !strings.Contains(err.Error(), "already has 10.1.0.2") {
		t.Errorf("ADD twice: %v", err)
	}
	del(t, s, "a")
	del(t, s, "old")
	if got := leases(t, s.DataDir); len(got) != 1 || got["10.1.0.3"] != "b\r\neth0" {
		t.Errorf("left: %v", got)
	}
	audit(t, s)
}

// clause: P22
func TestSweep(t *testing.T) {
	ctx := context.Background()
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: testLog(t)}
	bare := &Store{DataDir: s.DataDir, Log: testLog(t)}
	if err := bare.Sweep(ctx, "net", nil); err != nil {
		t.Errorf("GC of a network that was never used: %v", err)
	}
	for _, id := range []string{"a", "b", "c"} {
		add(t, s, id)
	}
	put(t, s.DataDir, "10.1.0.100", "")
	put(t, s.DataDir, "10.1.0.101", "\x00\x00\x00\x00\x00\x00")
	put(t, s.DataDir, "10.1.0.102", "b")
	put(t, s.DataDir, "10.1.0.103", "gone")
	put(t, s.DataDir, "10.1.0.104", "gone\r\neth0")
	put(t, s.DataDir, "10.1.0.105", "b\r\neth1")
	put(t, s.DataDir, "172.16.0.1", "gone\r\neth0") // of ranges that the network had before
	if err := bare.Sweep(ctx, "net", []spec.Owner{owner("b"), owner("z")}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"10.1.0.3": "b\r\neth0", "fd00::3": "b\r\neth0", "10.1.0.102": "b"}
	if got := leases(t, s.DataDir); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("left: %v, want %v", got, want)
	}
	if !audit(t, s) {
		t.Error("the index does not count")
	}
	// A file may lose its content without a change of the directory.
	if err := os.Truncate(filepath.Join(s.DataDir, "net", "10.1.0.3"), 0); err != nil {
		t.Fatal(err)
	}
	if err := bare.Sweep(ctx, "net", nil); err != nil {
		t.Fatal(err)
	}
	if got := leases(t, s.DataDir); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

// clause: P12
func TestNeverUsed(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s := &Store{DataDir: dir, Sets: sets(t, "10.1.0.0/24")}
	if err := errors.Join(s.Release(ctx, owner("a")), s.Sweep(ctx, "net", nil), s.Status(ctx, "net")); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("they made %v, %v", entries, err)
	}
	for _, name := range []string{"", ".", "..", "a/b", ".fairlead", "_x", "a\x00"} {
		if err := s.Release(ctx, spec.Owner{Network: name, ContainerID: "a", IfName: "eth0"}); err == nil {
			t.Errorf("a network called %q: no error", name)
		}
	}
}

// A container's ID has no maximum, and neither has what DEL has to find.
// clause: P12
func TestLongNames(t *testing.T) {
	ctx := context.Background()
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24"), Log: testLog(t)}
	for _, n := range []int{4085, 4089, 4090, 4096, 10_000} {
		id := strings.Repeat("x", n)
		add(t, s, id)
		if _, err := s.Allocate(ctx, owner(id)); err == nil {
			t.Errorf("%d bytes: ADD twice", n)
		}
		prev := &spec.Result{IPs: []spec.IP{{Address: netip.PrefixFrom(s.lastAddr(t), 24)}}}
		if err := s.Verify(ctx, owner(id), prev); err != nil {
			t.Errorf("%d bytes: CHECK: %.100s", n, err)
		}
		if err := os.RemoveAll(filepath.Join(s.DataDir, indexDir)); err != nil {
			t.Fatal(err)
		}
		del(t, s, id)
		if got := leases(t, s.DataDir); len(got) > 0 {
			t.Errorf("%d bytes: %d leases are left", n, len(got))
		}
	}
	long := spec.Owner{Network: strings.Repeat("n", 256), ContainerID: "a", IfName: "eth0"}
	if _, err := s.Allocate(ctx, long); err == nil || !strings.Contains(err.Error(), "name: the name has 256 bytes") {
		t.Errorf("ADD: %v", err)
	}
	if err := errors.Join(s.Release(ctx, long), s.Sweep(ctx, long.Network, nil)); err != nil {
		t.Errorf("DEL and GC of what cannot be: %v", err)
	}
	for n := range 3 { // the longest that there can be have an index too
		o := spec.Owner{Network: strings.Repeat("n", 255-n), ContainerID: "a", IfName: "eth0"}
		if _, err := s.Allocate(ctx, o); err != nil {
			t.Error(err)
		}
		if err := s.Release(ctx, o); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(indexPath(filepath.Join(s.DataDir, o.Network))); err != nil {
			t.Error(err)
		}
	}
}

// lastAddr is the address that was given out last.
func (s *Store) lastAddr(t *testing.T) netip.Addr {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.DataDir, "net", "last_reserved_ip.0"))
	if err != nil {
		t.Fatal(err)
	}
	return addr(string(b))
}

// What has the name of a file of ours and is none is not waited for.
func TestNoFiles(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/29"), Log: testLog(t)}
	dir := filepath.Join(s.DataDir, "net")
	for _, err := range []error{
		os.Mkdir(dir, 0o755),
		unix.Mkfifo(filepath.Join(dir, "last_reserved_ip.0"), 0o600),
		unix.Mkfifo(filepath.Join(dir, "10.1.0.2"), 0o600),
		os.Mkdir(filepath.Join(dir, "10.1.0.3"), 0o755),
		os.Symlink("/nonexistent", filepath.Join(dir, "10.1.0.4")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Allocate(context.Background(), owner("a")); err == nil ||
		!strings.Contains(err.Error(), "last_reserved_ip.0") {
		t.Errorf("ADD: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "last_reserved_ip.0")); err != nil {
		t.Fatal(err)
	}
	if got := add(t, s, "a"); got[0] != "10.1.0.5" {
		t.Errorf("got %s", got)
	}
	del(t, s, "a")
	for _, name := range []string{"10.1.0.2", "10.1.0.3", "10.1.0.4"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// TestNoPath: a dataDir that is no path is refused, and there is nothing in it to release.
func TestNoPath(t *testing.T) {
	s := &Store{DataDir: "/tmp/a\x00b", Sets: sets(t, "10.1.0.0/24"), Log: testLog(t)}
	if _, err := s.Allocate(t.Context(), owner("a")); err == nil || spec.AsError(err, 0).Code != spec.CodeConfig ||
		!strings.Contains(err.Error(), "ipam.dataDir") {
		t.Errorf("allocate: %v", err)
	}
	if err := errors.Join(s.Release(t.Context(), owner("a")), s.Sweep(t.Context(), "net", nil)); err != nil {
		t.Errorf("release, sweep: %v", err)
	}
}
