// Package plainfile reads files that have to be regular and small: everything else could block, or fill the memory.
package plainfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// MaxSize limits the size of a configuration or state file in bytes. Typical files have some thousand bytes, and the
// largest have a few bytes for each of many thousand addresses.
const MaxSize = 16 << 20

// ErrNotPlain is wrapped by the error for a path that leads to a pipe, a device, a symbolic link or a directory, or to
// a file larger than allowed.
var ErrNotPlain = errors.New("no plain file")

// Read reads a regular file of at most the given number of bytes. It refuses everything else: opening a pipe would
// block forever, opening a device may start it, a symbolic link may lead to either, and a huge file costs time and
// memory.
func Read(path string, most int64) ([]byte, error) {
	return read(path, most, os.Lstat, syscall.O_NOFOLLOW)
}

// ReadLinked is like Read but follows symbolic links. It is for files that people may have moved and linked:
// configurations, and files that the command line names.
func ReadLinked(path string, most int64) ([]byte, error) { return read(path, most, os.Stat, 0) }

func read(path string, most int64, stat func(string) (os.FileInfo, error), flags int) ([]byte, error) {
	fail := func(format string, args ...any) ([]byte, error) {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf(format, args...)}
	}
	st, err := stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return fail("it is %w but %s", ErrNotPlain, typeOf(st.Mode()))
	}
	f, err := openAnyway(path, syscall.O_RDONLY|syscall.O_NOCTTY|flags)
	if errors.Is(err, syscall.ELOOP) {
		return fail("it is %w but %s", ErrNotPlain, typeOf(fs.ModeSymlink))
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err = f.Stat(); err != nil { // it may be another one by now
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return fail("it is %w but %s", ErrNotPlain, typeOf(st.Mode()))
	}
	var b bytes.Buffer
	if st.Size() <= most {
		b.Grow(int(st.Size()) + bytes.MinRead)
		if _, err := b.ReadFrom(io.LimitReader(f, most+1)); err != nil {
			return nil, err
		}
	}
	if st.Size() > most || int64(b.Len()) > most {
		return fail("it is %w of ours: it has more than %d bytes", ErrNotPlain, most)
	}
	return b.Bytes(), nil
}

// openAnyway opens a file of any type without waiting. It does not use os.OpenFile, which would start the runtime's
// poller: that takes a plugin longer than to read the file.
func openAnyway(path string, flags int) (*os.File, error) {
	for {
		fd, err := syscall.Open(path, flags|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
		if err == syscall.EINTR {
			continue
		}
		if err == nil {
			err = syscall.SetNonblock(fd, false)
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

func typeOf(m fs.FileMode) string {
	switch m.Type() {
	case fs.ModeDir:
		return "a directory"
	case fs.ModeSymlink:
		return "a symbolic link"
	case fs.ModeNamedPipe:
		return "a named pipe"
	case fs.ModeSocket:
		return "a socket"
	}
	return "a device"
}
