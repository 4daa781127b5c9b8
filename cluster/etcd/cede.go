package etcd

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// cedeWait is how long a container waits for a part of another node's block. Its plugin waits a little longer.
const cedeWait = 3 * time.Second / 2

// free returns how many addresses of a pool the node can give to containers.
func (m *Member) free(o *blocks.Owner, p blocks.Pool) int {
	return p.Count(rangesOf(p, o.Granted())) - m.leased[p.Name]
}

// starved returns the pools of a family of which a call finds no address, if none of them has a free block, either.
func (m *Member) starved(o *blocks.Owner, a *ask) []blocks.Pool {
	for _, chain := range chains(m.pools(o)) {
		of := slices.DeleteFunc(chain, func(p blocks.Pool) bool { return len(a.Pools) > 0 && !slices.Contains(a.Pools, p.Name) })
		free := 0
		for _, p := range of {
			free += m.free(o, p)
		}
		isFull := !slices.ContainsFunc(of, func(p blocks.Pool) bool { return !slices.Contains(m.full, p.Name) })
		isAsked := hasOpen(chain) || len(a.Pools) > 0
		if len(of) > 0 && free <= 0 && isFull && isAsked && !a.names(of[0]) {
			return of
		}
	}
	return nil
}

// bare returns the pools of a family with an open one, of which the node has nothing and should, if none of them has a free block.
func (m *Member) bare(o *blocks.Owner) []blocks.Pool {
	for _, chain := range chains(m.pools(o)) {
		has := slices.ContainsFunc(o.Granted(), func(h blocks.Holding) bool {
			return slices.ContainsFunc(chain, func(p blocks.Pool) bool { return p.Name == h.Pool })
		})
		isFull := !slices.ContainsFunc(chain, func(p blocks.Pool) bool { return !slices.Contains(m.full, p.Name) })
		if m.Least > 0 && !has && isFull && hasOpen(chain) {
			return chain
		}
	}
	return nil
}

// wantPart tells the other nodes that this one found no address of these pools. It reports whether one of them may give
// some. What it knows of them is a minute old, so a node that has nothing does not go by that.
func (m *Member) wantPart(ctx context.Context, o *blocks.Owner, of []blocks.Pool, isBare bool) bool {
	me := o.Journal().Node
	epoch, mayWrite := o.Standing()
	i := slices.IndexFunc(of, func(p blocks.Pool) bool {
		return m.unfit(p) == nil && (isBare || len(m.donors(p, me)) > 0)
	})
	if !mayWrite || i < 0 || m.View.Restored() || m.View.Drains(me) {
		return false
	}
	pool := of[i].Name
	if m.wants[pool] {
		return true
	}
	want := blocks.Pair{Key: blocks.Key{Kind: blocks.WantKey, Node: me, Pool: pool}}
	r, err := m.Store.Commit(ctx, blocks.Txn{If: []blocks.Compare{epoch}, Put: []blocks.Pair{want}, Lease: m.lease.Load()})
	if err != nil || !r.Done {
		return false
	}
	m.wants[pool] = true
	return true
}

// wantNothing tells the other nodes that this one wants no part any more.
func (m *Member) wantNothing(ctx context.Context, o *blocks.Owner) error {
	epoch, mayWrite := o.Standing()
	if !mayWrite || len(m.wants) == 0 {
		return nil
	}
	t := blocks.Txn{If: []blocks.Compare{epoch}}
	for pool := range m.wants {
		t.Delete = append(t.Delete, blocks.Key{Kind: blocks.WantKey, Node: o.Journal().Node, Pool: pool})
	}
	_, err := m.Store.Commit(ctx, t)
	if err == nil {
		clear(m.wants)
		notify(m.changed) // what was wanted may be too much now
	}
	return err
}

// ViewChanged says that the view changed. A node that has addresses to give looks whether another one wants some.
func (m *Member) ViewChanged() {
	if len(m.View.All(blocks.WantKey)) > 0 {
		notify(m.changed)
	}
}

// cede has the owner give a part of a block to a node that wants one. Of several nodes that can, the one with most free
// addresses does it at once, and the others one after the other if the want is still there. It returns when to ask again if
// nothing changes.
func (m *Member) cede(o *blocks.Owner) (next time.Time) {
	me := o.Journal().Node
	if _, mayWrite := o.Standing(); !mayWrite || m.View.Restored() || o.Ceding() {
		return next
	}
	isOver := func(k blocks.Key) bool { return !m.View.has(k) }
	maps.DeleteFunc(m.heard, func(k blocks.Key, _ heardWant) bool { return isOver(k) })
	maps.DeleteFunc(m.answered, func(k blocks.Key, _ int64) bool { return isOver(k) })
	for _, e := range m.View.All(blocks.WantKey) {
		pools := o.Pools()
		i := slices.IndexFunc(pools, func(p blocks.Pool) bool { return p.Name == e.Key.Pool })
		if e.Key.Node == me || i < 0 || m.answered[e.Key] == e.Revision || m.free(o, pools[i])-pools[i].Part() < m.Reserve {
			continue
		}
		if m.heard[e.Key].revision != e.Revision {
			m.heard[e.Key] = heardWant{e.Revision, time.Now()}
		}
		rank := max(0, slices.Index(m.donors(pools[i], e.Key.Node), me))
		due := m.heard[e.Key].at.Add(time.Duration(rank) * retry)
		if time.Now().Before(due) {
			if next.IsZero() || due.Before(next) {
				next = due
			}
			continue
		}
		m.answered[e.Key] = e.Revision
		o.Cede(e.Key.Pool, e.Key.Node, m.View.get(blocks.Key{Kind: blocks.EpochKey, Node: e.Key.Node}).Revision)
		return next
	}
	return next
}

// A heardWant is a want of another node, and when this one first heard of it.
type heardWant struct {
	revision int64
	at       time.Time
}

// donors returns the nodes but one whose agents run, and that have a part of a block to give, those with most free addresses
// first.
func (m *Member) donors(p blocks.Pool, but string) (nodes []string) {
	free := map[string]int{}
	ranges := m.View.Ranges()
	for _, e := range m.View.All(blocks.NodeKey) {
		node := e.Key.Node
		free[node] = p.Count(ranges[node][p.Name]) - e.Value.Host.Leased[p.Name]
		if node != but && free[node] >= p.Part() && m.View.has(blocks.Key{Kind: blocks.AliveKey, Node: node}) {
			nodes = append(nodes, node)
		}
	}
	slices.SortStableFunc(nodes, func(a, b string) int { return free[b] - free[a] })
	return nodes
}
