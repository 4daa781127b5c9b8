package calls

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// A Position says how far a file has been read. The zero value is its beginning.
type Position struct {
	Inode  uint64 `json:"inode,omitempty"`
	Head   string `json:"head,omitempty"` // how the file begins: an inode comes back as another file's
	Offset int64  `json:"offset,omitempty"`
}

const headLength = 64

// Since calls each with every line after a position in the file at path, or in the file that it was before it was
// renamed. It returns the position after the last line. Invalid lines are skipped.
func Since(path string, from Position, each func(Line)) (Position, error) {
	now, old, err := openBoth(path)
	if err != nil {
		return from, err
	}
	defer now.Close()
	defer old.Close()
	at := from
	if old != nil && !from.in(now) {
		p, err := read(old, from, each)
		if err != nil {
			return from, err
		}
		at = p
	}
	if now != nil {
		return read(now, from, each)
	}
	return at, nil
}

// openBoth opens the file and its predecessor; a file that does not exist is nil.
func openBoth(path string) (now, old *os.File, err error) {
	for range 100 { // rotations meanwhile
		if now, err = open(path); err != nil {
			return nil, nil, err
		}
		if old, err = open(Rotated(path)); err != nil {
			now.Close()
			return nil, nil, err
		}
		if now == nil || old == nil || inode(now) != inode(old) {
			return now, old, nil
		}
		now.Close()
		old.Close()
	}
	return nil, nil, fmt.Errorf("%s is renamed faster than it can be read", path)
}

func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return f, nil
}

func inode(f *os.File) uint64 {
	st, err := f.Stat()
	if err != nil {
		return 0
	}
	sys, _ := st.Sys().(*syscall.Stat_t)
	return sys.Ino
}

// in reports whether the position belongs to this file.
func (p Position) in(f *os.File) bool {
	if f == nil || p.Inode != inode(f) {
		return false
	}
	head := make([]byte, len(p.Head))
	_, err := f.ReadAt(head, 0)
	return err == nil && string(head) == p.Head
}

// read calls each with the lines of a file after from, or with all lines if from is not a position in this file.
func read(f *os.File, from Position, each func(Line)) (Position, error) {
	at := Position{Inode: inode(f)}
	if from.in(f) {
		at = from
	}
	if _, err := f.Seek(at.Offset, io.SeekStart); err != nil {
		return at, err
	}
	for r := bufio.NewReaderSize(f, maxLine); ; {
		text, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // what has no end yet will have it the next time
			return at, nil
		}
		if err != nil {
			return at, err
		}
		if at.Offset == 0 {
			at.Head = string(text[:min(len(text), headLength)])
		}
		at.Offset += int64(len(text))
		var l Line
		if json.Unmarshal(bytes.TrimSpace(text), &l) == nil && l.Verb != "" {
			each(l)
		}
	}
}

// Watch calls changed once, and again whenever the file at path may have grown or been renamed, until ctx ends.
func Watch(ctx context.Context, path string, changed func() error) error {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	dir := filepath.Dir(path)
	if _, err := syscall.InotifyAddWatch(fd, dir, syscall.IN_MODIFY|syscall.IN_CREATE|syscall.IN_MOVED_TO); err != nil {
		return &fs.PathError{Op: "watch", Path: dir, Err: err}
	}
	defer context.AfterFunc(ctx, func() { f.Close() })()
	for buf := make([]byte, 4096); ; {
		if err := changed(); err != nil {
			return err
		}
		if _, err := f.Read(buf); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}
