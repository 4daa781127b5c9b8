package kernel_test

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestOpen(t *testing.T) {
	host, err := kernel.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	cont, err := kernel.Open(nstest.NewNS(t))
	if err != nil {
		t.Fatal(err)
	}
	defer cont.Close()
	if same, err := kernel.Same(host, cont); err != nil || same {
		t.Errorf("the host's namespace is the container's: %v", err)
	}
	if same, err := kernel.Same(host, host); err != nil || !same {
		t.Errorf("the host's namespace is not itself: %v", err)
	}
	links, err := rtnl.Links(cont)
	if err != nil || len(links) == 0 {
		t.Errorf("links of a new namespace: %v, %v", links, err)
	}
	if _, err := kernel.Open("/run/netns/none"); !errors.Is(err, kernel.ErrNoNamespace) {
		t.Errorf("missing path: %v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Mkfifo(dir+"/fifo", 0o644), os.Symlink("loop", dir+"/loop")); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, path := range []string{dir + "/loop", dir + "/" + strings.Repeat("x", 300), strings.Repeat("/run", 2000)} {
		if _, err := kernel.Open(path); !errors.Is(err, kernel.ErrNoNamespace) {
			t.Errorf("%.30s: %v", path, err)
		}
	}
	// A FIFO without a writer must not be waited for.
	for _, path := range []string{dir + "/file", dir, "/proc/self/ns/mnt", dir + "/fifo", dir + "/socket"} {
		if _, err := kernel.Open(path); !errors.Is(err, kernel.ErrNotNamespace) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
