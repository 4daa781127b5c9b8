// Package record keeps what later calls need, in files of the run directory: records of owners, the history of
// addresses on a bridge, and locks between processes. It keeps nothing that the kernel itself can tell.
package record

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A Store keeps what a resource needs to undo a change and cannot store on the changed object itself. Its files last
// until the next boot.
type Store struct{ Dir string }

// RunDir is the directory of volatile state, and StoreDir the directory of the host's Store.
const (
	RunDir = "/run/cni/fairlead"
	Dir    = RunDir + "/memory"
)

func (m Store) file(kind string, o spec.Owner) string {
	return m.fileOf(kind, o.Network, identity.OwnerHash(o))
}

func (m Store) fileOf(kind, network string, owner [8]byte) string {
	n := identity.NetworkHash(network)
	return filepath.Join(m.Dir, kind+"."+hex.EncodeToString(n[:])+"."+hex.EncodeToString(owner[:]))
}

// unfinished is what the file of a record is called while it takes the place of one that is there. It has a name of the
// record's own, so that Delete finds what a killed Put left. The first file of a record has no name until it is whole.
const unfinished = ".new"

// Has reports whether a record of that kind exists for the owner with these hashes.
func (m Store) Has(kind string, network [6]byte, owner [8]byte) bool {
	_, err := os.Stat(filepath.Join(m.Dir, kind+"."+hex.EncodeToString(network[:])+"."+hex.EncodeToString(owner[:])))
	return err == nil
}

// Put stores v as the record of kind for owner o. It replaces the file atomically.
func (m Store) Put(kind string, o spec.Owner, v any) error {
	return m.put(kind, o, v, false)
}

// PutSynced is Put for records that must survive a crash of the machine, such as the state of a lent device.
func (m Store) PutSynced(kind string, o spec.Owner, v any) error {
	return m.put(kind, o, v, true)
}

func (m Store) put(kind string, o spec.Owner, v any, sync bool) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		return err
	}
	file := m.file(kind, o)
	for tries := 100; ; tries-- {
		err = Replace(file, b, sync)
		// else it was forgotten meanwhile, by a process that came before
		if tries == 1 || !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil || !sync {
		return err
	}
	dir, err := os.OpenFile(m.Dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Replace writes a file atomically: it renames a new file to the name. Concurrent writers of the same file wait until
// the new file has its name; closing that file releases the lock.
func Replace(file string, b []byte, sync bool) error {
	if made, err := first(file, b, sync); made || err != nil {
		return err
	}
	f, err := create(file + unfinished)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := write(f, b, sync); err != nil {
		return err
	}
	return os.Rename(file+unfinished, file)
}

func write(f *os.File, b []byte, sync bool) error {
	_, err := f.Write(b)
	if sync {
		err = errors.Join(err, f.Sync())
	}
	return err
}

// first makes a file where there is none, and reports whether it has. A call that is killed leaves nothing. Not every
// file system has files without a name.
func first(file string, b []byte, sync bool) (made bool, err error) {
	if err := unix.Access(file, unix.F_OK); !errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	dir := filepath.Dir(file)
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	switch err {
	case nil:
	case unix.EOPNOTSUPP, unix.EISDIR, unix.EINVAL, unix.EINTR: // overlayfs before 6.3, NFS
		return false, nil
	default:
		return false, &fs.PathError{Op: "create a file in", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	if err := write(f, b, sync); err != nil {
		return false, err
	}
	// Not by AT_EMPTY_PATH, which takes CAP_DAC_READ_SEARCH.
	err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, file, unix.AT_SYMLINK_FOLLOW)
	return err == nil, nil // else another process was faster, or /proc is not there
}

// create opens a file, empties it, and locks it: several calls may write one record at a time, of a bridge that they
// share. What is no file, a pipe say, is removed. It is not os.OpenFile, which sets the runtime's poller up for it;
// that takes a call longer than all the rest of the record.
func create(path string) (*os.File, error) {
	for range 1000 {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		switch err {
		case nil:
		case unix.EINTR:
			continue
		case unix.ELOOP, unix.EISDIR, unix.ENXIO:
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			continue
		default:
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		f := os.NewFile(uintptr(fd), path)
		if err = flock(context.Background(), lockBound, f, unix.LOCK_EX, nil); err != nil {
			return nil, err
		}
		var open, there unix.Stat_t
		if err := unix.Fstat(fd, &open); err != nil {
			f.Close()
			return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
		}
		err = unix.Lstat(path, &there)
		switch {
		case err != nil || there.Ino != open.Ino || there.Dev != open.Dev: // who had the lock has renamed it
		case open.Mode&unix.S_IFMT != unix.S_IFREG:
			_ = os.Remove(path)
		default:
			return f, f.Truncate(0)
		}
		f.Close()
	}
	return nil, &fs.PathError{Op: "create", Path: path, Err: errors.New("others write it without an end")}
}

// Writable returns nil if Put can work. It checks the permission to write to the directory, or to the nearest
// existing directory above it. It writes nothing.
func (m Store) Writable() error {
	for dir := m.Dir; ; dir = filepath.Dir(dir) {
		switch err := unix.Access(dir, unix.W_OK|unix.X_OK); {
		case err == nil:
			return nil
		case !errors.Is(err, unix.ENOENT) || dir == "/":
			return &fs.PathError{Op: "write to", Path: dir, Err: err}
		}
	}
}

// plain reads a file of the store. One that is no file of ours counts as none, and is said.
func plain(path string) ([]byte, error) {
	b, err := plainfile.Read(path, plainfile.MaxSize)
	if errors.Is(err, plainfile.ErrNotPlain) {
		slog.Warn("a record is passed over: remove it", "cause", err)
		return nil, fs.ErrNotExist
	}
	return b, err
}

// Get reads the record of kind for owner o into v and reports whether there is one. A truncated record counts as
// none.
func (m Store) Get(kind string, o spec.Owner, v any) (bool, error) {
	b, err := m.Raw(kind, o.Network, identity.OwnerHash(o))
	if err != nil || b == nil {
		return false, err
	}
	return json.Unmarshal(b, v) == nil, nil
}

// Raw returns the record of kind for an owner that is known only by hash. It returns nil if there is none.
func (m Store) Raw(kind, network string, owner [8]byte) (json.RawMessage, error) {
	b, err := plain(m.fileOf(kind, network, owner))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// Delete removes the record of kind for owner o. A missing record is no error.
func (m Store) Delete(kind string, o spec.Owner) error {
	return m.DeleteOf(kind, o.Network, identity.OwnerHash(o))
}

// DeleteOf is Delete for an owner that is known only by hash.
func (m Store) DeleteOf(kind, network string, owner [8]byte) error {
	var errs []error
	file := m.fileOf(kind, network, owner)
	for _, file := range []string{file, file + unfinished} {
		err := unix.Unlink(file) // os.Remove asks twice of what is not there
		if errors.Is(err, unix.EISDIR) {
			err = unix.Rmdir(file)
		}
		if errors.Is(err, unix.EROFS) { // which a read-only file system says of a file that is not there, too
			_, lerr := os.Lstat(file)
			err = cmp.Or(lerr, err)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove %s: %w", file, err))
		}
	}
	return errors.Join(errs...)
}

// All returns the records of kind in all networks, by owner.
func (m Store) All(kind string) (map[[8]byte]json.RawMessage, error) { return m.records(kind, "") }

// Records returns the records of kind in one network, by owner.
func (m Store) Records(kind, network string) (map[[8]byte]json.RawMessage, error) {
	n := identity.NetworkHash(network)
	return m.records(kind, hex.EncodeToString(n[:]))
}

// records are those of a network, by its hash; empty: of any.
func (m Store) records(kind, network string) (map[[8]byte]json.RawMessage, error) {
	records := map[[8]byte]json.RawMessage{}
	_, err := m.find(kind, network, func(owner [8]byte, b json.RawMessage) bool {
		records[owner] = b
		return false
	})
	return records, err
}

// Find reports whether fn is true of any record of kind in the network. It reads records in no particular order and
// stops at the first match.
func (m Store) Find(kind, network string, fn func(owner [8]byte, b json.RawMessage) bool) (bool, error) {
	n := identity.NetworkHash(network)
	return m.find(kind, hex.EncodeToString(n[:]), fn)
}

// FindAny is Find for the records of all networks.
func (m Store) FindAny(kind string, fn func(owner [8]byte, b json.RawMessage) bool) (bool, error) {
	return m.find(kind, "", fn)
}

func (m Store) find(kind, network string, fn func(owner [8]byte, b json.RawMessage) bool) (bool, error) {
	dir, err := os.OpenFile(m.Dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, err
	}
	defer dir.Close()
	var errs []error
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			f := strings.Split(name, ".")
			if len(f) != 3 || f[0] != kind || network != "" && f[1] != network {
				continue
			}
			var h [8]byte
			if k, err := hex.Decode(h[:], []byte(f[2])); err != nil || k != len(h) {
				continue
			}
			b, err := plain(filepath.Join(m.Dir, name))
			switch {
			case err == nil && fn(h, b):
				return true, nil
			case err != nil && !errors.Is(err, fs.ErrNotExist):
				errs = append(errs, err)
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				errs = append(errs, err)
			}
			return false, errors.Join(errs...)
		}
	}
}

// Sweep deletes every record of the network for which keep returns false.
func (m Store) Sweep(network string, keep func(kind string, owner [8]byte) bool) error {
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	n := identity.NetworkHash(network)
	var errs []error
	for _, e := range entries {
		f := strings.Split(strings.TrimSuffix(e.Name(), unfinished), ".")
		if len(f) != 3 || f[1] != hex.EncodeToString(n[:]) {
			continue
		}
		var h [8]byte
		if k, err := hex.Decode(h[:], []byte(f[2])); err != nil || k != len(h) || keep(f[0], h) {
			continue
		}
		if err := os.Remove(filepath.Join(m.Dir, e.Name())); !errors.Is(err, fs.ErrNotExist) { // a DEL was faster
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
