package disk

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/ipam"
)

// audit holds the index against the directory: where it counts as true, it has to be, to the last lease
// and address. It returns whether it counts.
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
	if d.x == nil {
		return false
	}
	defer d.x.store.close()
	d.readLasts(int(d.x.lasts))
	if !d.true() {
		return false
	}
	inFiles, inIndex := map[string]string{}, map[string]string{}
	for name, text := range leases(t, s.DataDir) {
		inFiles[name] = fmt.Sprint(keyOf("lease", strings.TrimSpace(text)))
	}
	words := 0
	kept, sticky := remembered(t, s.DataDir), uint32(0)
	tops, blocks := 0, 0
	d.x.all(func(l slot) {
		switch l.kind {
		case kindTop:
			p := d.x.page(l.page)
			for i := range perBlock {
				tops += int(binary.LittleEndian.Uint32(p[i*4:]))
			}
		case kindSticky:
			sticky++
			if r, _, err := d.readRecord(l.addr); err != nil || r.stickyKey() != l.key {
				t.Errorf("the index takes %s for sticky: %v", l.addr, err)
			}
			delete(kept, l.addr.String())
		case kindLease:
			if _, err := os.Lstat(filepath.Join(path, l.addr.String())); err == nil {
				inIndex[l.addr.String()] = fmt.Sprint(l.key)
			}
		case kindBlock:
			p := *d.x.page(l.page)
			n := 0
			for i := range perBlock {
				if binary.LittleEndian.Uint32(p[i*4:]) == taken {
					n++
				}
			}
			blocks += n
			if d.x.full(l.addr) != (n == perBlock) {
				t.Errorf("the block of %s has %d taken, and counts as full or not", l.addr, n)
			}
			for i := range perBlock {
				if binary.LittleEndian.Uint32(p[i*4:]) == taken {
					words++
					if a := ipam.Plus(l.addr, uint64(i)); inFiles[a.String()] == "" {
						t.Errorf("the index takes %s for used, and it is not", a)
					}
				}
			}
		}
	})
	if tops != blocks {
		t.Errorf("the index counts %d taken, and has %d", tops, blocks)
	}
	if len(kept) > 0 || sticky != d.x.sticky {
		t.Errorf("the index has %d sticky addresses, counts %d, and not these: %v", sticky, d.x.sticky, kept)
	}
	if len(inIndex) != len(inFiles) || words != len(inFiles) {
		t.Errorf("the index has %d leases and %d used addresses, the directory %d", len(inIndex), words, len(inFiles))
	}
	for name, k := range inFiles {
		if inIndex[name] != k {
			t.Errorf("%s: the index has another owner than the file", name)
		}
	}
	return true
}
