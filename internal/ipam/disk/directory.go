package disk

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	records "github.com/fairlead-cni/fairlead/kernel/record"
	"golang.org/x/sys/unix"
)

// A directory is the directory of a network, with its lock held. Files in it are opened through its descriptor, so that
// one call uses one directory, even if the path is replaced meanwhile.
type directory struct {
	path  string
	fd    int
	lock  *os.File
	log   *slog.Logger
	rest  time.Duration // how long a released address rests
	boot  uint32
	now   clock
	wall  int64    // now, in seconds of a clock that may be set
	lasts []string // what the last_reserved_ip files say, up to the first that is missing

	x     *index
	fresh bool    // x was made from the directory by this call
	found []entry // … and these are the leases
	dirty bool    // something that x has a digest of was changed
}

// openDirectory opens and locks the directory at path. Without create, it returns nil if the directory does not exist.
func openDirectory(ctx context.Context, path string, create bool) (*directory, error) {
	for {
		d := &directory{path: path, fd: -1}
		var err error
		d.fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		switch {
		case errors.Is(err, unix.ENOENT) && !create:
			return nil, nil
		case errors.Is(err, unix.ENOENT):
			if err := os.MkdirAll(path, 0o755); err != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		gone, err := d.takeLock(ctx)
		if err == nil && !gone {
			return d, nil
		}
		d.closeFiles()
		if err != nil {
			return nil, err
		}
	}
}

// takeLock takes the same lock as the reference plugin. Gone reports that the directory was removed meanwhile, and the
// lock with it, so that the lock excludes no process.
func (d *directory) takeLock(ctx context.Context) (gone bool, err error) {
	name := filepath.Join(d.path, "lock")
	fd, err := unix.Openat(d.fd, "lock", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o750)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) { // DEL, which makes room, has one that is there
		if old, rerr := unix.Openat(d.fd, "lock", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); rerr == nil {
			fd, err = old, nil
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return true, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	lock := os.NewFile(uintptr(fd), name)
	if err := records.Flock(ctx, lock); err != nil {
		return false, err
	}
	d.lock = lock
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return st.Nlink == 0, nil
}

func (d *directory) closeFiles() {
	if d.fd >= 0 {
		unix.Close(d.fd)
	}
	d.lock.Close()
}

// close signs the index if necessary, and releases the lock.
func (d *directory) close() {
	if d.x != nil {
		if d.dirty {
			d.sign()
		}
		d.x.close()
	}
	d.closeFiles()
}

// errGarbage means that a lease file names no owner, for example after a crash.
var errGarbage = errors.New("names no owner")

// A lease is the content of a lease file.
type lease struct {
	text    string    // who holds it, without surrounding white space
	stamp   uint32    // which file it is
	written time.Time // which says nothing about its age
}

// read reads the lease file of a. Anything else with that name is an error, and is kept.
func (d *directory) read(a netip.Addr) (lease, error) {
	name := a.String()
	fail := func(op string, err error) (lease, error) {
		return lease{}, &fs.PathError{Op: op, Path: filepath.Join(d.path, name), Err: err}
	}
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fail("open", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fail("read", cmp.Or(err, errors.New("is not a regular file")))
	}
	text, b := "", [4096]byte{}
	// A container ID has no maximum but that of an environment.
	for n := len(b); n == len(b) && len(text) < 1<<20; text += string(b[:n]) {
		if n, err = unix.Read(fd, b[:]); err != nil {
			return fail("read", err)
		}
	}
	text = strings.TrimSpace(text)
	if garbage(text) {
		return fail("read", errGarbage)
	}
	return lease{text, stamp(&st), time.Unix(st.Mtim.Unix())}, nil
}

// garbage reports whether text cannot be the names of a container and an interface: it is empty, or has the zeros and
// odd bytes of a file whose content was lost.
func garbage(text string) bool {
	return text == "" || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool {
		return r < ' ' && r != '\r' && r != '\n' && r != '\t' || r == 0x7f
	})
}

// stamp distinguishes a file from other files with the same name, and from its own earlier content.
func stamp(st *unix.Stat_t) uint32 {
	b := make([]byte, 0, 32)
	for _, n := range []int64{int64(st.Ino), st.Size, int64(st.Mtim.Sec), int64(st.Mtim.Nsec)} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return number("stamp", string(b))
}

// unlink removes the lease file of a.
func (d *directory) unlink(a netip.Addr) error {
	d.dirty = true
	err := unix.Unlinkat(d.fd, a.String(), 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: filepath.Join(d.path, a.String()), Err: err}
	}
	return nil
}

// A draft is a lease file without a name.
type draft struct {
	fd    int
	tmp   string // where the file system knows no nameless files
	stamp uint32
}

// draft writes a lease file without a name. The file gets its name in one step, so that other processes never see an
// incomplete file, and a killed call leaves nothing.
func (d *directory) draft(text string) (draft, error) {
	fd, err := unix.Openat(d.fd, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EINVAL) {
		return d.namedDraft(text) // overlayfs before 6.3, NFS
	}
	if err != nil {
		return draft{}, &fs.PathError{Op: "create a file in", Path: d.path, Err: err}
	}
	return fillDraft(draft{fd: fd}, text)
}

// namedDraft writes a lease file outside the directory, because the reference plugin would read it there.
func (d *directory) namedDraft(text string) (draft, error) {
	tmp := filepath.Join(indexPath(d.path), ".draft")
	// A call that was killed may have left it as a second name of a lease.
	if err := unix.Unlink(tmp); err != nil && !errors.Is(err, unix.ENOENT) {
		return draft{}, &fs.PathError{Op: "remove", Path: tmp, Err: err}
	}
	fd, err := unix.Open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return draft{}, &fs.PathError{Op: "create", Path: tmp, Err: err}
	}
	return fillDraft(draft{fd: fd, tmp: tmp}, text)
}

func fillDraft(f draft, text string) (draft, error) {
	n, err := unix.Write(f.fd, []byte(text))
	if err == nil && n < len(text) {
		err = unix.ENOSPC
	}
	var st unix.Stat_t
	if err = cmp.Or(err, unix.Fstat(f.fd, &st)); err != nil {
		f.discard()
		return draft{}, fmt.Errorf("write a lease: %w", err)
	}
	f.stamp = stamp(&st)
	return f, nil
}

func (f draft) discard() {
	unix.Close(f.fd)
	if f.tmp != "" {
		unix.Unlink(f.tmp)
	}
}

// publish gives f the name of a. The error is fs.ErrExist if a has a file already.
func (d *directory) publish(f draft, a netip.Addr) error {
	d.dirty = true
	from := f.tmp
	if from == "" {
		from = "/proc/self/fd/" + strconv.Itoa(f.fd)
	}
	if err := unix.Linkat(unix.AT_FDCWD, from, d.fd, a.String(), unix.AT_SYMLINK_FOLLOW); err != nil {
		return &fs.PathError{Op: "create", Path: filepath.Join(d.path, a.String()), Err: err}
	}
	return nil
}

// last returns the address in last_reserved_ip.i.
func (d *directory) last(i int) netip.Addr {
	text := ""
	if i < len(d.lasts) {
		text = d.lasts[i]
	} else {
		text, _ = d.readLast(i)
	}
	a, _ := netip.ParseAddr(strings.TrimSpace(text))
	return a.Unmap()
}

func (d *directory) readLast(i int) (text string, ok bool) {
	fd, err := unix.Openat(d.fd, lastName(i), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	var b [64]byte
	n, _ := unix.Read(fd, b[:])
	return string(b[:max(n, 0)]), true
}

// readLasts reads the last_reserved_ip files up to the first missing one.
func (d *directory) readLasts() {
	d.lasts = nil
	for text, ok := d.readLast(0); ok; text, ok = d.readLast(len(d.lasts)) {
		d.lasts = append(d.lasts, text)
	}
}

// setLast writes last_reserved_ip.i. The file is not truncated first: with the mount option discard, the file system
// would report each freed block to the disk and wait.
func (d *directory) setLast(i int, a netip.Addr) error {
	d.dirty = true
	fail := func(op string, err error) error {
		return &fs.PathError{Op: op, Path: filepath.Join(d.path, lastName(i)), Err: err}
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := unix.Openat(d.fd, lastName(i), flags, 0o600)
	if err != nil {
		return fail("open", err)
	}
	defer unix.Close(fd)
	text := a.String()
	if _, err := unix.Pwrite(fd, []byte(text), 0); err != nil {
		return fail("write", err)
	}
	if i >= len(d.lasts) || len(d.lasts[i]) > len(text) {
		if err := unix.Ftruncate(fd, int64(len(text))); err != nil {
			return fail("truncate", err)
		}
	}
	if i < len(d.lasts) {
		d.lasts[i] = text
	} else {
		d.readLasts()
	}
	return nil
}

func lastName(i int) string { return "last_reserved_ip." + strconv.Itoa(i) }

// list returns the names in a directory.
func list(at int, path string) ([]string, error) {
	fd, err := unix.Openat(at, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	return f.Readdirnames(-1)
}

// listAddresses returns the names in a directory that are addresses, in order.
func listAddresses(at int, path string) ([]netip.Addr, error) {
	names, err := list(at, path)
	var addrs []netip.Addr
	for _, name := range names {
		if a, err := netip.ParseAddr(name); err == nil && a.String() == name && a.Zone() == "" && !a.Is4In6() {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs, err
}
