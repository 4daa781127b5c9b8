package cli

import (
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/spf13/cobra"
)

// environmentTopic returns the topic of `fairlead help environment`.
func environmentTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "environment",
		Short: "Environment variables and exit statuses",
		Long: `Environment variables, as for cnitool:
  NETCONFPATH  directory of the network configurations (default /etc/cni/net.d)
  CNI_PATH     directories of the plugins, separated by colons. Default: those of /opt/cni/bin, /usr/lib/cni,
               /usr/libexec/cni, /usr/local/lib/cni and /usr/local/libexec/cni that exist, then fairlead itself;
               in a throw-away host fairlead itself comes first
  CNI_IFNAME   name of the interface in the namespace (default eth0; -i takes precedence)
  CNI_ARGS     arguments for the plugins: K=V;K=V
  CAP_ARGS     capability arguments, a JSON object:
               {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}
  FAIRLEAD_LOG which calls of plugins are logged, and where (fairlead log --help)
  NO_COLOR     no colours, not even on a terminal

The network "` + netconf.DefaultNetwork + `" exists without a file.

Exit statuses:
  0  done
  1  failed, or a file of the cache or of a network cannot be read: it is named, and the rest is shown or done
  2  the command line is wrong, or asks for something that is done only with --force
  3  check: something is missing or was changed; repair: something cannot be restored; doctor: there is a fault;
     install --check: an install would change something
  4  no such network, network namespace or attachment
  5  a temporary condition: try again
fairlead run exits with the status of its command, with 126 or 127 if the command cannot be run, and with 128 plus the
signal's number if a signal killed it.`,
	}
}

// pluginsCommand returns `fairlead plugins`. `make build` uses its output to make the links to the program.
func pluginsCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use:     "plugins",
		Short:   "List the plugins that this program contains",
		GroupID: "look",
		Args:    app.Operands(""),
		RunE: func(c *cobra.Command, args []string) error {
			all := plugin.All()
			if a.JSON() {
				type entry struct {
					Name     string `json:"name"`
					Synopsis string `json:"synopsis"`
				}
				doc := struct {
					Plugins []entry `json:"plugins"`
				}{[]entry{}}
				for _, p := range all {
					doc.Plugins = append(doc.Plugins, entry{p.Name, p.Synopsis})
				}
				return a.PrintJSON(doc)
			}
			for _, p := range all {
				a.Print("%s\n", p.Name)
			}
			return nil
		},
	}
}
