package record

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockBound is how long a call waits for a lock: as long as its holder may wait for a program that hangs, and
// some. A process that was stopped keeps its locks, and who waits for ever says nothing.
const lockBound = 45 * time.Second

// unbounded is the bound of a wait that something else ends.
const unbounded = 365 * 24 * time.Hour

// Lock takes the exclusive lock of that name below RunDir and returns the function that releases it. The kernel also
// releases the lock when the process ends. Lock waits until ctx ends, and no longer than lockBound.
func Lock(ctx context.Context, name string) (unlock func(), err error) {
	return LockWithin(ctx, lockBound, name, unix.LOCK_EX)
}

// Share takes the lock of that name shared. Many callers can share it; it excludes only callers of Lock.
func Share(ctx context.Context, name string) (unlock func(), err error) {
	return LockWithin(ctx, lockBound, name, unix.LOCK_SH)
}

// LockWithin takes a lock in the mode how, as in flock(2), and waits no longer than bound.
func LockWithin(ctx context.Context, bound time.Duration, name string, how int) (unlock func(), err error) {
	f, err := lockFile(filepath.Join(RunDir, name+".lock"))
	if err != nil {
		return nil, err
	}
	if err := flock(ctx, bound, f, how, nil); err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// flock locks an open file, or closes it. As a rule the lock is free, and there is no bound to be set up. While it
// waits, it calls look twice a second, if there is one, and gives up with its error.
func flock(ctx context.Context, bound time.Duration, f *os.File, how int, look func() error) error {
	err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		if ctx.Err() != nil {
			f.Close()
			return fmt.Errorf("wait for the lock %s: %w", f.Name(), ctx.Err())
		}
		got := make(chan error, 1)
		go func() {
			err := unix.Flock(int(f.Fd()), how)
			for errors.Is(err, unix.EINTR) {
				err = unix.Flock(int(f.Fd()), how)
			}
			got <- err
		}()
		if err := await(ctx, got, look); err != nil {
			go func() { // the caller waits no more
				<-got
				f.Close()
			}()
			return fmt.Errorf("wait for the lock %s: %w", f.Name(), err)
		}
		err = <-got
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

// await waits until got has something, which it leaves there. The error says why it has not waited longer.
func await(ctx context.Context, got chan error, look func() error) error {
	var tick <-chan time.Time
	if look != nil {
		ticker := time.NewTicker(time.Second / 2)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case err := <-got:
			got <- err
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-tick:
			if err := look(); err != nil {
				return err
			}
		}
	}
}

// lockFile opens the file of a lock. Where there is no room to make it, or the file system is read-only, its directory
// is locked in its stead, or the nearest one above it: a full disk must not keep DEL from making room.
func lockFile(path string) (*os.File, error) {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		var fd int // not by os.OpenFile, see create
		if fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600); err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		err = &fs.PathError{Op: "open", Path: path, Err: err}
	}
	unmade := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS)
	for dir := filepath.Dir(path); unmade; dir = filepath.Dir(dir) {
		if f, derr := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0); derr == nil {
			return f, nil
		} else if dir == "/" || !errors.Is(derr, fs.ErrNotExist) {
			break
		}
	}
	return nil, err
}
