package etcd

import (
	"context"
	"fmt"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// Forget takes the blocks from the node with a name, which never writes again. The caller has to know that its
// containers have ended: ten minutes later, others get their addresses. A call that did not come to its end can be
// repeated with the identifier in place of the name.
func (s *Store) Forget(ctx context.Context, name string) error {
	node := name
	snap, err := s.Read(ctx, blocks.Read{Keys: []blocks.Key{{Kind: blocks.NameKey, Node: name}}})
	if err != nil {
		return err
	}
	if len(snap.Entries) > 0 {
		node = snap.Entries[0].Value.Node
	}
	epoch := blocks.Key{Kind: blocks.EpochKey, Node: node}
	if snap, err = s.Read(ctx, blocks.Read{Keys: []blocks.Key{epoch}, Mine: node}); err != nil {
		return err
	}
	if len(snap.Entries) == 0 || snap.Entries[0].Key != epoch {
		return fmt.Errorf("forget: no node has the name or the identifier %q", name)
	}
	if e := snap.Entries[0]; !e.Value.Epoch.Gone {
		k := blocks.Key{Kind: blocks.NameKey, Node: e.Value.Epoch.Name}
		names, err := s.Read(ctx, blocks.Read{Keys: []blocks.Key{k}})
		if err != nil {
			return err
		}
		if err := s.must(ctx, node, blocks.Forget(e, names.Of(k))); err != nil {
			return err
		}
		if snap, err = s.Read(ctx, blocks.Read{Keys: []blocks.Key{epoch}, Mine: node}); err != nil {
			return err
		}
	}
	for _, mine := range snap.Entries[1:] {
		if err := s.bury(ctx, node, mine.Key); err != nil {
			return err
		}
	}
	return nil
}

// bury takes a block from a node. Only the owners of its other parts write it.
func (s *Store) bury(ctx context.Context, node string, mine blocks.Key) error {
	k := blocks.Key{Kind: blocks.BlockKey, Pool: mine.Pool, Block: mine.Block}
	snap, err := s.Read(ctx, blocks.Read{Keys: []blocks.Key{k}})
	if err != nil {
		return err
	}
	return s.must(ctx, node, blocks.Bury(node, snap.Of(k)))
}

// must does a transaction, and says if something else was written at the same time.
func (s *Store) must(ctx context.Context, node string, t blocks.Txn) error {
	r, err := s.Commit(ctx, t)
	if err != nil {
		return err
	}
	if !r.Done {
		return fmt.Errorf("forget: the entries of node %s changed meanwhile: try again with this identifier", node)
	}
	return nil
}
