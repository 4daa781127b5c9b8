// Command fairlead is every CNI plugin of this project and the command line tool. Called by a plugin's
// name it is that plugin; called by any other it is the tool.
//
// As in cmd/cni, no cgroup is asked for its limit on processors.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/internal/command/cli"
	"github.com/fairlead-cni/fairlead/internal/dhcp/daemon"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
)

// version is stamped by the build; what `go install` makes has none.
var version string

func main() {
	name := filepath.Base(os.Args[0])
	all := plugin.All()
	for _, p := range all {
		if p.Name == name {
			if name == "dhcp" && len(os.Args) > 1 && os.Args[1] == "daemon" {
				os.Exit(daemon.Main(os.Args[2:], os.Stderr))
			}
			os.Exit(sdk.Serve(all, name, version))
		}
	}
	os.Exit(cli.Main(os.Args[1:], sdk.Version(version), os.Stdin, os.Stdout, os.Stderr))
}
