package nameserver

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// watcher reports which files of a directory appear and disappear.
type watcher struct {
	dir string
	f   *os.File
}

// watch starts to watch a directory, which it creates if needed.
func watch(dir string) (*watcher, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	w := &watcher{dir, os.NewFile(uintptr(fd), "inotify")}
	// A record appears whole: it is linked or renamed into its place.
	const events = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	if _, err := unix.InotifyAddWatch(fd, dir, events); err != nil {
		w.close()
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	return w, nil
}

func (w *watcher) close() { w.f.Close() }

// next waits for changes. lost reports that the kernel dropped some.
func (w *watcher) next() (changed []string, lost bool, err error) {
	var buf [64 << 10]byte
	n, err := w.f.Read(buf[:])
	if err != nil {
		return nil, false, err
	}
	for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		name := b[unix.SizeofInotifyEvent:]
		if size > len(name) {
			break
		}
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			lost = true
		case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED) != 0:
			return nil, false, fmt.Errorf("the directory of the records, %s, was removed", w.dir)
		default:
			changed = append(changed, string(bytes.TrimRight(name[:size], "\x00")))
		}
		b = name[size:]
	}
	return changed, lost, nil
}
