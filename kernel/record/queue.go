package record

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Held lock is one that others pass by while its holder is stopped. Then it is lost.
type Held struct{ f *os.File }

// Release gives the lock back.
func (h *Held) Release() { h.f.Close() }

// Lost reports whether another process has passed this one by, because it was stopped. What it has read under the lock
// counts no more.
func (h *Held) Lost() bool {
	var st unix.Stat_t
	return unix.Fstat(int(h.f.Fd()), &st) != nil || st.Nlink == 0
}

// ErrUnseen means that the process that holds a lock cannot be seen, for instance from another PID namespace.
var ErrUnseen = errors.New("the process that holds the lock cannot be seen")

// errStopped means that all processes that hold a lock have been stopped for a while.
type errStopped struct{ pids []string }

func (e errStopped) Error() string {
	return "it is held by a stopped process, " + strings.Join(e.pids, ", ")
}

// Queue takes the exclusive lock of that name below RunDir, after those who came before. It passes a holder by that has
// been stopped for a while: it removes the lock's file, so that all take another one. A process that is passed by
// learns that by Lost. Queue waits no longer than bound for one holder, so a queue that goes on is waited for. It waits
// for a holder that cannot be seen only if unseen is true; else the error is ErrUnseen.
func Queue(ctx context.Context, bound time.Duration, name string, unseen bool) (*Held, error) {
	path := filepath.Join(RunDir, name+".lock")
	for {
		f, err := lockFile(path)
		if err != nil {
			return nil, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			f.Close()
			return nil, fmt.Errorf("stat %s: %w", path, err)
		}
		var stopped errStopped
		watch := &watch{path: f.Name(), file: st, unseen: unseen, bound: bound, since: time.Now()}
		err = flock(ctx, unbounded, f, unix.LOCK_EX, watch.look)
		switch {
		case errors.As(err, &stopped) && f.Name() == path:
			if passBy(ctx, path, st) {
				slog.Warn("passing by a stopped process that holds a lock", "lock", path, "pid", stopped.pids)
			}
			continue
		case err != nil:
			return nil, err
		}
		if h := (&Held{f}); !h.Lost() {
			return h, nil
		}
		f.Close()
	}
}

// Flock takes the exclusive lock of an open file, or closes it. It waits until ctx ends, and no longer than lockBound
// for one holder, whom the error names. A holder that was stopped is not passed by: it goes on later with what it has
// read.
func Flock(ctx context.Context, f *os.File) error { return flockWithin(ctx, lockBound, f) }

func flockWithin(ctx context.Context, bound time.Duration, f *os.File) error {
	w := &watch{path: f.Name(), unseen: true, bound: bound, since: time.Now()}
	var stopped errStopped
	return flock(ctx, unbounded, f, unix.LOCK_EX, func() error {
		if err := unix.Fstat(int(f.Fd()), &w.file); err != nil { // here, because as a rule the lock is free
			return err
		}
		err := w.look()
		switch {
		case err == nil:
			stopped.pids = nil
		case errors.As(err, &stopped):
			return nil
		case stopped.pids != nil:
			return fmt.Errorf("%w; %w: `kill -CONT %s` lets it go on", err, stopped, strings.Join(stopped.pids, " "))
		}
		return err
	})
}

// passBy removes the file of a lock, if it is still that one, and reports whether it has. Only one at a time does so:
// another one may have made a new file meanwhile.
func passBy(ctx context.Context, path string, was unix.Stat_t) (removed bool) {
	dir, err := os.OpenFile(filepath.Dir(path), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil || flock(ctx, time.Second, dir, unix.LOCK_EX, nil) != nil {
		return false
	}
	defer dir.Close()
	var now unix.Stat_t
	same := unix.Lstat(path, &now) == nil && now.Dev == was.Dev && now.Ino == was.Ino
	return same && unix.Unlink(path) == nil
}
