package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// A directory is a plugin directory, locked. Kept files are in its subdirectory .fairlead: on the same file system, so
// that a hard link keeps a file and a rename restores it, and available even if only this directory is mounted.
type directory struct {
	path string
	lock *os.File
}

// The names below .fairlead.
const (
	record   = "previous.json" // a previousFiles
	previous = "previous"      // what the last install replaced or removed
	original = "original"      // the reference's plugins, until they are back
	staged   = "new"           // the program that is being installed
)

// A previousFiles describes, together with the files in previous, the directory before the last install.
type previousFiles struct {
	Added    []string `json:"added"` // by that install
	Complete bool     `json:"complete"`
}

func (d *directory) entry(name string) string { return filepath.Join(d.path, name) }

func (d *directory) state(names ...string) string {
	return filepath.Join(append([]string{d.path, ".fairlead"}, names...)...)
}

// openExisting opens a directory, which must exist.
func openExisting(dir string) (*directory, error) {
	path, err := resolve(dir)
	if err != nil {
		return nil, err
	}
	return open(path)
}

// open locks a directory after it has checked that no other user may write to it.
func open(path string) (*directory, error) {
	if err := trusted(path); err != nil {
		return nil, err
	}
	lock, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return &directory{path, lock}, nil
}

// close removes staged files, and the subdirectory if it contains no kept files.
func (d *directory) close() {
	_ = os.RemoveAll(d.state(staged))
	_ = os.Remove(d.state())
	_ = unix.Flock(int(d.lock.Fd()), unix.LOCK_UN) // a process that is just being started may have the descriptor, too
	d.lock.Close()
}

// resolve returns dir without symbolic links. Its last elements need not exist.
func resolve(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	path, err := filepath.EvalSymlinks(dir)
	switch {
	case err == nil:
		return path, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	if _, lerr := os.Lstat(dir); lerr == nil {
		return "", err // a symbolic link to nothing
	}
	parent, err := resolve(filepath.Dir(dir))
	return filepath.Join(parent, filepath.Base(dir)), err
}

// makeDir makes a directory and its parents.
func makeDir(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	parent := filepath.Dir(path)
	if err := makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chmod(path, 0o755); err != nil { // whatever the umask
		return err
	}
	return syncDir(parent)
}

// An UnsafeError is returned for a file or directory that a user may write whose programs root should not execute.
type UnsafeError struct{ Path, Why string }

func (e *UnsafeError) Error() string { return fmt.Sprintf("%s is not safe: %s", e.Path, e.Why) }

// trusted refuses a directory that other users can change or replace, because runtimes execute its programs as root
// (CVE-2024-33522).
func trusted(path string) error {
	if os.Getuid() != os.Geteuid() || os.Getgid() != os.Getegid() {
		return &UnsafeError{os.Args[0], "it runs with the rights of its owner, who is not the caller (setuid)"}
	}
	if err := requirePrivate(path, 0); err != nil {
		return err
	}
	return ancestors(path)
}

// ancestors refuses a path if another user can rename something in one of its parents. Parents may be missing.
func ancestors(path string) error {
	for path != "/" {
		path = filepath.Dir(path)
		if err := requirePrivate(path, fs.ModeSticky); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// requirePrivate refuses a directory that users other than root and the caller may write to, unless the mode bits in
// harmless are set.
func requirePrivate(path string, harmless fs.FileMode) error {
	var root, st syscall.Stat_t
	if err := syscall.Stat("/", &root); err != nil {
		return &fs.PathError{Op: "stat", Path: "/", Err: err}
	}
	mode, err := os.Stat(path)
	if err != nil {
		return err
	}
	st = *mode.Sys().(*syscall.Stat_t)
	// In a user namespace the owner of / may have no number there, and yet it is the one who decides.
	if !slices.Contains([]uint32{0, uint32(os.Geteuid()), root.Uid}, st.Uid) {
		return &UnsafeError{path, fmt.Sprintf("it belongs to user %d", st.Uid)}
	}
	if mode.Mode()&harmless != 0 {
		return nil
	}
	_, acl := unix.Getxattr(path, "system.posix_acl_access", nil)
	own := acl != nil && slices.Contains([]uint32{0, uint32(os.Getegid()), root.Gid}, st.Gid) // no list says who else
	switch perm := mode.Mode().Perm(); {
	case perm&0o002 != 0:
		return &UnsafeError{path, fmt.Sprintf("every user may write to it (mode %04o)", perm)}
	case perm&0o020 != 0 && !own:
		return &UnsafeError{path, fmt.Sprintf("group %d may write to it (mode %04o)", st.Gid, perm)}
	}
	return nil
}

// stage copies the program onto the directory's file system.
func (d *directory) stage(program string, label []byte) (err error) {
	if err := os.RemoveAll(d.state(staged)); err != nil {
		return err
	}
	if err := os.MkdirAll(d.state(staged), 0o700); err != nil {
		return err
	}
	return copyFile(program, d.state(staged, "program"), label)
}

// copyFile makes an executable file and syncs it.
func copyFile(from, to string, label []byte) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	if err := out.Chmod(0o755); err != nil { // neither the umask's bits nor setuid
		return err
	}
	if label != nil {
		if err := unix.Fsetxattr(int(out.Fd()), selinux, label, 0); err != nil {
			return &fs.PathError{Op: "set the SELinux label of", Path: to, Err: err}
		}
	}
	return out.Sync()
}

// link makes a hard link, or a copy if the file system has no hard links.
func link(from, to string) error {
	err := os.Link(from, to)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EMLINK) {
		return copyFile(from, to, label(from))
	}
	return err
}

// place moves the staged program to the name of the entry.
func (d *directory) place(name string) error {
	next := d.state(staged, name+".next")
	if err := link(d.state(staged, "program"), next); err != nil {
		return err
	}
	return os.Rename(next, d.entry(name))
}

// last returns the description of the directory before the last install, or nil if nothing is kept.
func (d *directory) last() (*previousFiles, error) {
	b, err := os.ReadFile(d.state(record))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	last := new(previousFiles)
	if err := json.Unmarshal(b, last); err != nil {
		return nil, fmt.Errorf("%s has no record of the last install: %w; remove the file, "+
			"and there is no rollback of that install", d.state(record), err)
	}
	return last, nil
}

func (d *directory) write(last *previousFiles) error {
	b, err := json.Marshal(last)
	if err != nil {
		return err
	}
	if err := replaceFile(d.state(record), append(b, '\n')); err != nil {
		return err
	}
	return syncDir(d.state())
}

// keep makes hard links to all files that a change replaces or removes. Files that an interrupted install kept are
// still the earlier state, and stay; those of a complete install are removed. If a change only adds files, nothing is
// kept.
func (d *directory) keep(entries []Entry) error {
	last, err := d.last()
	if err != nil {
		return err
	}
	goes := slices.ContainsFunc(entries, func(e Entry) bool {
		return e.State == Updated || e.State == Replaced ||
			e.State == Removed
	})
	if last != nil && last.Complete { // the record first: without the files it would have a rollback only remove
		if err := os.Remove(d.state(record)); err != nil {
			return err
		}
		last = nil
	}
	if last == nil {
		if err := os.RemoveAll(d.state(previous)); err != nil || !goes {
			return err
		}
		last = new(previousFiles)
	}
	for _, dir := range []string{previous, original} {
		if err := os.MkdirAll(d.state(dir), 0o700); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if e.State == Added && !slices.Contains(last.Added, e.Name) && !exists(d.state(previous, e.Name)) {
			last.Added = append(last.Added, e.Name)
		}
	}
	if err := d.write(last); err != nil {
		return err
	}
	for _, e := range entries {
		if err := d.keepOne(e, last.Added); err != nil {
			return err
		}
	}
	return errors.Join(syncDir(d.state(previous)), syncDir(d.state(original)))
}

func (d *directory) keepOne(e Entry, added []string) error {
	if e.State != Updated && e.State != Replaced && e.State != Removed {
		return nil
	}
	if e.State == Replaced {
		if err := errors.Join(remove(d.state(original, e.Name)),
			link(d.entry(e.Name), d.state(original, e.Name))); err != nil {
			return err
		}
	}
	if slices.Contains(added, e.Name) || exists(d.state(previous, e.Name)) {
		return nil
	}
	return link(d.entry(e.Name), d.state(previous, e.Name))
}

// complete records that the last change is complete.
func (d *directory) complete() error {
	_ = os.Remove(d.state(original)) // fails unless it is empty
	last, err := d.last()
	if err != nil || last == nil || last.Complete {
		return err
	}
	last.Complete = true
	return d.write(last)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// syncDir syncs a directory.
func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // a file system that knows no sync of directories
		return err
	}
	return nil
}
