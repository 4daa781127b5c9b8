package etcd

import (
	"cmp"
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// A MemberInfo is what people want to know of a node.
type MemberInfo struct {
	Name      string       `json:"name"`
	ID        string       `json:"id"`
	Alive     bool         `json:"alive"` // its agent runs, or ran a minute ago
	Version   string       `json:"version,omitempty"`
	Endpoints []netip.Addr `json:"endpoints,omitempty"`
	Blocks    int          `json:"blocks"`
	Leased    int          `json:"leased"`             // when the node said it last
	LeasedAt  int64        `json:"leasedAt,omitempty"` // seconds by the node's clock; zero: unknown
	Usable    *big.Int     `json:"usable"`             // addresses of its blocks
	State     State        `json:"state"`

	// Reclaim has the pools, by their names, of which the node loses blocks after such a silence.
	Reclaim map[string]blocks.Delay `json:"reclaim,omitempty"`
}

// A State says whether a node claims blocks.
type State string

// The states.
const (
	StateMember    State = "member"
	StateDrains    State = "drains"
	StateForgotten State = "forgotten"
	StateReclaimed State = "reclaimed" // it was silent, and others took blocks of it; it goes on when it returns
)

// Names returns the names of all nodes by their identifiers, also of those that were forgotten.
func (v *View) Names() map[string]string {
	names := map[string]string{}
	for _, e := range v.All(blocks.EpochKey) {
		names[e.Key.Node] = e.Value.Epoch.Name
	}
	return names
}

// Members returns the nodes in the order of their names. Those that were forgotten are among them as long as they have
// a block.
func (v *View) Members() []MemberInfo {
	list := []MemberInfo{}
	owned := map[string]int{}
	for _, e := range v.All(blocks.MineKey) {
		owned[e.Key.Node]++
	}
	pools := map[string]blocks.Pool{}
	for _, p := range v.Pools() {
		pools[p.Name] = p.Pool
	}
	ranges := v.Ranges()
	hosts := map[string]*blocks.Host{}
	for _, e := range v.All(blocks.NodeKey) {
		hosts[e.Key.Node] = e.Value.Host
	}
	for _, e := range v.All(blocks.EpochKey) {
		m := MemberInfo{Name: e.Value.Epoch.Name, ID: e.Key.Node, Blocks: owned[e.Key.Node], Usable: new(big.Int), State: StateMember}
		if h := hosts[m.ID]; h != nil {
			m.Version, m.Endpoints, m.Leased, m.LeasedAt = h.Version, h.Endpoints, total(h.Leased), h.LeasedAt
		}
		for pool, of := range ranges[m.ID] {
			m.Usable.Add(m.Usable, pools[pool].Addresses(of))
		}
		for pool, promised := range v.get(blocks.Key{Kind: blocks.BeatKey, Node: m.ID}).Value.Beat {
			if now := pools[pool].Reclaim; now != 0 { // else an administrator took that back
				if m.Reclaim == nil {
					m.Reclaim = map[string]blocks.Delay{}
				}
				m.Reclaim[pool] = max(promised, now)
			}
		}
		m.Alive = v.has(blocks.Key{Kind: blocks.AliveKey, Node: m.ID})
		switch {
		case e.Value.Epoch.Gone && m.Blocks == 0:
			continue
		case e.Value.Epoch.Gone:
			m.State = StateForgotten
		case e.Value.Epoch.Reclaimed:
			m.State = StateReclaimed
		case v.Drains(m.ID):
			m.State = StateDrains
		}
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b MemberInfo) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Member returns the node with a name or an identifier.
func (v *View) Member(name string) (MemberInfo, error) {
	var names []string
	for _, m := range v.Members() {
		if m.Name == name || m.ID == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return MemberInfo{}, fmt.Errorf("the cluster has no node %q; it has %s", name, cmp.Or(strings.Join(names, ", "), "none"))
}

func (v *View) has(k blocks.Key) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, has := v.entries[k.Kind][k]
	return has
}

// Restored reports whether a node has found that etcd is older than what the node knows.
func (v *View) Restored() bool { return v.has(blocks.Key{Kind: blocks.ReadoptKey}) }

// Awaited returns the nodes that have not said what they have since etcd was found restored.
func (v *View) Awaited() (list []MemberInfo) {
	v.mu.Lock()
	id := v.id
	var entries []blocks.Entry
	for of := range maps.Values(v.entries) {
		entries = slices.AppendSeq(entries, maps.Values(of))
	}
	v.mu.Unlock()
	awaited := blocks.Awaited(entries, id)
	for _, m := range v.Members() {
		if slices.Contains(awaited, m.ID) {
			list = append(list, m)
		}
	}
	return list
}

// A PoolInfo is a pool with its use.
type PoolInfo struct {
	blocks.Pool
	Blocks  string   `json:"blocks"` // that the pool has: a number, which may have many digits
	Owned   int      `json:"owned"`
	Resting int      `json:"resting,omitempty"` // that nodes lost, for ten minutes
	Leased  int      `json:"leased"`            // addresses, some minutes ago
	Usable  *big.Int `json:"usable"`            // addresses of the blocks that are owned
}

// Pool returns the pool with a name.
func (v *View) Pool(name string) (blocks.Pool, error) {
	var have []string
	for _, p := range v.Pools() {
		if p.Name == name {
			return p.Pool, nil
		}
		have = append(have, fmt.Sprintf("%s (%v)", p.Name, p.Prefix))
	}
	return blocks.Pool{}, fmt.Errorf("the cluster has no pool %q; it has %s", name, strings.Join(have, ", "))
}

// Pools returns the pools, in the order in which an administrator added them.
func (v *View) Pools() []PoolInfo {
	c := v.Config()
	if c == nil {
		return nil
	}
	list := make([]PoolInfo, len(c.Pools))
	at := map[string]*PoolInfo{}
	for i, p := range c.Pools {
		list[i] = PoolInfo{Pool: p, Blocks: p.Total().String(), Usable: new(big.Int)}
		at[p.Name] = &list[i]
	}
	for _, e := range v.All(blocks.BlockKey) {
		if p := at[e.Key.Pool]; p != nil {
			p.Owned++
		}
	}
	for _, e := range v.All(blocks.GraveKey) {
		if p := at[e.Key.Pool]; p != nil {
			p.Resting++
		}
	}
	for _, e := range v.All(blocks.NodeKey) {
		for name, leased := range e.Value.Host.Leased {
			if p := at[name]; p != nil {
				p.Leased += leased
			}
		}
	}
	for of := range maps.Values(v.Ranges()) {
		for name, ranges := range of {
			if p := at[name]; p != nil {
				p.Usable.Add(p.Usable, p.Pool.Addresses(ranges))
			}
		}
	}
	return list
}
