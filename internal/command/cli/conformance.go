package cli

import (
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/spf13/cobra"
)

// conformanceProgram is a program of its own, which shares nothing with the plugins that it tests.
const conformanceProgram = "fairlead-conformance"

func conformanceCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "conformance [FLAG]...", GroupID: "look", DisableFlagParsing: true,
		Short: "Test CNI plugins and runtimes of any vendor against the specification",
		Long: `Test CNI plugins and runtimes of any vendor against the CNI specification. The command runs fairlead-conformance,
which lies beside fairlead or in a directory of PATH, with the same arguments. fairlead-conformance --help has its flags.

Each check is named by a clause of the specification, and runs in a throw-away host.

Exit status: 0 all checks passed, 1 a check failed, 2 a check could not be made.`,
		Example: `  fairlead conformance --plugin /opt/cni/bin/bridge            test a plugin
  fairlead conformance --plugin ./mine --profile mine.json     test a plugin with a configuration of its own
  fairlead conformance --runtime ./myruntime                   test a runtime
  fairlead conformance --list                                  list the checks`,
		RunE: func(_ *cobra.Command, args []string) error {
			return app.RunBeside(conformanceProgram, args, "Install it: `go install "+
				"github.com/fairlead-cni/fairlead/cmd/fairlead-conformance@latest`.")
		},
	}
}
