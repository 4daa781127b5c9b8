package doctor

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/fairlead-cni/fairlead/cli/cluster"
	"github.com/fairlead-cni/fairlead/cli/netconf"
	"github.com/fairlead-cni/fairlead/spec"
)

// cluster adds findings for what the agent of a network knows of the ways to other nodes.
func (d *Doctor) cluster(n *netconf.Network, on []affected) {
	allocates := func(p *spec.Conf) bool { return p.IPAMType == "cluster" }
	if !slices.ContainsFunc(n.List.WrittenOut().Plugins, allocates) {
		return
	}
	answer, err := cluster.Ask(d.Ctx, n.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist): // STATUS reports that there is no grant
		return
	case app.Denied(err):
		d.Blind("the ways of network %s to other nodes: %v", n.Name, err)
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
