package fleet

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/cluster/agent"
	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/cluster/etcd"
	"github.com/fairlead-cni/fairlead/kernel"
)

func nodesVerb() verb {
	return verb{name: "nodes", does: "List the nodes of the cluster, with what they have and whether their agents run.",
		ask: func(ctx context.Context, c *call, s *etcd.Store, v *etcd.View, operands []string) error {
			nodes, names := v.Members(), labels(v)
			return c.print(nodes, func(w io.Writer) {
				fmt.Fprintln(w, "NODE\tAGENT\tENDPOINTS\tBLOCKS\tLEASED\tADDRESSES\tSTATE")
				for _, n := range nodes {
					printf(w, "%s\t%s\t%s\t%d\t%d\t%v\t%s\n", names[n.ID], agentState(n), join(n.Endpoints), n.Blocks, n.Leased,
						n.Usable, nodeState(n))
				}
			})
		}}
}

func agentState(n etcd.MemberInfo) string {
	if n.Alive {
		return n.Version
	}
	return "does not run"
}

// nodeState says whether a node claims blocks, and what it loses if it stays silent.
func nodeState(n etcd.MemberInfo) string {
	text := string(n.State)
	for _, pool := range slices.Sorted(maps.Keys(n.Reclaim)) {
		if !n.Alive {
			text += fmt.Sprintf(", loses %s after %v", pool, n.Reclaim[pool])
		}
	}
	return text
}

func poolsVerb() verb {
	return verb{name: "pools", most: 2, operands: "[add NAME=CIDR[,BITS[,PARTS]][,closed][,reclaim=TIME[,fence=drop]]|add NAME=CIDR,pinned|open NAME|close NAME|" +
		"remove NAME|reclaim NAME=TIME|fence NAME=drop]",
		does: "List the pools with their use, add one, let nodes claim no more blocks of one (close) or any (open), remove one of which no " +
			"node has a block, say after which silence a node loses its blocks of one: manual, or 1h and more, or whether it cuts off " +
			"their containers before: drop, or none.",
		run: func(ctx context.Context, c *call, operands []string) error {
			isChange := len(operands) == 2 && slices.Contains([]string{"add", "open", "close", "remove", reclaimKey, fenceKey}, operands[0])
			if len(operands) > 0 && !isChange {
				return fmt.Errorf("pools %s: want add NAME=CIDR, open NAME, close NAME, remove NAME, reclaim NAME=TIME, fence NAME=drop, or nothing: %w",
					strings.Join(operands, " "), errUsage)
			}
			s, v, err := c.open(ctx)
			if err != nil {
				return err
			}
			defer s.Close()
			if isChange {
				if v, err = c.changePools(ctx, s, operands[0], operands[1]); err != nil {
					return err
				}
			}
			pools := v.Pools()
			return c.print(pools, func(w io.Writer) {
				fmt.Fprintln(w, "POOL\tADDRESSES\tBLOCKS OF\tBLOCKS\tOWNED\tRESTING\tLEASED\tRECLAIM\tSTATE")
				for _, p := range pools {
					printf(w, "%s\t%v\t/%d\t%s\t%d\t%d\t%d of %v\t%s\t%s\n", p.Name, p.Prefix, p.Bits, p.Blocks, p.Owned, p.Resting,
						p.Leased, p.Usable, lossOf(p.Pool), poolState(p.Pool))
				}
				if isChange && operands[0] == "add" {
					printf(w, "%s\n", gives(pools[len(pools)-1].Pool))
				}
			})
		}}
}

// gives says how many addresses a pool has for containers, and how many nodes can have some, if these are few.
func gives(p blocks.Pool) string {
	pool := fmt.Sprintf("pool %s (%v)", p.Name, p.Prefix)
	if p.Pinned {
		return fmt.Sprintf("%s has %v addresses, which containers get by name alone", pool, p.Total())
	}
	usable := p.Addresses([]netip.Prefix{p.Block(p.Prefix.Addr())})
	text := fmt.Sprintf("%s has %v blocks with %v addresses for containers each", pool, p.Total(), usable)
	if p.Bits != p.Prefix.Bits() {
		return text
	}
	text = fmt.Sprintf("%s is one block with %v addresses for containers", pool, usable)
	if p.Parts == 1 {
		return text + ": one node alone can have it. Add a larger pool"
	}
	return fmt.Sprintf("%s: %d nodes at most have a part of it", text, p.Parts)
}

// lossOf says what happens to a silent node.
func lossOf(p blocks.Pool) string {
	if p.Fence == "" {
		return p.Reclaim.String()
	}
	return fmt.Sprintf("%v, %s=%v", p.Reclaim, fenceKey, p.Fence)
}

// changePools does one of the verbs add, open, close, remove, reclaim and fence, and returns what the store says then.
func (c *call) changePools(ctx context.Context, s *etcd.Store, verb, operand string) (*etcd.View, error) {
	switch verb {
	case "open", "close":
		return s.ClosePool(ctx, operand, verb == "close")
	case "remove":
		return s.RemovePool(ctx, operand)
	}
	if verb == reclaimKey || verb == fenceKey {
		name, value, _ := strings.Cut(operand, "=")
		rest, err := parseSilence(name+","+verb+"="+value, new(blocks.Pool))
		if err == nil && rest != name {
			err = fmt.Errorf("%q: want no more than %s=TIME and %s=drop", value, reclaimKey, fenceKey)
		}
		if err != nil {
			return nil, fmt.Errorf("pool %s: %w: %w", name, err, errUsage)
		}
		return s.ChangePool(ctx, name, func(p *blocks.Pool) { _, _ = parseSilence(name+","+verb+"="+value, p) })
	}
	p, err := ParsePool(operand)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errUsage)
	}
	if _, err := os.Stat(c.file); err == nil { // this host is a node of the cluster
		if err := fit(p); err != nil {
			return nil, err
		}
	}
	return s.AddPool(ctx, p)
}

// fit returns an error if a pool overlaps a network or a route of this node. The addresses of a pool that is closed may be in use.
func fit(pools ...blocks.Pool) error {
	host, err := kernel.Open("")
	if err != nil {
		return err
	}
	defer host.Close()
	a := &agent.Agent{World: &kernel.World{Host: host}, Source: agent.Etcd}
	for _, p := range pools {
		if p.Closed {
			continue
		}
		if err := a.Fit(p.Prefix, nil); err != nil {
			return fmt.Errorf("pool %s (%v) %w of this node: choose addresses that nothing else uses, or say %[1]s=%[2]v,closed to take over "+
				"the containers there (docs/fleet.md)", p.Name, p.Prefix, err)
		}
	}
	return nil
}

func poolState(p blocks.Pool) string {
	switch {
	case p.Closed:
		return "closed"
	case p.Pinned:
		return "pinned"
	}
	return "open"
}

// A block is one that is not free.
type block struct {
	Pool        string       `json:"pool"`
	Block       netip.Prefix `json:"block"`
	Owners      []string     `json:"owners,omitempty"` // names of nodes
	FormerOwner string       `json:"former,omitempty"` // node that lost it; no node claims the block for some minutes
}

func blocksVerb() verb {
	return verb{name: "blocks", most: 1, operands: "[NODE]",
		does: "List the blocks that are not free, or those of a node.",
		ask: func(ctx context.Context, c *call, s *etcd.Store, v *etcd.View, operands []string) error {
			if err := asNames(v, slices.Clone(operands)); err != nil {
				return err
			}
			names, known := labels(v), v.Names()
			wanted := func(id string) bool { return len(operands) == 0 || id == operands[0] || known[id] == operands[0] }
			list := []block{}
			for _, e := range v.All(blocks.BlockKey) {
				b := block{Pool: e.Key.Pool, Block: e.Key.Block}
				owners := slices.DeleteFunc(slices.Clone(e.Value.Owners), func(owner string) bool { return owner == "" })
				slices.Sort(owners)
				for _, owner := range slices.Compact(owners) {
					b.Owners = append(b.Owners, nameOf(names, owner))
				}
				if slices.ContainsFunc(owners, wanted) {
					list = append(list, b)
				}
			}
			for _, e := range v.All(blocks.GraveKey) {
				if wanted(e.Value.Node) {
					list = append(list, block{Pool: e.Key.Pool, Block: e.Key.Block, FormerOwner: nameOf(names, e.Value.Node)})
				}
			}
			return c.print(list, func(w io.Writer) {
				fmt.Fprintln(w, "POOL\tBLOCK\tNODE")
				for _, b := range list {
					node := strings.Join(b.Owners, ",")
					if b.FormerOwner != "" {
						node = "(rests, was of " + b.FormerOwner + ")"
					}
					printf(w, "%s\t%v\t%s\n", b.Pool, b.Block, node)
				}
			})
		}}
}

// asNames replaces identifiers of nodes by names, also of nodes that were forgotten. It returns an error if there is no such node.
func asNames(v *etcd.View, nodes []string) error {
	known := v.Names()
	for i, node := range nodes {
		if known[node] != "" {
			nodes[i] = known[node]
			continue
		}
		wasForgotten := slices.Contains(slices.Collect(maps.Values(known)), node)
		if _, err := v.Member(node); err != nil && !wasForgotten {
			return err
		}
	}
	return nil
}

// labels are the names of nodes by their identifiers, which stand behind the name where two nodes have it.
func labels(v *etcd.View) map[string]string {
	have := map[string]int{}
	for _, n := range v.Members() {
		have[n.Name]++
	}
	names := v.Names()
	for id, name := range names {
		if have[name] > 1 {
			names[id] = name + " (" + id + ")"
		}
	}
	return names
}

func nameOf(names map[string]string, node string) string {
	if name := names[node]; name != "" {
		return name
	}
	return node
}

// An exported is what a node has, as ranges of host-local.
type exported struct {
	Node   string             `json:"node"`
	Ranges [][]exportedSubnet `json:"ranges"` // one list for each family
}

// An exportedSubnet is a block or a part of one, or single addresses of a pinned pool.
type exportedSubnet struct {
	Subnet     netip.Prefix `json:"subnet"`
	RangeStart *netip.Addr  `json:"rangeStart,omitempty"`
	RangeEnd   *netip.Addr  `json:"rangeEnd,omitempty"`
}

// exportedOf returns a prefix that a node has. That of a pinned address is its pool: host-local wants no subnet of one address.
func exportedOf(prefix netip.Prefix, pools []etcd.PoolInfo) exportedSubnet {
	for _, p := range pools {
		if a := prefix.Addr(); p.Pinned && p.Prefix.Contains(a) {
			return exportedSubnet{Subnet: p.Prefix, RangeStart: &a, RangeEnd: &a}
		}
	}
	return exportedSubnet{Subnet: prefix}
}

func exportVerb() verb {
	return verb{name: "export", most: 1, operands: "[NODE]",
		does: "Print the ranges of each node as host-local's ipam.ranges, to leave the cluster.",
		ask: func(ctx context.Context, c *call, s *etcd.Store, v *etcd.View, operands []string) error {
			if err := asNames(v, operands); err != nil {
				return err
			}
			list := []exported{}
			pools := v.Pools()
			for _, n := range v.Nodes() {
				if len(operands) == 1 && n.Name != operands[0] {
					continue
				}
				var v4, v6 []exportedSubnet
				for _, p := range n.Prefixes {
					if p.Addr().Is4() {
						v4 = append(v4, exportedOf(p, pools))
					} else {
						v6 = append(v6, exportedOf(p, pools))
					}
				}
				e := exported{Node: n.Name, Ranges: [][]exportedSubnet{v4, v6}}
				e.Ranges = slices.DeleteFunc(e.Ranges, func(of []exportedSubnet) bool { return len(of) == 0 })
				list = append(list, e)
			}
			c.output = "json" // there is no other form
			return c.print(list, nil)
		}}
}

func join[T fmt.Stringer](all []T) string {
	var texts []string
	for _, v := range all {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ",")
}
