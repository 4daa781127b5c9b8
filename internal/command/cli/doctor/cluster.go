package doctor

import (
	"errors"
	"io/fs"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/cluster"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
)

// cluster adds findings for what the agent of a network knows of the ways to other nodes.
func (d *Doctor) cluster(n *netconf.Network, on []affected) {
	if !netconf.AllocatesBy(n.List, "cluster") {
		return
	}
	answer, err := cluster.Ask(d.Ctx, n.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist): // STATUS reports that there is no grant
		return
	case app.Denied(err):
		d.Unexamined("the ways of network %s to other nodes: %v", n.Name, err)
		return
	case err != nil:
		d.remark("the ways of network %s to other nodes are not known: %v", n.Name, err)
		return
	}
	where := "network " + n.Name
	if !answer.Live {
		d.add(ClusterAgentSilent, where, answer.Cause, nil)
	}
	for _, p := range answer.Problems {
		d.add(ClusterNodeUnreachable, where, p.Text, on, "NET", n.Name)
	}
}
