package sdktest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/tap"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/sdk"
)

// Main is for TestMain. It runs each test of the package in a throw-away host of its own: new network and mount
// namespaces, with empty /run, /var/lib/cni, /etc/cni and /opt/cni. Nothing of the machine is touched; it takes root,
// or user namespaces. The test binary is the plugins, too: called by the name of one of all, it answers as that one.
//
// The plugins of Fairlead, for lists that begin with one of them, are plugin.All.
func Main(m *testing.M, all ...sdk.Plugin) {
	if os.Getenv("CNI_COMMAND") != "" || os.Getenv(tap.LabelledVar) != "" {
		os.Exit(sdk.Serve(all, filepath.Base(os.Args[0]), "test"))
	}
	nstest.Main(m)
}

// NewNetns makes a network namespace for a container and returns its path. It is removed when the test ends.
func NewNetns(t testing.TB) string {
	t.Helper()
	return nstest.NewNS(t)
}

// Run executes a command in the network namespace at netns, or on the test's host if netns is empty, and returns its
// output. The test fails if the command does.
func Run(t testing.TB, netns, name string, args ...string) string {
	t.Helper()
	return nstest.RunIn(t, netns, name, args...)
}

// NewWorld returns a host and a container for the test of a resource, each an empty network namespace with lo up. They
// are closed when the test ends.
func NewWorld(t testing.TB) *kernel.World {
	t.Helper()
	return contract.NewWorld(t)
}

// Plugins returns a directory with the named plugins, which are links to the test binary, see Main.
func Plugins(t testing.TB, types ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	exe, err := os.Executable()
	for _, typ := range types {
		if err == nil {
			err = os.Symlink(exe, filepath.Join(dir, typ))
		}
		if os.IsExist(err) {
			err = nil
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
