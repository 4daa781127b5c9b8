package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

// longestGap is the longest time between two looks at the other nodes after which one that was heard in neither was silent in
// between. A member that was stopped for longer, or had no answer of etcd, knows nothing of that time.
const longestGap = 3 * again

// A loss is what a silent node is about to lose.
type loss struct {
	node, pool string
	at         int64 // by the clock of this member
}

// fleet returns what a view says of who was heard.
func (v *View) fleet() blocks.Fleet {
	v.mu.Lock()
	id := v.id
	v.mu.Unlock()
	return blocks.Fleet{Store: id, Config: v.get(blocks.Key{Kind: blocks.ConfigKey}), Readopt: v.get(blocks.Key{Kind: blocks.ReadoptKey}),
		Beats: v.All(blocks.BeatKey)}
}

// reclaim takes the blocks of nodes that were not heard for as long as a pool says. It asks etcd nothing before that, because
// the view has the beats. It is called after etcd answered.
func (m *Member) reclaim(ctx context.Context, o *blocks.Owner) error {
	now := m.clock()
	if now-m.looked > int64(longestGap) {
		m.silences.Reset()
	}
	m.looked = now
	pools := slices.DeleteFunc(slices.Clone(o.Pools()), func(p blocks.Pool) bool { return p.Reclaim == 0 })
	if len(pools) == 0 {
		m.losses.Store(nil)
		return nil
	}
	m.silences.Look(now, m.View.fleet())
	var losses []loss
	var errs []error
	for _, beat := range m.View.All(blocks.BeatKey) {
		node := beat.Key.Node
		for _, p := range pools {
			left, ok := m.silences.Left(now, node, p)
			if !ok || node == o.Journal().Node {
				continue
			}
			losses = append(losses, loss{node, p.Name, now + left})
			if left == 0 {
				errs = append(errs, m.reclaimOf(ctx, o, node, p))
			}
		}
	}
	m.losses.Store(&losses)
	return errors.Join(errs...)
}

// reclaimOf takes blocks of a pool from a silent node: all, or as many as one transaction has. Of the nodes that can, the
// first one does at once, and each other one a minute later than that before it.
func (m *Member) reclaimOf(ctx context.Context, o *blocks.Owner, node string, p blocks.Pool) error {
	_, mayWrite := o.Standing()
	alive := m.View.All(blocks.AliveKey)
	turn := slices.IndexFunc(alive, func(e blocks.Entry) bool { return e.Key.Node == o.Journal().Node })
	since := m.clock() - int64(max(turn, 0))*int64(again)
	left, ok := m.silences.Left(since, node, p)
	epoch := m.View.get(blocks.Key{Kind: blocks.EpochKey, Node: node})
	var all []blocks.Entry
	for _, e := range m.View.All(blocks.BlockKey) {
		if e.Key.Pool == p.Name && slices.Contains(e.Value.Owners, node) {
			all = append(all, e)
		}
	}
	if !mayWrite || !ok || left > 0 || len(all) == 0 || epoch.Revision == 0 || epoch.Value.Epoch.Gone {
		return nil
	}
	r, err := m.Store.Commit(ctx, m.silences.Reclaim(epoch, all))
	switch {
	case err != nil:
		return err
	case !r.Done: // it was heard
		m.silences.Forget(node)
	default:
		m.Log.Info("a node was silent, and lost blocks", "node", epoch.Value.Epoch.Name, "after", p.Reclaim.String(), "pool", p.Name,
			"blocks", min(len(all), blocks.MostAtOnce))
	}
	return nil
}

// Fate says what a silent node is about to lose, for people. It is empty if an operator alone decides, or before this agent
// knows.
func (m *Member) Fate(node string) (text string) {
	losses := m.losses.Load()
	if losses == nil {
		return ""
	}
	for _, l := range *losses {
		if l.node == node {
			left := rounded(max(0, l.at-m.clock()))
			text += fmt.Sprintf(" Unless it is heard within %v, it loses its blocks of the pool %s, and others get them ten minutes later.", left, l.pool)
		}
	}
	return text
}

// Overdue says for people which addresses of a grant containers soon get no more, or get no more already, because etcd has not
// heard of this node for longer than the time of three beats. Now is as in the grant.
func (v *View) Overdue(g *grant.Grant, now int64) (texts []string) {
	for _, p := range v.Pools() {
		for r, end := range g.Until {
			silent := now - (end - p.Reclaim.Kept())
			if p.Reclaim == 0 || !p.Prefix.Contains(r.Addr()) || silent < 3*p.Reclaim.Pause() {
				continue
			}
			text := fmt.Sprintf("etcd has not heard of this node for %v, so containers get no address of %v", rounded(silent), r)
			if p.Fence == blocks.Drop {
				text += ", and those that have one are cut off,"
			}
			if now < end {
				text += fmt.Sprintf(" after another %v", rounded(end-now))
			}
			texts = append(texts, text)
		}
	}
	slices.Sort(texts)
	return texts
}

func rounded(d int64) time.Duration { return time.Duration(d).Round(time.Second) }

// strays returns the addresses that containers have, though the node lost them.
func (m *Member) strays(o *blocks.Owner) (list []netip.Addr) {
	has := func(all []blocks.Holding, a netip.Addr) bool {
		return slices.ContainsFunc(all, func(h blocks.Holding) bool { return h.Block.Contains(a) })
	}
	for _, a := range m.addrs {
		isOfPool := slices.ContainsFunc(o.Pools(), func(p blocks.Pool) bool { return p.Reclaim != 0 && p.Prefix.Contains(a) })
		if isOfPool && !has(o.Owned(), a) {
			list = append(list, a)
		}
	}
	return list
}
