package etcd

import (
	"context"
	"slices"
	"sync"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// Notices tell a member that entries of the store changed that concern its node.
type notices struct {
	wake chan struct{}

	mu        sync.Mutex
	revisions []int64 // that the member has not taken
}

// unknown in place of a revision means that any entry may have changed.
const unknown = 0

// add tells the member of a revision, once.
func (n *notices) add(revision int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Contains(n.revisions, revision) {
		n.revisions = append(n.revisions, revision)
	}
	notify(n.wake)
}

// take reports whether there are notices of changes that an owner does not know yet, and forgets all.
func (n *notices) take(o *blocks.Owner) (isNews bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	isNews = slices.ContainsFunc(n.revisions, func(r int64) bool { return r == unknown || !o.Knows(r) })
	n.revisions = nil
	return isNews
}

// tell has changes of a node told until ctx ends.
func (v *View) tell(ctx context.Context, node string, n *notices) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.told[node] = append(v.told[node], n)
	context.AfterFunc(ctx, func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.told[node] = slices.DeleteFunc(v.told[node], func(other *notices) bool { return other == n })
	})
}

// tellOf tells the nodes that a change of an entry concerns. The caller has the lock.
func (v *View) tellOf(k blocks.Key, revision int64) {
	switch k.Kind {
	case blocks.MineKey, blocks.EpochKey, blocks.DrainKey:
		for _, n := range v.told[k.Node] {
			n.add(revision)
		}
	case blocks.ConfigKey, blocks.ReadoptKey:
		v.tellAll(revision)
	}
}

// tellAll tells all nodes. The caller has the lock.
func (v *View) tellAll(revision int64) {
	for _, of := range v.told {
		for _, n := range of {
			n.add(revision)
		}
	}
}
