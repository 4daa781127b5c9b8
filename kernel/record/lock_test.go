package record

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A call that is told to end while it waits for a lock ends.
func TestLockGivesUp(t *testing.T) {
	unlock, err := Lock(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error)
	go func() {
		_, err := Lock(ctx, "test")
		waited <- err
	}()
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Errorf("lock: %v", err)
	}
	unlock()
	again, err := Lock(t.Context(), "test") // who gave up does not have it
	if err != nil {
		t.Fatal(err)
	}
	again()
}

// A lock that nobody gives back, as that of a process that was stopped, is not waited for without end.
func TestLockBound(t *testing.T) {
	unlock, err := Lock(t.Context(), "bound")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := LockWithin(t.Context(), 10*time.Millisecond, "bound", unix.LOCK_EX); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("lock: %v", err)
	}
}

// TestShare: many share a lock, which nobody has alone meanwhile.
func TestShare(t *testing.T) {
	var unlock [2]func()
	for i := range unlock {
		var err error
		if unlock[i], err = Share(t.Context(), "shared"); err != nil {
			t.Fatal(err)
		}
	}
	unlock[0]()
	if _, err := LockWithin(t.Context(), 10*time.Millisecond, "shared", unix.LOCK_EX); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("lock of what is shared: %v", err)
	}
	unlock[1]()
	alone, err := Lock(t.Context(), "shared")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockWithin(t.Context(), 10*time.Millisecond, "shared", unix.LOCK_SH); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("share of what is locked: %v", err)
	}
	alone()
}

// Where a lock's file cannot be made for want of room, the lock is taken all the same, and keeps others out.
//
// clause: P12
func TestLockOnFullDisk(t *testing.T) {
	for _, dir := range []string{"", "/a/b"} {
		full := t.TempDir()
		if err := unix.Mount("full", full, "tmpfs", 0, "nr_inodes=1"); err != nil {
			t.Skip("mount:", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(full, unix.MNT_DETACH) })
		if err := os.WriteFile(full+"/x", nil, 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("it is not full: %v", err)
		}
		f, err := lockFile(full + dir + "/x.lock")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		other, err := lockFile(full + dir + "/x.lock")
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Error(err)
		}
		if err := unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("two have it: %v", err)
		}
	}
}
