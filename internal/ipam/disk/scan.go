package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// openIndex opens the index, and rebuilds it if it does not match the directory.
func (d *directory) openIndex() error {
	d.x = openIndex(indexPath(d.path))
	d.readLasts()
	var st unix.Stat_t
	if d.boot != 0 && d.x.boot == d.boot && unix.Fstat(d.fd, &st) == nil && d.x.digest == d.digest(&st) {
		return nil
	}
	return d.rescan()
}

// rescan scans an index that does not match the directory: another program may have allocated and released addresses.
func (d *directory) rescan() error {
	d.x.since = Uptime()
	return d.scan()
}

// digest covers what changes when another program makes or removes a lease. On a file system with a coarse clock the
// time may not change; then last_reserved_ip shows an ADD of the reference plugin.
func (d *directory) digest(st *unix.Stat_t) string {
	return digest("directory", fmt.Sprint(st.Ino, unix.TimespecToNsec(st.Mtim), strings.Join(d.lasts, "\n")))
}

// sign records that the index matches the directory. It sets the directory's time of change to a value of its own with
// nanoseconds. Before Linux 6.13 the kernel's own value has the resolution of its tick, so that another change in the
// same tick would not be noticed. It is the last step, so a killed call leaves no signature.
func (d *directory) sign() {
	var st unix.Stat_t
	d.x.note(unix.Fstat(d.fd, &st))
	st.Mtim = unix.NsecToTimespec(time.Now().UnixNano())
	if d.x.err == nil {
		d.x.digest = d.digest(&st)
		d.x.save()
	}
	if d.x.err != nil {
		d.log.Info("the index of leases cannot be kept, so the next call reads the directory",
			"directory", d.path, "cause", d.x.err)
		return
	}
	// Where it fails the times differ, and the next call scans.
	_ = unix.UtimesNanoAt(d.fd, ".", []unix.Timespec{st.Mtim, st.Mtim}, 0)
}

// scan reads the directory and rebuilds the index. Lease files that name no owner are removed with a warning, because
// no DEL would ever remove them. Entries of the earlier index are kept if the directory does not contain their
// information: how a lease was made, if its file is unchanged, and when an address was released.
func (d *directory) scan() error {
	addrs, err := listAddresses(d.fd, ".")
	if err != nil {
		return err
	}
	sameBoot := d.boot != 0 && d.x.boot == d.boot
	d.fresh, d.dirty, d.found = true, true, nil
	d.x.make(indexPath(d.path))
	former := d.earlierEntries(sameBoot)
	there := map[netip.Addr]bool{}
	for _, a := range addrs {
		e, ok := d.look(a, former[a], sameBoot)
		if ok {
			there[a] = true
		}
		if e.owner != "" {
			d.found = append(d.found, e)
		}
		former[a] = slices.DeleteFunc(former[a], func(was entry) bool { return was.owner == e.owner })
	}
	for a, list := range former {
		for _, was := range list {
			d.x.remove(was.owner, a)
		}
	}
	d.words(there)
	d.x.boot = d.boot
	return d.scanRecords()
}

// words marks the addresses that are in use. An address that the index marks as used and that has no lease was released
// by another program: its cooldown begins now.
func (d *directory) words(there map[netip.Addr]bool) {
	var gone []netip.Addr
	d.x.all(func(a netip.Addr, word uint32) {
		switch {
		case word != taken:
		case there[a]:
			delete(there, a)
		default:
			gone = append(gone, a)
		}
	})
	for a := range there {
		d.x.mark(a, taken)
	}
	for _, a := range gone {
		d.x.mark(a, uint32(d.now))
	}
	d.rested(gone)
}

// earlierEntries returns the leases in the index by address. It removes the entries of sticky keys, and after a
// reboot also the words.
func (d *directory) earlierEntries(sameBoot bool) map[netip.Addr][]entry {
	entries := map[netip.Addr][]entry{}
	names, _ := list(d.x.fd, ".") // those of an index that cannot be read are made anew
	for _, name := range names {
		owner, _, _ := strings.Cut(name, ".")
		switch {
		case strings.HasPrefix(name, "k"):
			_ = unix.Unlinkat(d.x.fd, name, 0)
		case strings.HasPrefix(name, "o"):
			v, _ := d.x.readlink(name)
			if e, ok := parseEntry(owner, v); ok {
				entries[e.addr] = append(entries[e.addr], e)
			}
		}
	}
	if sameBoot {
		return entries
	}
	d.x.closeBlocks()
	clear(d.x.words)
	names, _ = list(d.x.fd, "words")
	for _, name := range names {
		_ = unix.Unlinkat(d.x.fd, filepath.Join("words", name), 0)
	}
	return entries
}

// look finds the owner of a, and whether a is in use, for the index that had the entries former. The owner of a lease
// that cannot be read is unknown.
func (d *directory) look(a netip.Addr, former []entry, sameBoot bool) (e entry, there bool) {
	if sameBoot { // after a power cut a file may have its time still, and its content no more
		var st unix.Stat_t
		err := unix.Fstatat(d.fd, a.String(), &st, unix.AT_SYMLINK_NOFOLLOW)
		for _, was := range former {
			if err == nil && was.stamp == stamp(&st) {
				return was, true
			}
		}
	}
	l, err := d.read(a)
	switch {
	case errors.Is(err, errGarbage):
		if err := d.removeGarbage(a); err != nil {
			d.log.Warn("a lease file that names no owner could not be removed", "cause", err)
			return e, true
		}
		return e, false
	case errors.Is(err, fs.ErrNotExist):
		return e, false
	case err != nil:
		d.log.Warn("ignored a lease file that cannot be read", "cause", err)
		return e, true
	}
	e = entry{owner: ownerName(l.text), addr: a, stamp: l.stamp}
	if sameBoot {
		e.boot = d.boot // not there when this boot's scan was made, or made later: made in this boot
	}
	for _, was := range former {
		if was.owner == e.owner && was.stamp == e.stamp {
			e = was
		}
	}
	d.x.lease(e)
	return e, true
}

// removeGarbage removes a lease file that names no owner.
func (d *directory) removeGarbage(a netip.Addr) error {
	d.log.Warn("removing a lease file that names no owner; a crash may have left it",
		"file", filepath.Join(d.path, a.String()))
	return d.unlink(a)
}
