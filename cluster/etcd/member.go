package etcd

import (
	"context"
	"errors"
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
	Needs   map[string]*blocks.Need // by the name of the pool. The node gets nothing of others

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
	if _, err := m.Leases.Reclaim(ctx, m.Network, false); err != nil { // those of earlier boots would count
		return err
	}
	j, err := h.loadJournal()
	if err != nil {
		return err
	}
	granted, err := h.granted()
	if err != nil {
		return err
	}
	o := blocks.New(m.Node, machine(), nonce(), j, granted)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	e := events{store: make(chan struct{}, 1), leases: make(chan struct{}, 1)}
	if err := h.watchLeases(ctx, e.leases); err != nil {
		return err
	}
	m.Store.watch(ctx, j.Node, e.store)
	return m.loop(ctx, h, o, e)
}

// events are what a member waits for.
type events struct{ store, leases chan struct{} }

// loop asks the owner what is next, and does it. An action that fails is tried again after a while.
func (m *Member) loop(ctx context.Context, h *host, o *blocks.Owner, e events) error {
	told := ""
	for ctx.Err() == nil {
		next, err := m.want(ctx, h, o)
		a := o.Next()
		if m.before != nil {
			m.before(a)
		}
		err = errors.Join(err, m.do(ctx, h, o, a))
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && err.Error() != told:
			told = err.Error()
			m.Log.Error("the node's blocks are not as they should be; the next attempt is in a second", "cause", err)
		case err == nil:
			told = ""
		}
		switch {
		case err != nil:
			e.wait(ctx, o, pause)
		case a == nil && !next.IsZero():
			e.wait(ctx, o, min(again, time.Until(next)))
		case a == nil:
			e.wait(ctx, o, again)
		}
	}
	return nil
}

// wait waits for something that happens, or for a time, after which the owner looks at the store again.
func (e events) wait(ctx context.Context, o *blocks.Owner, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-e.leases:
		o.LeasesChanged()
	case <-e.store:
		o.Changed()
	case <-timer.C:
		o.Changed()
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
