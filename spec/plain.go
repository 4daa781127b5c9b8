package spec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// MaxFile is how many bytes a configuration or a file of somebody's state may have. Those that are written have some
// thousand, and the largest a few for each of many thousand addresses.
const MaxFile = 16 << 20

// ErrNotPlain: what has a file's name is a pipe, a device, a link or a directory, or is larger than any such file.
var ErrNotPlain = errors.New("no plain file")

// ReadPlain reads a file that is one, of most bytes. A pipe that has the name of a file of state would hang who opens
// it for ever, a device may begin to work, a symbolic link may lead to one, and a huge file costs time and memory.
func ReadPlain(path string, most int64) ([]byte, error) {
	return readPlain(path, most, os.Lstat, syscall.O_NOFOLLOW)
}

// ReadLinked is ReadPlain for what a person may have put somewhere else, and a symbolic link in its place: a
// configuration, or what the command line names.
func ReadLinked(path string, most int64) ([]byte, error) { return readPlain(path, most, os.Stat, 0) }

func readPlain(path string, most int64, stat func(string) (os.FileInfo, error), flags int) ([]byte, error) {
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

// openAnyway opens what has the name, a pipe too, without waiting. It is not os.OpenFile, which would set the runtime's
// poller up for it: that takes a plugin's call longer than to read the file.
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
