package etcd

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// ErrExists means that etcd has a cluster of this name.
var ErrExists = errors.New("etcd has this cluster already")

// Init makes a cluster with pools.
func (s *Store) Init(ctx context.Context, pools []blocks.Pool) error {
	c := blocks.Config{Pools: pools}
	if err := c.Validate(); err != nil {
		return err
	}
	v, err := s.Look(ctx)
	if err != nil {
		return err
	}
	c.Store = v.id
	r, err := s.Commit(ctx, blocks.Init(c))
	if err == nil && !r.Done {
		err = ErrExists
	}
	return err
}
