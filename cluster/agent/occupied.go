package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// An Occupied says that a prefix of a node is in use already: it is a network of this host, a range of Services, or has the
// address of a node. A way to the node's containers would take the way to these.
type Occupied struct {
	Node   string
	Prefix netip.Prefix // of Node
	By     string       // for people
	Fix    string       // what to do
}

func (e Occupied) Error() string {
	return fmt.Sprintf("%v of node %s overlaps %s: %s", e.Prefix, e.Node, e.By, e.Fix)
}

// occupants are what prefixes of containers must not overlap.
type occupants struct {
	networks  []rtnl.LinkAddr // of the host
	services  []netip.Prefix
	endpoints []endpoint // of nodes, in the order of addresses
	linkName  func(index int) string
	source    Source
}

// An endpoint is the address of a node that joined at a time.
type endpoint struct {
	netip.Addr
	joined int64
}

// occupants asks the kernel for the networks of this host.
func (a *Agent) occupants(nodes []directory.Node) (o occupants, err error) {
	all, err := rtnl.AllAddrs(a.World.Host)
	if err != nil {
		return o, err
	}
	o.networks = slices.DeleteFunc(all, func(have rtnl.LinkAddr) bool { return have.Prefix.IsSingleIP() })
	o.services, o.source = a.services, a.Source
	for _, n := range nodes {
		for _, e := range n.Endpoints {
			o.endpoints = append(o.endpoints, endpoint{e, n.Joined})
		}
	}
	slices.SortFunc(o.endpoints, func(a, b endpoint) int { return a.Compare(b.Addr) })
	o.linkName = func(index int) string {
		l, err := rtnl.LinkByIndex(a.World.Host, index)
		if err != nil {
			return "a link of this host"
		}
		return "link " + l.Name
	}
	return o, nil
}

// of returns what overlaps a prefix of a node that joined then, or nothing. A node that joined later takes no prefix by
// the address that it names.
func (o occupants) of(p netip.Prefix, joined int64) (by string) {
	if a := p.Masked().Addr(); !a.IsGlobalUnicast() && !a.IsUnspecified() {
		return "addresses that no container can have (loopback, link-local or multicast)"
	}
	for _, have := range o.networks {
		if have.Prefix.Overlaps(p) {
			return fmt.Sprintf("the network %v of %s", have.Prefix.Masked(), o.linkName(have.Link))
		}
	}
	for _, services := range o.services {
		if services.Overlaps(p) {
			return fmt.Sprintf("the range %v of the cluster's Services (`kubectl get servicecidrs`)", services)
		}
	}
	next, _ := slices.BinarySearchFunc(o.endpoints, p.Masked().Addr(), func(e endpoint, a netip.Addr) int { return e.Compare(a) })
	for ; next < len(o.endpoints) && p.Contains(o.endpoints[next].Addr); next++ {
		if o.endpoints[next].joined <= joined {
			return fmt.Sprintf("the nodes' own network, which has the InternalIP %v", o.endpoints[next].Addr)
		}
	}
	return ""
}

// unoccupied returns the nodes without the prefixes that are in use already. Those of this node stay: it is refused as a
// whole.
func (o occupants) unoccupied(nodes []directory.Node, self string) (rest []directory.Node, found []error) {
	for _, n := range nodes {
		if n.Name != self {
			n.Prefixes = slices.DeleteFunc(slices.Clone(n.Prefixes), func(p netip.Prefix) bool {
				by := o.of(p, n.Joined)
				if by != "" {
					found = append(found, Occupied{n.Name, p, by, o.source.giveRange()})
				}
				return by != ""
			})
		}
		rest = append(rest, n)
	}
	return rest, found
}

// leastBits are those that addresses of containers differ in: a range has four addresses or more, as host-local wants.
const leastBits = 2

// refuseSelf says that a prefix of this node is in use already.
func (o occupants) refuseSelf(self directory.Node) error {
	for _, p := range self.Prefixes {
		isPinned := o.source == Etcd && p.IsSingleIP()
		if p.Addr().BitLen()-p.Bits() < leastBits && !isPinned {
			return Missing{fmt.Sprintf("%v of node %s has no room for a gateway and containers", p, self.Name),
				"Give the nodes larger ranges (--node-cidr-mask-size of kube-controller-manager)."}
		}
		if by := o.of(p, self.Joined); by != "" {
			return Missing{fmt.Sprintf("%v of node %s overlaps %s", p, self.Name, by),
				upperFirst(o.source.giveRange()) + ". A network of a link that nothing " +
					"uses any more, such as another plugin's bridge: delete the link."}
		}
	}
	return nil
}

// upperFirst returns a text that begins a sentence.
func upperFirst(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
