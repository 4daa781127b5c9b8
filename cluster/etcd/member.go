package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/cluster/fence"
	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

// retry is the time after which a member tries again what failed. A request to an etcd that is away costs nothing.
const retry = pause / 4

// again is the time after which a member looks at the store again if nothing happened.
const again = time.Minute

// A Member gets and keeps the blocks of a node, for one network.
type Member struct {
	Store   *Store
	View    *View       // of the store
	Network string      // whose containers get the addresses
	Host    blocks.Host // this node, as the others are to know it
	Leases  *disk.Store
	Grant   *grant.File
	Fence   *fence.Fence // of pools that want one; nil: nothing is cut off
	Log     *slog.Logger

	Pools   []string // from which the node claims, in this order; empty: all
	Least   int      // blocks of each family that the node has always
	Spare   int      // addresses of each family that are free at least; zero: Least is all that counts; -1: those of a block
	Reserve int      // free addresses below which the node wants no more containers
	Idle    time.Duration

	// Ready is closed when containers may get addresses. Nil: they may.
	Ready <-chan struct{}

	// Fit says which network or route of this host a pool or a block overlaps, of which the node must use nothing then. Nil: it
	// may use all.
	Fit func(netip.Prefix) error

	// Failed is told why something could not be done, and Answered when all is done. Published is called when the grant
	// has other ranges. Nil: no function is called.
	Failed    func(error)
	Answered  func()
	Published func()

	needs    map[string]*blocks.Need // by the names of pools
	asks     chan *ask
	asking   []*ask                   // calls of Ask that wait
	pinned   []*ask                   // … that got their addresses a moment ago
	wants    map[string]bool          // names of pools of which the other nodes know that this one wants a part of a block
	heard    map[blocks.Key]heardWant // wants of other nodes
	answered map[blocks.Key]int64     // … their revisions when this node gave something, or tried
	leased   map[string]int           // addresses that have leases, by the names of pools
	addrs    []netip.Addr             // … themselves
	full     []string                 // names of the pools of which the node can get no more blocks
	told     string                   // what was logged last
	lacks    atomic.Bool              // the node wants more than there is

	isNewEnough bool        // the version of etcd
	said        blocks.Host // what the store has
	saidAt      time.Time
	saidLease   int64         // with which the store says that this agent runs
	sayAgain    atomic.Bool   // what the store has of Host is not what the node said
	lease       atomic.Int64  // of this agent; zero: the store has given none
	askedLease  chan struct{} // is closed when the store has been asked for one
	leaseCame   chan struct{} // the store gave one
	changed     chan struct{} // something of this node
	notices     notices       // … in the store

	machine string // identifier of the hardware; empty: unknown
	node    string // identifier in the store, once identified is closed

	identify   sync.Once
	identified chan struct{}

	silences blocks.Silences // of the other nodes
	looked   int64           // when the member last saw them
	losses   atomic.Pointer[[]loss]
	clock    func() int64 // see blocks.Owner.Time

	// watchLeases sends to changed after leases came or went, until ctx ends.
	watchLeases func(h *host, ctx context.Context, changed chan<- struct{}) error

	// before, of tests, is called before each action, and with nil before the member waits for others.
	before func(blocks.Action)
}

// NewMember returns a member for a node that gets blocks as view says.
func NewMember(s *Store, view *View, network string, self blocks.Host) *Member {
	return &Member{Store: s, View: view, Network: network, Host: self, Leases: &disk.Store{}, Grant: &grant.File{Network: network},
		Log: slog.Default(), machine: machine(), needs: map[string]*blocks.Need{}, wants: map[string]bool{},
		heard: map[blocks.Key]heardWant{}, answered: map[blocks.Key]int64{}, asks: make(chan *ask),
		identified: make(chan struct{}), changed: make(chan struct{}, 1), leaseCame: make(chan struct{}, 1),
		notices: notices{wake: make(chan struct{}, 1)}, watchLeases: (*host).watchLeases, clock: disk.Uptime}
}

// Run does what is to be done until ctx ends. The grant stays then, so that containers get addresses while no agent
// runs.
func (m *Member) Run(ctx context.Context) error {
	h := &host{cluster: m.Store.access.Cluster, node: m.Host.Name, network: m.Network, leases: m.Leases, grant: m.Grant, fence: m.Fence}
	unlock, err := h.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := m.Leases.Reclaim(ctx, m.Network, false); err != nil { // those of earlier boots would count
		return err
	}
	o, err := m.begin(h)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	leases := make(chan struct{}, 1)
	if err := m.watchLeases(h, ctx, leases); err != nil {
		return err
	}
	m.View.tell(ctx, m.node, &m.notices)
	alive, asked := make(chan struct{}), make(chan struct{})
	m.askedLease = asked
	go func() {
		defer close(alive)
		hear := sync.OnceFunc(func() { close(asked) })
		m.Store.keepAlive(ctx, func(id int64) {
			m.lease.Store(id)
			hear()
			if id != 0 {
				notify(m.leaseCame)
			}
		})
	}()
	for m.loop(ctx, h, o, leases) {
		if o, err = m.begin(h); err != nil {
			break
		}
	}
	stop()
	<-alive
	return err
}

// begin returns an owner of what the journal and the grant say that the node has. Without a grant, it grants what the store says.
func (m *Member) begin(h *host) (*blocks.Owner, error) {
	j, err := h.loadJournal()
	if err != nil {
		return nil, err
	}
	m.identify.Do(func() {
		m.node = j.Node
		close(m.identified)
	})
	granted, deadlines, err := h.granted()
	if err != nil {
		return nil, err
	}
	o := blocks.New(m.Host.Name, m.machine, nonce(), j, granted)
	o.Taken = m.View.Taken
	o.Resume(deadlines)
	return o, nil
}

// HasNamesake reports whether the store has another node of this one's name. It waits until the node knows which it is.
func (m *Member) HasNamesake(ctx context.Context) bool {
	select {
	case <-m.identified:
	case <-ctx.Done():
		return false
	}
	return slices.ContainsFunc(m.View.All(blocks.NodeKey), func(e blocks.Entry) bool {
		return e.Value.Host.Name == m.Host.Name && e.Key.Node != m.node
	})
}

// Freed says that a block may be free that was not before.
func (m *Member) Freed() {
	if m.lacks.Load() {
		notify(m.changed)
	}
}

// loop asks the owner what is next, and does it. An action that fails is tried again after a while. It ends with ctx, or when the
// grant is lost of which the owner thinks that it stands.
func (m *Member) loop(ctx context.Context, h *host, o *blocks.Owner, leases <-chan struct{}) (isLost bool) {
	isAwake := true // something may have happened on this host since it looked
	for ctx.Err() == nil {
		var err error
		if isAwake {
			if len(o.Granted()) > 0 && h.isGrantLost() {
				m.Log.Warn("the grant is lost, and is made again", "file", grant.Path(m.Network))
				return true
			}
			var leased []netip.Addr
			if leased, err = m.Leases.Leased(m.Network); err == nil { // those that come or go later wake it
				m.addrs = leased
			}
			isAwake = false
		}
		var next time.Time
		if err == nil {
			next = m.want(o)
		}
		err = errors.Join(err, m.announce(ctx, o))
		o.SawRevision(m.View.takeRevision())
		o.Time(m.clock())
		a := o.Next()
		if m.before != nil && a != nil {
			m.before(a)
		}
		err = errors.Join(err, m.do(ctx, h, o, a))
		if ctx.Err() != nil {
			break
		}
		isFull := !slices.Equal(m.full, m.closed(o))
		if err == nil && (a != nil || isFull) {
			continue
		}
		settled := m.reportShortage(ctx, h, o, err)
		if err == nil {
			settled = errors.Join(settled, m.reclaim(ctx, o))
		}
		m.log(errors.Join(err, settled))
		if _, mayWrite := o.Standing(); m.before != nil && err == nil && (m.saidLease != 0 || !mayWrite) {
			m.before(nil)
		}
		most := again
		switch {
		case err != nil:
			most = retry
		case !next.IsZero():
			most = min(again, time.Until(next))
		}
		if len(m.asking) > 0 {
			most = min(most, retry)
		}
		if left := time.Duration(o.NextBeat() - m.clock()); left > 0 {
			most = min(most, left)
		}
		m.wait(ctx, o, leases, most)
		isAwake = true
	}
	return false
}

// log says what went wrong, once.
func (m *Member) log(err error) {
	if err == nil {
		m.told = ""
		if m.Answered != nil {
			m.Answered()
		}
		return
	}
	if m.Failed != nil {
		m.Failed(err)
	}
	if err.Error() != m.told {
		m.told = err.Error()
		m.Log.Error("the node's blocks are not as they should be; the next attempt is in a moment", "cause", err)
	}
}

// wait waits for something that happens, or for a time, after which the owner looks at the store again.
func (m *Member) wait(ctx context.Context, o *blocks.Owner, leases <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	for isNews := false; !isNews; {
		isNews = true
		select {
		case <-ctx.Done():
		case <-m.notices.wake:
			if isNews = m.notices.take(o); isNews {
				o.Changed()
			}
		case <-m.leaseCame:
			isNews = m.lease.Load() != m.saidLease
		case <-leases:
			o.LeasesChanged()
		case <-m.changed:
			o.Changed()
		case <-timer.C:
			o.Changed()
		case a := <-m.asks:
			m.takeAsks(a)
			o.Changed()
		}
	}
}

// takeAsks takes a call of Ask, and those that come with it: containers that come at once get their blocks at once.
func (m *Member) takeAsks(a *ask) {
	for {
		m.asking = append(m.asking, a)
		select {
		case a = <-m.asks:
		default:
			return
		}
	}
}

// do does an action, and tells the owner what came of it. After an error, the owner wants the same again.
func (m *Member) do(ctx context.Context, h *host, o *blocks.Owner, a blocks.Action) error {
	switch a := a.(type) {
	case blocks.Read:
		if err := m.checkVersion(ctx); err != nil {
			return err
		}
		s, err := m.Store.Read(ctx, a)
		if err != nil {
			return err
		}
		select { // etcd answers, so it is soon known whether it gave a lease: the epoch begins with what ends with it
		case <-m.askedLease:
		case <-ctx.Done():
		}
		o.Saw(s)
	case blocks.Txn:
		r, err := m.commit(ctx, a)
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
		if len(a.Holdings) > 0 && m.Ready != nil {
			select {
			case <-m.Ready:
			case <-ctx.Done():
				return nil
			}
		}
		busy, err := h.publish(ctx, a, m.grantor(o))
		if err != nil {
			return fmt.Errorf("write the grant: %w", err)
		}
		o.Published(busy)
		if !busy {
			m.Log.Info("granted", "blocks", describe(a.Holdings))
		}
		if m.Published != nil {
			m.Published()
		}
	}
	return nil
}

// checkVersion returns an error if etcd is too old for what follows a read, which is asked once.
func (m *Member) checkVersion(ctx context.Context) error {
	if m.isNewEnough {
		return nil
	}
	err := m.Store.CheckVersion(ctx)
	m.isNewEnough = err == nil
	return err
}

// describe lists holdings for people.
func describe(all []blocks.Holding) (texts []string) {
	for _, h := range all {
		texts = append(texts, h.Pool+" "+h.Block.String())
	}
	return texts
}
