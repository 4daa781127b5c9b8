package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

// A Source is where the nodes of the cluster and their ranges come from.
type Source int

// The sources.
const (
	Kubernetes Source = iota // Node objects, whose podCIDRs are the ranges
	Etcd                     // nodes that own blocks of pools; package etcd grants them
)

// String returns what answers the agent.
func (s Source) String() string {
	if s == Etcd {
		return "etcd"
	}
	return "the API server"
}

// silent says that the source does not answer, and what that means for a network.
func (s Source) silent(cause error, network string) string {
	if s == Etcd {
		until := "etcd answers"
		if directory.OfThisHost(cause) {
			until = "this is mended. The agent tries again by itself"
		}
		return fmt.Sprintf("%v. Containers keep their ways, and the node keeps its addresses%s; it gets no more until %s", cause,
			losses(network, disk.Uptime()), until)
	}
	return fmt.Sprintf("the API server does not answer: %v. Pods keep their ways, and changes of nodes wait: see --kubeconfig, or "+
		"KUBERNETES_SERVICE_HOST", cause)
}

// losses says which of its addresses the node does not keep for ever without etcd, at a time as in the grant.
func losses(network string, now int64) (text string) {
	g, err := grant.OfBoot(network)
	if err != nil {
		return ""
	}
	for _, p := range g.Pools {
		var ends []int64
		for r, end := range g.Until {
			if p.Prefix.Contains(r.Addr()) {
				ends = append(ends, end)
			}
		}
		if len(ends) == 0 {
			continue
		}
		left := time.Duration(slices.Min(ends) - now)
		when := "then"
		if left > 0 {
			text += fmt.Sprintf(", but those of %v only for another %v", p.Prefix, left.Round(time.Second))
		} else {
			text += fmt.Sprintf(", but not those of %v, which others get", p.Prefix)
			when = "now"
		}
		if p.Fenced {
			text += " (" + when + " their containers are cut off)"
		}
	}
	return text
}

// listNodes says how people see the nodes.
func (s Source) listNodes() string {
	if s == Etcd {
		return "`fairlead cluster nodes` lists them."
	}
	return "`kubectl get nodes` lists them. --node of fairlead-agent has to be the node's name."
}

// giveRange says how the nodes get another range.
func (s Source) giveRange() string {
	if s == Etcd {
		return "give the cluster another pool (`fairlead cluster pools add`)"
	}
	return "give the cluster another range (--cluster-cidr of kube-controller-manager)"
}

// noRange says that a node has no range of its own.
func (s Source) noRange(node string) Missing {
	if s == Etcd {
		return Missing{fmt.Sprintf("node %s has no block of addresses", node), "`fairlead cluster pools` shows what is free."}
	}
	return Missing{fmt.Sprintf("node %s has no podCIDR", node),
		fmt.Sprintf("`kubectl get node %s -o jsonpath={.spec.podCIDRs}` shows it. kube-controller-manager gives it with "+
			"--allocate-node-cidrs and --cluster-cidr.", node)}
}

// change changes the grant, of which the agent is the only writer, or one of two.
func (a *Agent) change(change func(*grant.Grant)) error {
	if a.Grant == nil {
		a.Grant = &grant.File{Network: a.Network}
	}
	return a.Grant.Change(func(g *grant.Grant) {
		g.Cluster, g.Node = a.Cluster, a.Node
		change(g)
	})
}
