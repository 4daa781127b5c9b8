package dist

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// TestReproducible builds the programs from two directories, and compares the bytes. The other architectures of a release
// are compared by packaging/release.sh when one is made.
func TestReproducible(t *testing.T) {
	t.Parallel()
	here := build(t)
	elsewhere := filepath.Join(t.TempDir(), "another directory")
	copyTree(t, elsewhere)
	for _, arch := range []string{runtime.GOARCH, "arm64"} {
		t.Run(arch, func(t *testing.T) {
			first := here
			if arch != runtime.GOARCH {
				first = filepath.Join(t.TempDir(), "bin")
				buildFor(t, arch, "../..", first, "HERE="+here+"/fairlead")
			}
			second := filepath.Join(t.TempDir(), "bin")
			buildFor(t, arch, elsewhere, second, "HERE="+here+"/fairlead")
			run(t, "diff", "-r", first, second)
		})
	}
}

// copyTree copies the files of this tree that git knows, or would.
func copyTree(t *testing.T, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, "sh", "-euc", `cd ../..
		git ls-files -z --cached --others --exclude-standard | xargs -0 ls -d 2>/dev/null | tar -cT - | tar -xC "$0"`, to)
}
