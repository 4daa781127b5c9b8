// Command cni is the CNI plugins of this project without its command line, in one program: called by a
// plugin's name it is that plugin. A plugin is started for each call, and what a command line links
// would be a fifth of that start (docs/decisions.md).
//
// A call is over before the runtime could make anything of the limit on processors that a cgroup has, so it does not
// look for one.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/internal/dhcp/daemon"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
)

// version is stamped by the build; what `go install` makes has none.
var version string

func main() {
	name, all := filepath.Base(os.Args[0]), plugin.All()
	for _, p := range all {
		if p.Name == name {
			if name == "dhcp" && len(os.Args) > 1 && os.Args[1] == "daemon" {
				os.Exit(daemon.Main(os.Args[2:], os.Stderr))
			}
			os.Exit(sdk.Serve(all, name, version))
		}
	}
	fmt.Fprintf(os.Stderr, "%s is no plugin; give this file one of these names:", name)
	for _, p := range all {
		fmt.Fprintf(os.Stderr, " %s", p.Name)
	}
	fmt.Fprintln(os.Stderr)
	os.Exit(2)
}
