package attach

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Locks are flock(2) on files of LockDir, so they hold between processes and die with them. The order
// is always network, then container: ADD, DEL and CHECK share the network and own the container (clause
// R8), GC owns the network (clause R9) and then each container that it takes down.

const networkPrefix = "network-"

func (r *Runtime) lockNetwork(ctx context.Context, network string, exclusive bool) (unlock func(), err error) {
	how := syscall.LOCK_SH
	if exclusive {
		how = syscall.LOCK_EX
	}
	f, err := r.lock(ctx, networkPrefix, network, how)
	if err != nil {
		return nil, fmt.Errorf("lock network %s: %w", network, err)
	}
	return func() { f.Close() }, nil // the file stays: others may share it
}

func (r *Runtime) lockContainer(ctx context.Context, id string) (unlock func(), err error) {
	f, err := r.lock(ctx, "container-", id, syscall.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("lock container %s: %w", id, err)
	}
	return func() {
		if filepath.Dir(f.Name()) == filepath.Clean(r.lockDir()) { // not a directory in its place
			os.Remove(f.Name()) // while it is locked: see lock
		}
		f.Close()
	}, nil
}

// lock opens and locks the file for a name. The holder of a container's lock removes the file, so a file that was
// locked after a wait may no longer be the one that others open: then lock starts again.
func (r *Runtime) lock(ctx context.Context, prefix, name string, how int) (*os.File, error) {
	path := filepath.Join(r.lockDir(), prefix+fileName(name))
	for {
		f, err := r.lockFile(prefix, path)
		if err != nil {
			return nil, err
		}
		if err := r.waiting.lock(ctx, f, how); err != nil {
			return nil, err
		}
		still, err := named(f)
		if still && f.Name() == path {
			err = r.passSubstitute(ctx, prefix, how)
		} else if still {
			_, found := os.Lstat(path)
			still = errors.Is(found, fs.ErrNotExist)
		}
		if still && err == nil {
			return f, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// lockFile opens the file of a lock. A full disk must not keep DEL from making room, so if there is no room for the
// file, a directory takes its place.
func (r *Runtime) lockFile(prefix, path string) (*os.File, error) {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		var f *os.File
		if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err == nil {
			return f, nil
		}
	}
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return nil, err
	}
	return r.substitute(prefix)
}

// substitute opens the directory that takes the place of files of locks: one for all containers, and another one for
// all networks, because a call has a lock of both.
func (r *Runtime) substitute(prefix string) (*os.File, error) {
	dir := filepath.Dir(filepath.Clean(r.lockDir()))
	if prefix == networkPrefix {
		dir = r.cacheDir()
	}
	for ; ; dir = filepath.Dir(dir) {
		f, err := os.Open(dir)
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return f, err
		}
	}
}

// passSubstitute waits for a call that has locked the directory because its disk was full. Such a call looks for the
// file once it has the directory, and who has the file looks at the directory, so one of two sees the other.
func (r *Runtime) passSubstitute(ctx context.Context, prefix string, how int) error {
	if prefix != networkPrefix {
		how = syscall.LOCK_SH // calls for other containers pass it at the same time
	}
	dir, err := r.substitute(prefix)
	if errors.Is(err, fs.ErrPermission) {
		return nil // no call can lock it
	} else if err != nil {
		return err
	}
	if err := r.waiting.lock(ctx, dir, how); err != nil {
		return err
	}
	return dir.Close()
}

// named reports whether f is still the file that has its name.
func named(f *os.File) (bool, error) {
	held, err := f.Stat()
	if err != nil {
		return false, err
	}
	now, err := os.Stat(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(held, now), err
}

// tidyLocks removes the lock files of containers that no process holds: a killed process leaves its own. As for their
// holders, a file goes while it is locked.
func (r *Runtime) tidyLocks() {
	files, _ := filepath.Glob(filepath.Join(r.lockDir(), "container-*"))
	for _, path := range files {
		f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if flock(f, syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			if still, _ := named(f); still {
				os.Remove(path)
			}
		}
		f.Close()
	}
}

// A queue lets one goroutine of this process at a time wait in the kernel for the lock on a file. Go cannot interrupt
// the kernel's wait, because its signal handlers restart the call: a waiter whose context ends leaves a thread behind
// until the lock is free. The queue limits this to one thread for each file.
type queue struct {
	mu    sync.Mutex
	turns map[string]*turn
}

type turn struct {
	token chan struct{} // holds one token while a goroutine blocks
	users int
}

func (q *queue) join(path string) *turn {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.turns == nil {
		q.turns = map[string]*turn{}
	}
	t := q.turns[path]
	if t == nil {
		t = &turn{token: make(chan struct{}, 1)}
		q.turns[path] = t
	}
	t.users++
	return t
}

func (q *queue) leave(path string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turns[path].users--
	if q.turns[path].users == 0 {
		delete(q.turns, path)
	}
}

// lock locks f, or returns an error that names the holder of the lock; in that case it also closes f, maybe later.
func (q *queue) lock(ctx context.Context, f *os.File, how int) error {
	if err := flock(f, how|syscall.LOCK_NB); err == nil {
		return nil
	} else if !errors.Is(err, syscall.EWOULDBLOCK) {
		f.Close()
		return err
	}
	path := f.Name()
	t := q.join(path)
	select {
	case t.token <- struct{}{}:
	case <-ctx.Done():
		q.leave(path)
		defer f.Close()
		return fmt.Errorf("%s: %w", holder(f), context.Cause(ctx))
	}
	locked := make(chan error, 1)
	go func() {
		err := flock(f, how)
		<-t.token
		q.leave(path)
		locked <- err
	}()
	select {
	case err := <-locked:
		if err != nil {
			f.Close()
		}
		return err
	case <-ctx.Done():
		why := fmt.Errorf("%s: %w", holder(f), context.Cause(ctx))
		go func() {
			<-locked
			f.Close()
		}()
		return why
	}
}

func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if err == nil {
			return nil
		}
		if err != syscall.EINTR {
			return &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
}

// holder returns who holds the lock on f, as far as /proc/locks shows it.
func holder(f *os.File) string {
	const unknown = "held by another operation"
	info, err := f.Stat()
	if err != nil {
		return unknown
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return unknown
	}
	// The kernel hands the list out in parts. When another program's lock goes in between, the next part begins one
	// entry too late, so an entry that is missing may have been passed over.
	const looks = 5
	for range looks {
		pid, err := lockedBy(st.Ino)
		if err != nil {
			return unknown
		}
		if pid != "" {
			name, _ := os.ReadFile(filepath.Join("/proc", pid, "comm"))
			return strings.TrimSpace(fmt.Sprintf("held by process %s %s", pid, name))
		}
	}
	return unknown
}

// lockedBy returns the process that /proc/locks names as the holder of a lock on the file with an inode number, or "".
func lockedBy(inode uint64) (pid string, err error) {
	list, err := os.ReadFile("/proc/locks")
	if err != nil {
		return "", err
	}
	// 7: FLOCK  ADVISORY  WRITE 4711 00:2d:193 0 EOF
	suffix := ":" + strconv.FormatUint(inode, 10)
	for line := range strings.Lines(string(list)) {
		word := strings.Fields(line)
		if len(word) != 8 || word[1] != "FLOCK" || !strings.HasSuffix(word[5], suffix) {
			continue
		}
		if n, err := strconv.Atoi(word[4]); err == nil && n > 0 {
			return word[4], nil
		}
	}
	return "", nil
}

// fileName returns name if it can be a file name with a prefix, else its beginning and its hash, because container IDs
// and network names have no maximum length.
func fileName(name string) string {
	const most = 200
	if len(name) <= most {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:most] + "-" + hex.EncodeToString(sum[:8])
}
