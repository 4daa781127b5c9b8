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

	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/ipam"
	"golang.org/x/sys/unix"
)

// keptDir contains what must survive a reboot, and so is synced: for each network a directory with the file "reserved",
// and a file for each address that a sticky key had last. Leases are not stored there.
const keptDir = ".fairlead-kept"

func keptPath(dir string) string {
	return filepath.Join(filepath.Dir(dir), keptDir, filepath.Base(dir))
}

// A record says which sticky key had an address last. Its file has the address's name.
//
// Within a boot its age is told by a clock that cannot be set; across boots there is but the wall clock. Where that one
// was set back, so that a record is from the future, it is as good as new.
type record struct {
	Key    string `json:"key"`
	IfName string `json:"ifname"`
	TTL    int64  `json:"ttl"`   // for how many seconds no other owner gets the address while others are free
	Since  int64  `json:"since"` // when the key got it, or gave it back: seconds of the wall clock
	Boot   uint64 `json:"boot"`  // … the boot that this was in, 0 if that is not known
	Clock  clock  `json:"clock"` // … and the time of that boot
}

const century = 100 * 365 * 24 * 3600 // seconds

// key identifies the sticky key together with the interface.
func (r record) key() string { return r.Key + "\r\n" + r.IfName }

// keyName is the name of r's key in the index, and keyNumber stands for it beside a lease.
func (r record) keyName() string   { return "k" + digest("sticky", r.key()) }
func (r record) keyNumber() uint32 { return number("sticky", r.key()) }

// left returns how long r still holds its address.
func (r record) left(d *directory) time.Duration {
	age := time.Duration(max(d.wall-r.Since, 0)) * time.Second // a far future would be more than a Duration holds
	if r.Boot != 0 && r.Boot == uint64(d.boot) {
		age = d.now.since(uint32(r.Clock))
	}
	return time.Duration(r.TTL)*time.Second - max(age, 0)
}

// fresh returns r with the current time.
func (r record) fresh(d *directory) record {
	r.Since, r.Boot, r.Clock = d.wall, uint64(d.boot), d.now
	return r
}

// readRecord reads the record of a.
func (d *directory) readRecord(a netip.Addr) (r record, err error) {
	path := filepath.Join(keptPath(d.path), a.String())
	b, err := plainfile.Read(path, plainfile.MaxSize)
	if err != nil {
		return r, err
	}
	if json.Unmarshal(b, &r) != nil || r.Key == "" || r.TTL < 0 || r.TTL > century || r.Since < 0 || r.Since > 1<<40 {
		return r, &fs.PathError{Op: "read", Path: path, Err: errGarbage}
	}
	return r, nil
}

// A persistent is a record and its address.
type persistent struct {
	addr netip.Addr
	record
}

// persist writes records to the disk: all of them, or, as far as the disk allows, none.
func (d *directory) persist(list ...persistent) error {
	if len(list) == 0 {
		return nil
	}
	files := map[string][]byte{}
	for _, k := range list {
		b, err := json.Marshal(k.record)
		if err != nil {
			return err
		}
		files[k.addr.String()] = b
		d.hold(k)
	}
	d.x.prune -= len(list)
	return writeSynced(keptPath(d.path), files)
}

// hold marks in the index that the address of k belongs to its key while it has no lease.
func (d *directory) hold(k persistent) {
	d.x.set(k.keyName(), k.addr, k.addr.String())
	if d.x.word(k.addr) == taken {
		return
	}
	if left := k.left(d); left > 0 {
		d.x.mark(k.addr, d.now.held(left))
	}
}

// forget removes the record of a.
func (d *directory) forget(a netip.Addr, r record) error {
	path := filepath.Join(keptPath(d.path), a.String())
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	d.x.remove(r.keyName(), a)
	if isHold(d.x.word(a)) {
		d.x.mark(a, 0)
	}
	return nil
}

// reservations reads the reservations. If they cannot be read, no address is allocated, because it may be a reserved
// one.
func (d *directory) reservations() ([]ipam.Reservation, error) {
	path := filepath.Join(keptPath(d.path), "reserved")
	b, err := plainfile.Read(path, plainfile.MaxSize)
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
		return nil, fmt.Errorf("read the reservations in %s, without which no address can be allocated: %w; correct "+
			"the file, or remove it and reserve again",
			path, err)
	}
	return doc.Reserved, nil
}

// reserve replaces the reservations.
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

// writeSynced writes files of a directory, syncs them, and only then gives them their names.
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
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := unix.Openat(dir, name, flags, 0o600)
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

// makeSynced makes a directory and its parents. The name of each one is synced before anything is made in it.
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
	f, err := os.OpenFile(parent, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
