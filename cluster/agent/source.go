package agent

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/cluster/directory"
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

// silent says that the source does not answer.
func (s Source) silent(cause error) string {
	if s == Etcd && directory.OfThisHost(cause) {
		return fmt.Sprintf("%v. Containers keep their ways, and the node keeps its addresses; it gets no more until this is mended. The "+
			"agent tries again by itself", cause)
	}
	if s == Etcd {
		return fmt.Sprintf("%v. Containers keep their ways, and the node keeps its addresses; it gets no more until etcd answers",
			cause)
	}
	return fmt.Sprintf("the API server does not answer: %v. Pods keep their ways, and changes of nodes wait: see --kubeconfig, or "+
		"KUBERNETES_SERVICE_HOST", cause)
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
