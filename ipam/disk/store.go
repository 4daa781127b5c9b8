package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A page of an index.
type page [pageSize]byte

// A store is where an index's pages are. What lies past the end reads as zeros.
type store interface {
	// read returns page n, which is buf or not to be kept.
	read(n uint32, buf *page) (*page, error)
	write(off int64, b []byte) error
	close()
}

// A file is a store on disk. It is a bare descriptor: os.File would ask the poller to watch it.
type file int

func openFile(path string) (file, int64, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, 0, err
	}
	return file(fd), st.Size, nil
}

func (f file) read(n uint32, buf *page) (*page, error) {
	got, err := unix.Pread(int(f), buf[:], int64(n)*pageSize)
	if err != nil {
		got = 0
		err = fmt.Errorf("read the index: %w", err)
	}
	clear(buf[got:])
	return buf, err
}

func (f file) write(off int64, b []byte) error {
	n, err := unix.Pwrite(int(f), b, off)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	return nil
}

func (f file) close() { unix.Close(int(f)) }

// A memory is a store that is not on disk yet.
type memory struct{ b []byte }

func (m *memory) read(n uint32, buf *page) (*page, error) {
	if off := int(n) * pageSize; off+pageSize <= len(m.b) {
		return (*page)(m.b[off:]), nil
	}
	clear(buf[:])
	return buf, nil
}

func (m *memory) write(off int64, b []byte) error {
	if end := (int(off) + len(b) + pageSize - 1) / pageSize * pageSize; end > len(m.b) {
		m.b = append(m.b, make([]byte, end-len(m.b))...)
	}
	copy(m.b[off:], b)
	return nil
}

func (m *memory) close() {}

// openTemp makes an empty file for what is to go to the index at path, or into its network's directory. It
// is never one that was there: a call that was killed may have left it as a second name of a lease.
func openTemp(path string) (fd int, tmp string, err error) {
	tmp = filepath.Join(filepath.Dir(path), ".new", filepath.Base(path))
	if err := os.MkdirAll(filepath.Dir(tmp), 0o700); err != nil {
		return -1, tmp, err
	}
	if err := unix.Unlink(tmp); err != nil && !errors.Is(err, unix.ENOENT) {
		return -1, tmp, &os.PathError{Op: "remove", Path: tmp, Err: err}
	}
	if fd, err = unix.Open(tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600); err != nil {
		return -1, tmp, &os.PathError{Op: "create", Path: tmp, Err: err}
	}
	return fd, tmp, nil
}

// save writes m beside path and renames it into place, so that a killed call leaves the old index or the
// new one. Pages of zeros become holes.
func (m *memory) save(path string, pages uint32) (file, error) {
	fd, tmp, err := openTemp(path)
	if err != nil {
		return -1, err
	}
	f := file(fd)
	err = unix.Ftruncate(fd, int64(pages)*pageSize)
	for from := 0; from < len(m.b) && err == nil; {
		to := from
		for to < len(m.b) && !blank(m.b[to:to+pageSize]) {
			to += pageSize
		}
		if to > from {
			err = f.write(int64(from), m.b[from:to])
			from = to
			continue
		}
		from += pageSize
	}
	if err == nil {
		err = unix.Rename(tmp, path)
	}
	if err != nil {
		f.close()
		return -1, fmt.Errorf("write %s: %w", path, errors.Join(err, unix.Unlink(tmp)))
	}
	return f, nil
}

func blank(p []byte) bool {
	for _, c := range p {
		if c != 0 {
			return false
		}
	}
	return true
}
