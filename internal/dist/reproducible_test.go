package dist

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReproducible builds the programs for each architecture of a release twice, from two directories, and compares the
// bytes. TestRelease does so for the other files, which are made of them.
func TestReproducible(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	archs := regexp.MustCompile(`(?m)^ARCHS +\?= (.+)$`).FindStringSubmatch(string(makefile))
	if archs == nil {
		t.Fatal("Makefile: no ARCHS")
	}
	here := filepath.Join(build(t), "fairlead")
	elsewhere := filepath.Join(t.TempDir(), "another directory")
	copyTree(t, elsewhere)
	for _, arch := range strings.Fields(archs[1]) {
		t.Run(arch, func(t *testing.T) {
			var bins []string
			for _, tree := range []string{"../..", elsewhere} {
				bin := filepath.Join(t.TempDir(), "bin")
				run(t, "env", "GOFLAGS=-buildvcs=false", "GOARCH="+arch, "GOARM=7", "make", "-s", "-C", tree, "build", "BIN="+bin, "HERE="+here,
					"VERSION=v0.0.1")
				bins = append(bins, bin)
			}
			run(t, "diff", "-r", bins[0], bins[1])
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
