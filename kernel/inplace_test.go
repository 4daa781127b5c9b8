package kernel_test

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// A thread that visits a namespace in place is at home again afterwards, whatever was done there, and however many
// others visit it at the same time.
func TestInPlace(t *testing.T) {
	cont, err := kernel.Open(nstest.NewNS(t))
	if err != nil {
		t.Fatal(err)
	}
	defer cont.Close()
	cont.Stranded = func(err error) { t.Error(err) }
	where := func() string {
		l, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Error(err)
		}
		return l
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, thread, failure := where(), unix.Gettid(), errors.New("failure")
	err = cont.Do(func() error {
		if where() == home || unix.Gettid() != thread {
			t.Errorf("in %s on thread %d, came from %s on %d", where(), unix.Gettid(), home, thread)
		}
		return failure
	})
	if err != failure || where() != home {
		t.Errorf("error %v, and the thread is in %s", err, where())
	}
	func() {
		defer func() {
			if recover() == nil || where() != home {
				t.Errorf("after a panic the thread is in %s", where())
			}
		}()
		cont.Do(func() error { panic(failure) })
	}()
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 50 {
				if _, err := procsys.Get(cont, "net/ipv4/ip_forward"); err != nil {
					t.Error(err)
				}
				if l := where(); l != home {
					t.Errorf("another thread is in %s", l)
				}
			}
		})
	}
	wait.Wait()
	if err := unix.Close(cont.FD); err != nil {
		t.Fatal(err)
	}
	if cont.FD = -1; cont.Do(func() error { return nil }) == nil || where() != home {
		t.Errorf("a namespace that cannot be entered was, and the thread is in %s", where())
	}
}
