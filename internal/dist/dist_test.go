package dist

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// built is what `make build` makes of this tree, once for all tests.
var built struct {
	sync.Mutex
	dir string // of this run
	bin string
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "dist")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	built.dir = dir
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// build is the directory of what `make build` makes. Tests only read it.
func build(t *testing.T) (bin string) {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.bin == "" {
		bin := filepath.Join(built.dir, "bin")
		buildFor(t, runtime.GOARCH, "../..", bin)
		built.bin = bin
	}
	return built.bin
}

// buildFor runs make build for an architecture in a tree, into bin. What git says of the tree is left out: a copy of the tree
// has no history.
func buildFor(t *testing.T, arch, tree, bin string, args ...string) {
	t.Helper()
	run(t, "env", append([]string{"GOFLAGS=-buildvcs=false", "GOARCH=" + arch, "make", "-s", "-C", tree, "build", "BIN=" + bin,
		"VERSION=v0-test"}, args...)...)
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(),
		func(e string) bool { return strings.HasPrefix(e, "MAKE") || strings.HasPrefix(e, "MFLAGS") })
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// speaks fails unless the file at path is a plugin that answers VERSION.
func speaks(t *testing.T, path string) {
	t.Helper()
	cmd := exec.Command(path)
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "supportedVersions") {
		t.Errorf("%s: VERSION answers %q, %v", path, out, err)
	}
}

// clause: V1
func TestEntries(t *testing.T) {
	t.Parallel()
	bin := build(t)
	names := strings.Fields(run(t, filepath.Join(bin, "fairlead"), "plugins"))
	var entries []string
	list, err := os.ReadDir(filepath.Join(bin, "cni"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		entries = append(entries, e.Name())
	}
	slices.Sort(names)
	if first, err := os.ReadDir(bin); err != nil || len(first) != 3 {
		t.Errorf("bin has %v beside cni, fairlead and fairlead-conformance: %v", first, err)
	}
	if len(names) == 0 || !slices.Equal(names, entries) {
		t.Fatalf("bin/cni has %q, the program is %q", entries, names)
	}

	for _, way := range []struct {
		name string
		copy func(t *testing.T, to string)
	}{
		{"as they are", func(t *testing.T, to string) { run(t, "cp", "-r", filepath.Join(bin, "cni")+"/.", to) }},
		{"cp -L", func(t *testing.T, to string) { run(t, "cp", "-rL", filepath.Join(bin, "cni")+"/.", to) }},
		{"tar", func(t *testing.T, to string) {
			archive := filepath.Join(t.TempDir(), "cni.tar")
			run(t, "tar", "-cf", archive, "-C", filepath.Join(bin, "cni"), ".")
			run(t, "tar", "-xf", archive, "-C", to)
		}},
		{"one by one", func(t *testing.T, to string) {
			for _, name := range names {
				run(t, "install", "-m", "0755", filepath.Join(bin, "cni", name), to)
			}
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			to := t.TempDir()
			way.copy(t, to)
			for _, name := range names {
				speaks(t, filepath.Join(to, name))
			}
		})
	}
	t.Run("a single one", func(t *testing.T) {
		to := t.TempDir()
		run(t, "cp", "-P", filepath.Join(bin, "cni", names[0]), to)
		speaks(t, filepath.Join(to, names[0]))
	})
}

// The programs run wherever the kernel does, and say which version they are.
func TestPrograms(t *testing.T) {
	t.Parallel()
	bin := build(t)
	if out := run(t, filepath.Join(bin, "fairlead"), "--version"); !strings.Contains(out, "v0-test") {
		t.Errorf("fairlead --version says %q", out)
	}
	if out := run(t, filepath.Join(bin, "fairlead"), "version"); !strings.Contains(out, "v0-test, CNI 0.1.0") ||
		!strings.Contains(out, "built with go1.") {
		t.Errorf("fairlead version says %q", out)
	}
	if out := run(t, filepath.Join(bin, "cni/bridge")); !strings.Contains(out, "v0-test") {
		t.Errorf("bridge says %q", out)
	}
	for _, name := range []string{"fairlead", "cni/bridge"} {
		f, err := elf.Open(filepath.Join(bin, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				t.Errorf("%s is not static", name)
			}
		}
		f.Close()
	}
}
