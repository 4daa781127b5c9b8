package conformance

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/command/cli"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
)

var update = flag.Bool("update", false, "write the tables of testdata and docs/conformance.md anew")

// The test binary is the suite's workers, the models and their broken ones, and Fairlead's plugins and command, too.
func TestMain(m *testing.M) {
	Work()
	name := filepath.Base(os.Args[0])
	if kind, fault, _ := strings.Cut(name, "-"); kind == "runtime" {
		os.Exit(runModelRuntime(strings.Replace(fault, ".", "/", 1), os.Args[1:]))
	}
	if name == "fairlead" {
		os.Exit(cli.Main(os.Args[1:], "test", os.Stdin, os.Stdout, os.Stderr))
	}
	if !strings.HasSuffix(name, ".test") { // also without CNI_COMMAND: a model that ran the tests would call itself for ever
		if kind, fault, ok := modelKind(name); ok {
			os.Exit(runModel(kind, fault))
		}
		os.Exit(sdk.Serve(plugin.All(), name, "test"))
	}
	os.Exit(m.Run())
}

func testContext() context.Context { return context.Background() }

// programs returns the paths of links to the test binary, by which it is called as other programs.
func programs(t *testing.T, names ...string) (paths []string) {
	t.Helper()
	dir := t.TempDir()
	exe, err := os.Executable()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err == nil {
			err = os.Symlink(exe, path)
		}
		paths = append(paths, path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
