package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/ipam/disk"
)

// again is the time after which a member looks at the store again if nothing happened.
const again = time.Minute

// A Member gets and keeps the blocks of a node, for one network.
type Member struct {
	Store   *Store
	Cluster string // name of the cluster
	Node    string // name of this node in it
	Network string // whose containers get the addresses
	Leases  *disk.Store
	Log     *slog.Logger

	// Blocks is how many blocks of each pool the node wants from the beginning.
	Blocks map[string]int

	before func(blocks.Action) // of a test: called before each action, and with nil before it waits
}

// Run does what is to be done until ctx ends. The grant stays then, so that containers get addresses while no agent
// runs.
func (m *Member) Run(ctx context.Context) error {
	h := &host{cluster: m.Cluster, node: m.Node, network: m.Network, leases: m.Leases}
	unlock, err := h.lock()
	if err != nil {
		return err
	}
	defer unlock()
	j, err := h.loadJournal()
	if err != nil {
		return err
	}
	granted, err := h.granted()
	if err != nil {
		return err
	}
	o := blocks.New(m.Node, machine(), nonce(), j, granted)
	for pool, n := range m.Blocks {
		o.Want(pool, n)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changed := make(chan struct{}, 1)
	m.Store.watch(ctx, j.Node, changed)
	return m.loop(ctx, h, o, changed)
}

// loop asks the owner what is next, and does it. An action that fails is tried again after a while.
func (m *Member) loop(ctx context.Context, h *host, o *blocks.Owner, changed <-chan struct{}) error {
	told := ""
	for ctx.Err() == nil {
		a := o.Next()
		if m.before != nil {
			m.before(a)
		}
		err := m.do(ctx, h, o, a)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && err.Error() != told:
			told = err.Error()
			m.Log.Error("the node's blocks are not as they should be; the next attempt is in a second", "cause", err)
		case err == nil:
			told = ""
		}
		if a != nil && err == nil {
			continue
		}
		after := again
		if err != nil {
			after = pause
		}
		m.wait(ctx, o, changed, after, err == nil)
	}
	return nil
}

// wait waits for something that happens. Without idle, the action that goes on is tried again.
func (m *Member) wait(ctx context.Context, o *blocks.Owner, changed <-chan struct{}, most time.Duration, idle bool) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-changed:
		o.Changed()
	case <-timer.C:
		if idle {
			o.Changed()
		}
	}
}

// do does an action, and tells the owner what came of it. After an error, the owner wants the same again.
func (m *Member) do(ctx context.Context, h *host, o *blocks.Owner, a blocks.Action) error {
	switch a := a.(type) {
	case blocks.Read:
		s, err := m.Store.Read(ctx, a)
		if err != nil {
			return err
		}
		o.Saw(s)
	case blocks.Txn:
		r, err := m.Store.Commit(ctx, a)
		if err != nil {
			o.Unknown()
			return err
		}
		o.Committed(r)
	case blocks.Save:
		if err := h.saveJournal(a.Journal); err != nil {
			return err
		}
		o.Saved()
	case blocks.Publish:
		busy, err := h.publish(ctx, a, o.Ranges)
		if err != nil {
			return fmt.Errorf("write the grant: %w", err)
		}
		o.Published(busy)
	}
	return nil
}
