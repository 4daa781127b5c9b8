package cli

import (
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// environmentTopic is `fairlead help environment`.
func (a *app) environmentTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "environment",
		Short: "The environment, and what the exit statuses mean",
		Long: `Environment, as of cnitool:
  NETCONFPATH  directory of the network configurations (default /etc/cni/net.d)
  CNI_PATH     directories of the plugins, separated by colons. Default: those of /opt/cni/bin, /usr/lib/cni,
               /usr/libexec/cni, /usr/local/lib/cni and /usr/local/libexec/cni that exist, then fairlead itself;
               in a throw-away host fairlead itself comes first
  CNI_IFNAME   name of the interface in the namespace (default eth0; -i is stronger)
  CNI_ARGS     arguments for the plugins: K=V;K=V
  CAP_ARGS     capability arguments, a JSON object:
               {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}
  NO_COLOR     no colours, not even on a terminal

The network "` + defaultNetwork + `" is there without a file.

Exit statuses:
  0  done
  1  failed
  2  the command line is wrong, or asks for what is done with --force only
  3  check: something is missing or was changed; repair: something cannot be mended; doctor: there is a fault;
     install --check: an install would change something
  4  no such network, network namespace or attachment
  5  a passing condition: try again
fairlead run passes the status of its command through, with 126 and 127 for one that cannot be run and 128 and
the signal's number for one that was killed.`,
	}
}

// pluginsCommand lists the plugins that this program is, for `make build`.
func (a *app) pluginsCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "plugins",
		Short:   "List the plugins that this program is",
		GroupID: "look",
		Args:    operands(""),
		RunE: func(c *cobra.Command, args []string) error {
			all := plugin.All()
			if a.json() {
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
				return printJSON(a.stdout, doc)
			}
			for _, p := range all {
				a.print("%s\n", p.Name)
			}
			return nil
		},
	}
}

// completeNetworks are the names of networks, for a shell.
func (a *app) completeNetworks(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names := []string{defaultNetwork}
	lists, _ := spec.LoadDir(confDir())
	for _, l := range lists {
		names = append(names, l.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
