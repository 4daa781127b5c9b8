package conformance

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
)

// The test binary is the suite's workers, Fairlead's plugins and the broken ones, too.
func TestMain(m *testing.M) {
	Work()
	name := filepath.Base(os.Args[0])
	if os.Getenv("CNI_COMMAND") != "" {
		os.Exit(sdk.Serve(plugin.All(), name, "test"))
	}
	os.Exit(m.Run())
}

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
