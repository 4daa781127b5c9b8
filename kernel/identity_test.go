package kernel

import (
	"errors"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// Without a file descriptor left, nobody knows which namespace is which: that is an error, and never another namespace,
// or none.
func TestCookieUnanswered(t *testing.T) {
	path := nstest.NewNS(t)
	ns, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	id, err := ns.Identity()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	other, err := Open(nstest.NewNS(t))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	withoutFiles(t, func() {
		if same, err := again.Is(id); same || !errors.Is(err, unix.EMFILE) {
			t.Errorf("a namespace that cannot be asked is itself: %v, %v", same, err)
		}
		if got, err := again.Identity(); !errors.Is(err, unix.EMFILE) {
			t.Errorf("its identity is %+v, %v", got, err)
		}
		if same, err := other.Is(id); same || err != nil {
			t.Errorf("another inode leaves nothing open: %v, %v", same, err)
		}
		if ns, err := Reopen(path, id); ns != nil || !errors.Is(err, unix.EMFILE) {
			t.Errorf("opened again it is %v, %v", ns, err)
		}
	})
	if same, err := again.Is(id); !same || err != nil {
		t.Errorf("it is not itself: %v, %v", same, err)
	}
	if same, err := again.Is(Identity{id.Dev, id.Ino, 0}); !same || err != nil {
		t.Errorf("what an older kernel told of it is not it: %v, %v", same, err)
	}
	if same, err := again.Is(Identity{id.Dev, id.Ino, id.Cookie + 1}); same || err != nil {
		t.Errorf("it is the one that had its inode before: %v, %v", same, err)
	}
	if ns, err := Reopen("/run/netns/none", id); ns != nil || err != nil {
		t.Errorf("no namespace: %v, %v", ns, err)
	}
}

// withoutFiles runs fn while this process cannot open a file.
func withoutFiles(t *testing.T, fn func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
	}()
	fn()
}
