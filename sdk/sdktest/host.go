package sdktest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/tap"
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

// NewNetns makes a network namespace, as a container has it, until the test ends, and returns its path.
func NewNetns(t testing.TB) string {
	t.Helper()
	return nstest.NewNS(t)
}

// Run runs a command in the network namespace at a path, or on the test's host where that is empty, and returns what it
// prints. The test fails where the command does.
func Run(t testing.TB, netns, name string, args ...string) string {
	t.Helper()
	return nstest.RunIn(t, netns, name, args...)
}

// NewWorld is a host and a container, each an empty network namespace with lo up, for the test of a resource. They are
// closed when the test ends.
func NewWorld(t testing.TB) *kernel.World {
	t.Helper()
	return contract.NewWorld(t)
}

// Plugins is a directory with the plugins that the test binary is, see Main, by the types that are named.
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
