package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// TestDelFaults lets each look at the namespace and at the cache fail that `fairlead del` and its plugins take: what
// cannot be read is not set aside, what cannot be told is not taken for another one, and del fails, or has done its
// work.
func TestDelFaults(t *testing.T) {
	bin, conf := program(t), t.TempDir()
	list := `{"cniVersion": "1.1.0", "name": "lan", "plugins": [{"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.1.2.0/24"}}]}`
	if err := os.WriteFile(filepath.Join(conf, "lan.conflist"), []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bridge", "host-local"} {
		if err := os.Symlink(bin, filepath.Join(conf, name)); err != nil {
			t.Fatal(err)
		}
	}
	path := nstest.NewNS(t)
	command := func(verb string) (*exec.Cmd, *bytes.Buffer) {
		cmd, said := exec.Command(bin, verb, "lan", path), new(bytes.Buffer)
		cmd.Env = append(os.Environ(), "NETCONFPATH="+conf, "CNI_PATH="+conf)
		cmd.Stdout, cmd.Stderr = said, said
		return cmd, said
	}
	must := func(verb string) {
		t.Helper()
		if cmd, said := command(verb); cmd.Run() != nil {
			t.Fatalf("%s: %s", verb, said)
		}
	}
	for n, fired := 1, true; fired; n++ {
		must("add")
		count := 0
		fired = false
		del, said := command("del")
		err := nstest.WithFaults(del, func(s nstest.Syscall) unix.Errno {
			if s.Name != "openat" || s.Path != path && !strings.HasSuffix(s.Path, "/ns/net") &&
				!strings.Contains(s.Path, "/cni/results/") {
				return 0
			}
			if count++; count != n {
				return 0
			}
			fired = true
			return unix.EMFILE
		}, "openat")
		if err != nil && said.Len() == 0 {
			t.Errorf("number %d: %v, and not a word", n, err)
		}
		if err != nil {
			must("del")
		}
		if left := strings.Contains(nstest.RunIn(t, path, "ip", "-br", "link"), "eth0"); left {
			t.Fatalf("number %d: eth0 is left, after %v %s", n, err, said)
		}
		if files, err := filepath.Glob("/var/lib/cni/results/*"); err != nil || len(files) > 0 {
			t.Fatalf("number %d: the cache has %q: %s", n, files, said)
		}
	}
}
