package disk

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestSince: the number of a ledger stays what it is as long as nobody else can have changed the leases, whoever looks
// at them, and is another one afterwards.
func TestSince(t *testing.T) {
	s := &Store{DataDir: filepath.Join(t.TempDir(), "networks"), Sets: sets(t, "10.1.0.0/24"), Log: testLog(t)}
	n := 0
	allocate := func() int64 {
		t.Helper()
		n++
		o := spec.Owner{Network: "net", ContainerID: string(rune('a' + n)), IfName: "eth0"}
		if _, err := s.Allocate(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		since := s.Since()
		if err := s.Release(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		return since
	}
	was := allocate()
	if was == 0 {
		t.Error("the first one is none")
	}
	look := func() error {
		_, err := s.Look(t.Context(), "net")
		return err
	}
	dir := filepath.Join(s.DataDir, "net")
	write := func() error { return os.WriteFile(filepath.Join(dir, "10.1.0.77"), []byte("x\r\neth0"), 0o600) }
	for _, tt := range []struct {
		name string
		do   func() error
		same bool
	}{
		{"nothing", func() error { return nil }, true},
		{"a sweep", func() error { return s.Sweep(t.Context(), "net", nil) }, true},
		{"a look", look, true},
		{"a lease of others", write, false},
		{"a lease of others that is gone", func() error { return os.Remove(filepath.Join(dir, "10.1.0.77")) }, false},
		{"a lease of others, swept", func() error {
			if err := write(); err != nil {
				return err
			}
			return s.Sweep(t.Context(), "net", nil)
		}, false},
		{"a lease of others, looked at", func() error {
			if err := write(); err != nil {
				return err
			}
			return look()
		}, false},
		{"an import", func() error {
			_, err := s.Import(t.Context(), "net", &ipam.Book{Leases: []ipam.Lease{{Address: netip.MustParseAddr("10.1.0.200"),
				ContainerID: "x", IfName: "eth0"}}}, true, false)
			return err
		}, false},
		{"the index gone", func() error { return os.RemoveAll(filepath.Join(s.DataDir, indexDir)) }, false},
		{"another boot", func() error {
			x := openIndex(indexPath(dir))
			defer x.close()
			x.boot ^= 4
			x.save()
			return x.err
		}, false},
		{"the directory gone", func() error { return os.RemoveAll(dir) }, false},
		{"all gone", func() error { return os.RemoveAll(s.DataDir) }, false},
	} {
		if err := tt.do(); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if now := allocate(); (now == was) != tt.same || now == 0 {
			t.Errorf("%s: %x, and before %x", tt.name, now, was)
		} else {
			was = now
		}
	}
	s.Requested = append(s.Requested, netip.MustParseAddr("10.1.0.201"))
	if since := allocate(); since != 0 {
		t.Errorf("by name: %x, want none", since)
	}
}
