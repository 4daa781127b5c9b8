package kernel

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestOpen(t *testing.T) {
	host, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	cont, err := Open(nstest.NewNS(t))
	if err != nil {
		t.Fatal(err)
	}
	defer cont.Close()
	if same, err := Same(host, cont); err != nil || same {
		t.Errorf("the host's namespace is the container's: %v", err)
	}
	if same, err := Same(host, host); err != nil || !same {
		t.Errorf("the host's namespace is not itself: %v", err)
	}
	links, err := cont.Links()
	if err != nil || len(links) == 0 {
		t.Errorf("links of a new namespace: %v, %v", links, err)
	}
	if _, err := Open("/run/netns/none"); !errors.Is(err, ErrNoNamespace) {
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
		if _, err := Open(path); !errors.Is(err, ErrNoNamespace) {
			t.Errorf("%.30s: %v", path, err)
		}
	}
	// A FIFO without a writer must not be waited for.
	for _, path := range []string{dir + "/file", dir, "/proc/self/ns/mnt", dir + "/fifo", dir + "/socket"} {
		if _, err := Open(path); !errors.Is(err, ErrNotNamespace) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestTag(t *testing.T) {
	o := spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}
	n, h, text, ok := ParseTag(Tag(o))
	if !ok || n != NetworkHash("net") || h != OwnerHash(o) || text != "net/c1/eth0" {
		t.Errorf("tag %q came back as %x %x %q %v", Tag(o), n, h, text, ok)
	}
	if OwnerHash(spec.Owner{Network: "a", ContainerID: "bc"}) == OwnerHash(spec.Owner{Network: "ab", ContainerID: "c"}) {
		t.Error("two owners with one concatenation share a hash")
	}
	if name := LinkName("veth", o); len(name) != 15 {
		t.Errorf("link name %q has %d bytes", name, len(name))
	}
}
