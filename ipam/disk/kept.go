package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
	"golang.org/x/sys/unix"
)

// keptDir holds what is to outlive a boot, and so is synced: for each network a directory with the file "reserved", and
// a file for each address that a sticky key had last. Leases are no part of it.
const keptDir = ".fairlead-kept"

func keptPath(dir string) string {
	return filepath.Join(filepath.Dir(dir), keptDir, filepath.Base(dir))
}

// A record says which sticky key had an address last. Its file has the address's name.
//
// Within a boot its age is told by a clock that nobody sets; across boots there is but the wall clock. Where that one
// was set back, so that a record is from the future, it is as good as new.
type record struct {
	Key    string `json:"key"`
	IfName string `json:"ifname"`
	TTL    int64  `json:"ttl"`   // for how many seconds nobody else gets the address while others are free
	Since  int64  `json:"since"` // when the key got it, or gave it back: seconds of the wall clock
	Boot   uint64 `json:"boot"`  // … the boot that this was in, 0 if that is not known
	Clock  clock  `json:"clock"` // … and the time of that boot
}

const century = 100 * 365 * 24 * 3600 // seconds

// stickyKey is how the index knows r's key.
func (r record) stickyKey() key { return keyOf("sticky", r.Key+"\r\n"+r.IfName) }

// left is for how long r still holds its address.
func (r record) left(d *directory) time.Duration {
	age := time.Duration(max(d.wall-r.Since, 0)) * time.Second // a far future would be more than a Duration holds
	if r.Boot != 0 && r.Boot == d.boot {
		age = d.now.since(uint32(r.Clock))
	}
	return time.Duration(r.TTL)*time.Second - max(age, 0)
}

// fresh is r as of now.
func (r record) fresh(d *directory) record {
	r.Since, r.Boot, r.Clock = d.wall, d.boot, d.now
	return r
}

// readRecord reads what is remembered of a.
func (d *directory) readRecord(a netip.Addr) (r record, stamp uint64, err error) {
	path := filepath.Join(keptPath(d.path), a.String())
	b, stamp, err := slurp(path)
	if err != nil {
		return r, stamp, err
	}
	if json.Unmarshal(b, &r) != nil || r.Key == "" || r.TTL < 0 || r.TTL > century || r.Since < 0 || r.Since > 1<<40 {
		return r, stamp, &fs.PathError{Op: "read", Path: path, Err: errGarbage}
	}
	return r, stamp, nil
}

// slurp reads a regular file, whatever else has its name.
func slurp(path string) ([]byte, uint64, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	stamp, _, err := stampOf(fd)
	if err != nil {
		return nil, 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	var all []byte
	var b [4096]byte
	for len(all) < 1<<24 {
		n, err := unix.Read(fd, b[:])
		if err != nil {
			return nil, 0, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		all = append(all, b[:n]...)
		if n < len(b) {
			break
		}
	}
	return all, stamp, nil
}

// A kept is a record, the address that it is about, and who has the address now: a number of the lease's text, or noOwner.
// The latter is for the index only.
type kept struct {
	addr netip.Addr
	record
	by uint64
}

// Who has a sticky address, in its slot of the index, is 0 where that is not known.
const noOwner = 1

func ownerNumber(text string) uint64 { return number("owner " + text) }

// keep writes records to the disk, all or, as far as the disk goes along, none. The index knows them afterwards.
func (d *directory) keep(list ...kept) error {
	if len(list) == 0 {
		return nil
	}
	d.unsign()
	files := map[string][]byte{}
	for _, k := range list {
		b, err := json.Marshal(k.record)
		if err != nil {
			return err
		}
		files[k.addr.String()] = b
	}
	if err := writeSynced(keptPath(d.path), files); err != nil {
		return err
	}
	for _, k := range list {
		d.index(k)
	}
	return nil
}

// index writes down in the index whose the address of k is, while no lease says so.
func (d *directory) index(k kept) {
	s := slot{key: k.stickyKey(), addr: k.addr, kind: kindSticky, netns: k.by}
	if _, stamp, err := d.readRecord(k.addr); err == nil {
		s = s.seal(stamp)
	}
	d.x.add(s)
	if d.x.word(k.addr) != taken {
		d.x.mark(k.addr, d.holdWord(k.record))
	}
}

// holdWord is r's hold as a word of a block.
func (d *directory) holdWord(r record) uint32 {
	left := r.left(d)
	if left <= 0 {
		return 0
	}
	return d.now.held(left)
}

// forget removes what is remembered of a.
func (d *directory) forget(a netip.Addr, r record) error {
	d.unsign()
	path := filepath.Join(keptPath(d.path), a.String())
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	d.x.removeKind(kindSticky, r.stickyKey(), a)
	if d.x.word(a) != taken {
		d.x.mark(a, 0)
	}
	return nil
}

// unsign makes a call that is killed from here on leave an index that is true of nothing. Who changes the network's
// directory does that by the way; what is kept is elsewhere.
func (d *directory) unsign() {
	if d.dirty || d.fresh {
		return
	}
	d.dirty = true
	d.x.inode, d.x.mtime = 0, 0
	d.x.write(0, 0, d.x.header.encode())
}

// reservations reads what is reserved. Where it cannot be read nobody is given anything: it may be what was promised.
func (d *directory) reservations() ([]ipam.Reservation, error) {
	path := filepath.Join(keptPath(d.path), "reserved")
	b, _, err := slurp(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var doc struct{ Reserved []ipam.Reservation }
	err = json.Unmarshal(b, &doc)
	if err == nil && doc.Reserved == nil {
		err = errors.New(`there is no "reserved"`)
	}
	for i := 0; i < len(doc.Reserved) && err == nil; i++ {
		if p := doc.Reserved[i].Prefix; !p.IsValid() || p != p.Masked() {
			err = fmt.Errorf("prefix %q: want a subnet", p)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the reservations in %s, without which no address is given out: %w; mend the file, or remove it and reserve anew", path, err)
	}
	return doc.Reserved, nil
}

// reserve replaces what is reserved.
func (d *directory) reserve(list []ipam.Reservation) error {
	if list == nil {
		list = []ipam.Reservation{}
	}
	b, err := json.MarshalIndent(map[string]any{"reserved": list}, "", "  ")
	if err != nil {
		return err
	}
	return writeSynced(keptPath(d.path), map[string][]byte{"reserved": append(b, '\n')})
}

// newPrefix begins the name of a file that is being written.
const newPrefix = ".new-"

// writeSynced writes files of a directory, makes them outlive a power cut, and only then gives them their names.
func writeSynced(dir string, files map[string][]byte) (failed error) {
	if err := makeSynced(dir); err != nil {
		return err
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	defer func() {
		for name := range files {
			if failed != nil {
				_ = unix.Unlinkat(fd, newPrefix+name, 0) // where it was made at all
			}
		}
	}()
	fail := func(op, name string, err error) error {
		return &fs.PathError{Op: op, Path: filepath.Join(dir, name), Err: err}
	}
	few := len(files) <= 4 // of many, one sync of the whole file system is faster
	for name, b := range files {
		if err := writeFile(fd, newPrefix+name, b, few); err != nil {
			return fail("write", name, err)
		}
	}
	if !few {
		if err := unix.Syncfs(fd); err != nil {
			return fail("sync", "", err)
		}
	}
	for name := range files {
		if err := unix.Renameat(fd, newPrefix+name, fd, name); err != nil {
			return fail("create", name, err)
		}
	}
	if err := unix.Fsync(fd); err != nil {
		return fail("sync", "", err)
	}
	return nil
}

func writeFile(dir int, name string, b []byte, sync bool) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	if sync {
		return unix.Fsync(fd)
	}
	return nil
}

// makeSynced makes a directory and those above it, each one's name on the disk before anything is in it.
func makeSynced(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := makeSynced(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.Open(parent)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
