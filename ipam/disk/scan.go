package disk

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
	"golang.org/x/sys/unix"
)

// ready opens the index and, unless it is true of the directory as it is, makes it anew.
func (d *directory) ready(sets int) error {
	d.x = openIndex(indexPath(d.path))
	if d.x != nil {
		d.readLasts(max(sets, int(min(d.x.lasts, 1024))))
		if d.true() {
			return nil
		}
	}
	d.readLasts(sets)
	return d.scan()
}

// true reports whether nobody but us changed the directory since the index was signed.
func (d *directory) true() bool {
	var st unix.Stat_t
	return d.boot != 0 && d.x.boot == d.boot &&
		unix.Fstat(d.fd, &st) == nil && st.Ino == d.x.inode && unix.TimespecToNsec(st.Mtim) == d.x.mtime &&
		int(d.x.lasts) <= len(d.lasts) && d.x.digest == d.digest(int(d.x.lasts))
}

func (d *directory) digest(n int) key {
	return keyOf("lasts", strings.Join(d.lasts[:n], "\n"))
}

// sign says that the index is true of the directory. The directory gets a time of change of ours, to the
// nanosecond: before Linux 6.13 the kernel's own has the grain of its tick, in which somebody else could
// change it once more and not be seen. It is the last step, so that a call that is killed leaves no signature.
func (d *directory) sign() {
	var st unix.Stat_t
	if d.x.err != nil || unix.Fstat(d.fd, &st) != nil {
		d.log.Info("the index of leases cannot be kept, so the next call reads the directory", "directory", d.path, "cause", d.x.err)
		return
	}
	ts := unix.NsecToTimespec(time.Now().UnixNano())
	d.x.inode, d.x.mtime = st.Ino, unix.TimespecToNsec(ts)
	d.x.lasts, d.x.digest = uint32(len(d.lasts)), d.digest(len(d.lasts))
	d.x.write(0, 0, d.x.header.encode())
	if d.x.err == nil {
		// Where it fails the times differ, and the next call scans.
		_ = unix.UtimesNanoAt(d.fd, ".", []unix.Timespec{ts, ts}, 0)
	}
}

// scan reads the directory and makes the index anew. Lease files that name nobody are removed, and said:
// no DEL would ever find them. What the former index knows and the directory cannot say is kept: in
// which boot a lease was made, if its file is the same still, and when an address was released.
func (d *directory) scan() error {
	names, err := d.list()
	if err != nil {
		return err
	}
	old := d.x
	if old != nil {
		defer old.store.close()
	}
	sameBoot := old != nil && old.boot == d.boot
	known := map[netip.Addr][]slot{}
	if old != nil {
		old.all(func(s slot) {
			if s.kind == kindLease {
				known[s.addr] = append(known[s.addr], s)
			}
		})
	}
	x := newIndex(indexPath(d.path), d.boot, len(names))
	d.x, d.fresh, d.dirty = x, true, true
	for _, name := range names {
		a, err := netip.ParseAddr(name)
		if err != nil || a.String() != name || a.Zone() != "" || a.Is4In6() {
			continue
		}
		if sameBoot { // after a power cut a file may have its time still, and its content no more
			if i := slices.IndexFunc(known[a], d.unchanged); i >= 0 {
				x.add(known[a][i])
				x.mark(a, taken)
				continue
			}
		}
		l, err := d.read(a)
		switch {
		case errors.Is(err, errGarbage):
			if err := d.removeGarbage(a); err != nil {
				d.log.Warn("a lease file that names no owner stays", "cause", err)
				x.mark(a, taken)
			}
			continue
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			d.log.Warn("passed over a lease file that cannot be read", "cause", err)
			x.mark(a, taken)
			continue
		}
		s := slot{key: keyOf("lease", l.text), addr: a, kind: kindLease}
		if sameBoot {
			s.boot = d.boot // not there when this boot's scan was made, or made later: made in this boot
		}
		for _, was := range known[a] {
			if was.key == s.key && was.of(l.stamp) {
				s.boot, s.netns = was.boot, was.netns
			}
		}
		x.add(s.seal(l.stamp))
		x.mark(a, taken)
	}
	if sameBoot {
		d.remember(old)
	} else {
		old = nil // as far as what is kept goes
	}
	if err := d.scanKept(old); err != nil {
		return err
	}
	x.save()
	return nil
}

// removeGarbage removes a lease file that names nobody.
func (d *directory) removeGarbage(a netip.Addr) error {
	d.log.Warn("removing a lease file that names no owner; a crash may have left it", "file", filepath.Join(d.path, a.String()))
	return d.unlink(a)
}

// remember keeps the times of release that the former index has. What it has as taken and is gone was
// released by somebody else, and begins to rest now.
func (d *directory) remember(old *index) {
	old.all(func(s slot) {
		if s.kind != kindBlock || s.page <= old.buckets {
			return
		}
		was := old.page(s.page)
		for i := range perBlock {
			word := binary.LittleEndian.Uint32(was[i*4:])
			if word == 0 || isHold(word) || word != taken && d.now.since(word) >= d.rest {
				continue // what is held is said elsewhere
			}
			a := ipam.Plus(s.addr, uint64(i))
			if d.x.word(a) == taken {
				continue
			}
			if word == taken {
				word = uint32(d.now)
			}
			d.x.mark(a, word)
		}
	})
}

// list is the names in the directory.
func (d *directory) list() ([]string, error) {
	fail := func(err error) error { return &fs.PathError{Op: "read", Path: d.path, Err: err} }
	if _, err := unix.Seek(d.fd, 0, unix.SEEK_SET); err != nil {
		return nil, fail(err)
	}
	var names []string
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.ReadDirent(d.fd, buf)
		if err != nil {
			return nil, fail(err)
		}
		if n <= 0 {
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}
