package kernel

import (
	"os"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestFirstThread enters namespaces until the process's first thread must have been asked to, and that one is in none:
// it would never leave it.
func TestFirstThread(t *testing.T) {
	own, err := os.Readlink("/proc/self/ns/net") // of the first thread
	if err != nil {
		t.Fatal(err)
	}
	path := nstest.NewNS(t)
	for n := range 500 {
		ns, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		err = ns.Do(func() error { return nil })
		ns.Close()
		if err != nil {
			t.Fatal(err)
		}
		if now, err := os.Readlink("/proc/self/ns/net"); err != nil || now != own {
			t.Fatalf("after %d namespaces the first thread is in %s, not in %s: %v", n+1, now, own, err)
		}
	}
}
