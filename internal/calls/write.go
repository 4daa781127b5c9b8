package calls

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Socket is the path of journald's socket.
const Socket = "/run/systemd/journal/socket"

// Write writes the line to the place in the setting.
func (s Setting) Write(l Line) error {
	if s.To == ToJournal || s.To == "" {
		if err := send(Socket, l.datagram()); err == nil || s.To != "" {
			return err
		}
	}
	return appendLine(s.Path(), s.Size/2, l.encode())
}

// Path returns the file of the lines, unless journald receives them.
func (s Setting) Path() string {
	if filepath.IsAbs(s.To) {
		return s.To
	}
	return File
}

// patience is what a journald that does not read is waited for, and lockPatience another call that writes.
const (
	patience     = 100 * time.Millisecond
	lockPatience = time.Second
)

// send sends a datagram. It makes the system calls itself, because package net would make four more.
func send(socket string, b []byte) error {
	fail := func(err error) error { return &fs.PathError{Op: "send to", Path: socket, Err: err} }
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer syscall.Close(fd)
	limit := syscall.NsecToTimeval(patience.Nanoseconds())
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &limit); err != nil {
		return fail(err)
	}
	if err := syscall.Sendto(fd, b, syscall.MSG_NOSIGNAL, &syscall.SockaddrUnix{Name: socket}); err != nil {
		return fail(err)
	}
	return nil
}

// Rotated returns the path to which the file at path is renamed when it is full.
func Rotated(path string) string { return path + ".1" }

// appendLine appends a line to the file by one write. If the file would exceed most bytes, it is first renamed to
// Rotated. The file is locked while it is written or renamed, so that no line is lost and no file grows too large. If a
// stopped process holds the lock, other calls wait for lockPatience and then append without the lock, as long as there
// is room.
func appendLine(path string, most int64, line []byte) error {
	fail := func(err error) error { return &fs.PathError{Op: "write", Path: path, Err: err} }
	if int64(len(line)) > most {
		return fail(fmt.Errorf("a line of %d bytes is too long", len(line)))
	}
	const tries = 1000 // each is another call's rotation
	for range tries {
		f, err := openLog(path)
		if err != nil {
			return fail(err)
		}
		again, err := f.append(path, most, line)
		f.close()
		if err != nil {
			return fail(err)
		}
		if !again {
			return nil
		}
	}
	return fail(errors.New("other processes fill the file faster than this one can write to it"))
}

// A logFile is the open file of the lines.
type logFile struct {
	fd      int
	waiting chan error // for the lock, which another process has; nil: it is ours
}

// append writes the line, if the file is still the one at path and has room. If the file is full, append renames it.
// Again reports that the caller must open the file again.
func (f logFile) append(path string, most int64, line []byte) (again bool, err error) {
	var own, now syscall.Stat_t
	if err := syscall.Fstat(f.fd, &own); err != nil {
		return false, err
	}
	if err := syscall.Lstat(path, &now); err != nil && !errors.Is(err, syscall.ENOENT) {
		return false, err
	} else if err != nil || now.Ino != own.Ino || now.Dev != own.Dev {
		return true, nil
	}
	full := own.Size+int64(len(line)) > most
	switch {
	case own.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return false, errors.New("is not a regular file")
	case own.Uid != uint32(os.Geteuid()) || own.Nlink != 1:
		return false, errors.New("belongs to another user, or has a second name")
	case full && f.waiting != nil:
		return false, fmt.Errorf("is full, and another process has locked it for more than %v", lockPatience)
	case full:
		return true, syscall.Rename(path, Rotated(path))
	}
	n, err := syscall.Write(f.fd, line)
	if n > 0 && n < len(line) { // the disk is full: no half a line stays
		err = errors.Join(err, syscall.ENOSPC)
		if f.waiting == nil {
			err = errors.Join(err, syscall.Ftruncate(f.fd, own.Size))
		}
	}
	return false, err
}

// close closes the file, which also releases the lock.
func (f logFile) close() {
	if f.waiting == nil {
		syscall.Close(f.fd)
		return
	}
	go func() { // until then the number is taken
		<-f.waiting
		syscall.Close(f.fd)
	}()
}

// openLog opens and locks the file. It refuses a symbolic link and does not wait for the reader of a pipe.
func openLog(path string) (f logFile, err error) {
	const flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_APPEND | syscall.O_NOFOLLOW | syscall.O_NONBLOCK |
		syscall.O_CLOEXEC
	f.fd, err = syscall.Open(path, flags, 0o600)
	if errors.Is(err, syscall.ENOENT) {
		dir := filepath.Dir(path)
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			return f, err
		}
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return f, err
		}
		f.fd, err = syscall.Open(path, flags, 0o600)
	}
	if err != nil {
		return f, err
	}
	if err = syscall.Flock(f.fd, syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		err = f.wait()
	}
	if err != nil {
		syscall.Close(f.fd)
	}
	return f, err
}

// wait waits for the lock.
func (f *logFile) wait() error {
	fd, locked := f.fd, make(chan error, 1)
	go func() { locked <- syscall.Flock(fd, syscall.LOCK_EX) }()
	timer := time.NewTimer(lockPatience)
	defer timer.Stop()
	select {
	case err := <-locked:
		return err
	case <-timer.C:
		f.waiting = locked
		return nil
	}
}
