package disk

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"net/netip"

	"golang.org/x/sys/unix"
)

// audit holds the index against the directory: where it counts as true, it has to be, to the last lease
// and address; but it may have entries that are true no more. It returns whether it counts.
func audit(t testing.TB, s *Store) bool {
	t.Helper()
	path := filepath.Join(s.DataDir, "net")
	d, err := openDirectory(context.Background(), path, false)
	if err != nil {
		t.Fatal(err)
	}
	if d == nil {
		return false
	}
	defer d.closeFiles()
	d.boot, d.log = thisBoot(), testLog(t)
	d.x = openIndex(indexPath(path))
	defer d.x.close()
	d.readLasts()
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil || d.x.boot != d.boot || d.x.digest != d.digest(&st) {
		return false
	}
	files, kept := leases(t, s.DataDir), remembered(t, s.DataDir)
	words := 0
	d.x.all(func(a netip.Addr, word uint32) {
		if word != taken {
			return
		}
		if words++; files[a.String()] == "" {
			t.Errorf("the index takes %s for used, and it is not", a)
		}
	})
	if words != len(files) {
		t.Errorf("the index has %d used addresses, the directory %d", words, len(files))
	}
	for a, text := range files {
		l, err := d.read(addr(a))
		if err != nil {
			t.Error(err)
		}
		if e := d.entry(addr(a), strings.TrimSpace(text)); e.stamp != l.stamp {
			t.Errorf("%s: the index does not know the lease of %q: %+v", a, text, e)
		}
	}
	names, err := list(d.x.fd, ".")
	if err != nil {
		t.Error(err)
	}
	for _, name := range names {
		v, _ := d.x.readlink(name)
		switch owner, _, _ := strings.Cut(name, "."); {
		case strings.HasPrefix(name, "k"):
			if r, err := d.readRecord(addr(v)); err == nil && r.keyName() == owner {
				delete(kept, v)
			}
		case strings.HasPrefix(name, "o"):
			if _, ok := parseEntry(owner, v); !ok {
				t.Errorf("the index has %q as %q", v, owner)
			}
		}
	}
	if len(kept) > 0 {
		t.Errorf("the index has not these sticky addresses: %v", kept)
	}
	return true
}
