package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/ipam"
)

// pools returns those from which the node claims blocks, in their order.
func (m *Member) pools(o *blocks.Owner) []blocks.Pool {
	return slices.DeleteFunc(m.allowed(o), func(p blocks.Pool) bool { return p.Pinned })
}

// allowed returns the pools that the node may use, in their order.
func (m *Member) allowed(o *blocks.Owner) (list []blocks.Pool) {
	all := o.Pools()
	if len(m.Pools) == 0 {
		return slices.Clone(all)
	}
	for _, name := range m.Pools {
		if i := slices.IndexFunc(all, func(p blocks.Pool) bool { return p.Name == name }); i >= 0 {
			list = append(list, all[i])
		}
	}
	return list
}

// chains returns pools by their families.
func chains(pools []blocks.Pool) (list [][]blocks.Pool) {
	for _, is4 := range []bool{true, false} {
		var chain []blocks.Pool
		for _, p := range pools {
			if p.Prefix.Addr().Is4() == is4 {
				chain = append(chain, p)
			}
		}
		if len(chain) > 0 {
			list = append(list, chain)
		}
	}
	return list
}

// closed returns the names of the pools of which the node can get no more blocks.
func (m *Member) closed(o *blocks.Owner) (names []string) {
	for _, p := range m.pools(o) {
		if m.unfit(p) != nil || o.Exhausted(p.Name) {
			names = append(names, p.Name)
		}
	}
	return names
}

// unfit says why the node must not claim blocks of a pool that nothing of its own is in.
func (m *Member) unfit(p blocks.Pool) error {
	if p.Closed {
		return closedError{p}
	}
	if err := m.fits(p.Prefix); err != nil {
		return fmt.Errorf("the pool %s (%v) %w", p.Name, p.Prefix, err)
	}
	return nil
}

// hasOpen reports whether nodes may claim any block of one of the pools.
func hasOpen(pools []blocks.Pool) bool {
	return slices.ContainsFunc(pools, func(p blocks.Pool) bool { return !p.Closed })
}

// A closedError says that nodes may not claim any block of a pool.
type closedError struct{ blocks.Pool }

func (e closedError) Error() string {
	return fmt.Sprintf("the pool %s (%v) is closed: nodes claim only blocks in which they have containers", e.Name, e.Prefix)
}

// want tells the owner how many blocks the leases need. It returns when to ask again if nothing changes.
func (m *Member) want(o *blocks.Owner) (next time.Time) {
	pools := m.pools(o)
	m.leased = map[string]int{}
	for _, a := range m.addrs {
		for _, p := range pools {
			if p.Prefix.Contains(a) {
				m.leased[p.Name]++
			}
		}
	}
	next = m.pin(o, m.addrs)
	if due := m.cede(o); !due.IsZero() && (next.IsZero() || due.Before(next)) {
		next = due
	}
	owned := map[string]int{}
	for _, held := range o.Owned() {
		owned[held.Pool]++
	}
	lost := map[string]int{} // addresses of blocks of which others have parts
	for _, p := range pools {
		lost[p.Name] = max(0, owned[p.Name]*p.Usable()-p.Count(rangesOf(p, o.Owned())))
	}
	for _, p := range o.Pools() {
		if !slices.ContainsFunc(pools, func(own blocks.Pool) bool { return own.Name == p.Name }) {
			o.Want(p.Name, 0)
		}
	}
	m.full = m.closed(o)
	for _, chain := range chains(pools) {
		due := m.wantOf(o, chain, owned, added(m.leased, lost))
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	return next
}

// wantOf tells the owner how many blocks of each pool of a family the leases need. The first pools come first, as long as
// they have free blocks. Owned are blocks and leased are addresses, by the names of pools.
func (m *Member) wantOf(o *blocks.Owner, chain []blocks.Pool, owned, leased map[string]int) (next time.Time) {
	drains := m.View.Drains(o.Journal().Node)
	missing, least := 0, m.Least // addresses, and blocks
	for _, p := range chain {
		missing += leased[p.Name]
	}
	asking := m.askingOf(chain, nil)
	if spare := m.spare(chain[0]); spare > 0 {
		missing += spare + asking
	} else {
		missing = asking
	}
	if drains {
		missing, least = 0, 0
	}
	hasFree := slices.ContainsFunc(chain, func(p blocks.Pool) bool { return !slices.Contains(m.full, p.Name) })
	isServed := hasFree || !hasOpen(chain) && hasOpen(m.pools(o)) // containers get addresses without closed pools
	for i, p := range chain {
		needed := max(least, p.Blocks(missing))
		runsEmpty := p.Closed && isServed // what is free of it is to go back, and does not count
		if runsEmpty {
			needed = p.Blocks(m.leased[p.Name])
		}
		if asking := m.askingOf(chain, &p); asking > 0 {
			needed = max(needed, p.Blocks(leased[p.Name]+asking))
		}
		isLast := i == len(chain)-1
		isWanted := m.wants[p.Name] && !drains
		isFull := slices.Contains(m.full, p.Name) && !isWanted
		if isWanted {
			needed = max(needed, owned[p.Name]+1)
		}
		if isFull && !isLast {
			needed = min(needed, owned[p.Name])
		}
		n, due := m.need(p, drains).Blocks(time.Now(), needed, owned[p.Name])
		if isFull && !isLast || m.unfit(p) != nil {
			n = min(n, owned[p.Name])
		}
		o.Want(p.Name, n)
		if runsEmpty {
			missing = max(0, missing-leased[p.Name])
		} else {
			missing, least = max(0, missing-n*p.Usable()), max(0, least-n)
		}
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	return next
}

// added returns the sums of two counts.
func added(a, b map[string]int) map[string]int {
	sums := maps.Clone(a)
	for name, n := range b {
		sums[name] += n
	}
	return sums
}

// rangesOf returns the addresses of a pool among holdings.
func rangesOf(p blocks.Pool, all []blocks.Holding) (ranges []netip.Prefix) {
	for _, held := range all {
		if held.Pool == p.Name {
			ranges = append(ranges, p.Ranges(held)...)
		}
	}
	return ranges
}

// need returns what keeps blocks of a pool for a while.
func (m *Member) need(p blocks.Pool, drains bool) *blocks.Need {
	need := m.needs[p.Name]
	if need == nil {
		need = new(blocks.Need)
		m.needs[p.Name] = need
	}
	need.Idle = m.Idle
	if drains {
		need.Idle = 0
	}
	return need
}

// spare returns how many addresses are to be free at least.
func (m *Member) spare(p blocks.Pool) int {
	if m.Spare < 0 {
		return p.Usable()
	}
	return m.Spare
}

// reportShortage is called when the owner has nothing to do, or something failed: it says in the grant what is missing, and
// answers those who asked.
func (m *Member) reportShortage(ctx context.Context, h *host, o *blocks.Owner, failure error) error {
	why, hint := m.shortage(ctx, o, failure)
	m.lacks.Store(why != "")
	_, known := o.Standing()
	ranges, _ := m.grantor(o).ranges(o.Granted())
	isUnsaid := false // the node serves one family alone since the pools of the other one were closed
	err := h.change(ctx, func(g *grant.Grant) {
		isUnsaid = known && len(g.Ranges) == 0 && len(ranges) > 0
		g.Reserve, g.Pools = m.Reserve, grantPools(m.allowed(o), g.Pools)
		if m.leased != nil { // it is known which containers have ended
			g.Lost = slices.DeleteFunc(slices.Clone(g.Lost), func(a netip.Addr) bool { return !slices.Contains(m.addrs, a) })
		}
		if failure != nil && len(g.Ranges) == 0 && g.Missing == "" || known || failure != nil && len(m.asking) > 0 {
			g.Cluster, g.Node, g.Missing, g.Hint = h.cluster, h.node, why, hint
		}
	})
	if isUnsaid && o.PublishAgain() {
		notify(m.changed)
	}
	if err != nil && why == "" {
		why, hint = m.shortage(ctx, o, err)
	}
	return errors.Join(err, m.answer(ctx, o, why, hint, err != nil))
}

// conflict says that the store has a block of this node as another node's, which may be this node before its journal was lost.
func (m *Member) conflict(h blocks.Holding) (why, hint string) {
	names := m.View.Names()
	for _, owner := range m.View.get(blocks.Key{Kind: blocks.BlockKey, Pool: h.Pool, Block: h.Block}).Value.Owners {
		if owner != m.node && names[owner] == m.Host.Name {
			return fmt.Sprintf("etcd has the block %v of this node under its former identifier %s: the journal in %s was lost", h.Block, owner, Dir),
				fmt.Sprintf("If no other machine has this node's name: `fairlead cluster forget %s --confirmed-dead`, and then "+
					"`fairlead cluster readopt --done`.", owner)
		}
	}
	return fmt.Sprintf("etcd was restored from a copy, in which another node has the block %v of this node", h.Block),
		"Start the agent of that node, or forget the node: `fairlead cluster blocks` names it."
}

// shortage says why the node has no more addresses, and who could give some. It is empty if the node has what it wants.
func (m *Member) shortage(ctx context.Context, o *blocks.Owner, failure error) (why, hint string) {
	if failure != nil && directory.OfThisHost(failure) {
		return failure.Error(), "The node keeps what it has. It gets more when this is mended: the agent tries again by itself."
	}
	if failure != nil {
		return failure.Error(), "The node keeps what it has. It gets more when etcd answers."
	}
	if c := o.Conflict(); c != nil {
		return m.conflict(*c)
	}
	pools := m.pools(o)
	if len(pools) == 0 {
		return fmt.Sprintf("the cluster %s has none of the pools %s (--pool of fairlead-agent)", m.Store.access.Cluster,
			strings.Join(m.Pools, ", ")), "`fairlead cluster pools` lists them."
	}
	if m.View.Drains(o.Journal().Node) {
		return "the node is drained: it claims no addresses", "`fairlead cluster drain --undo " + m.Host.Name + "` ends that."
	}
	for _, chain := range chains(pools) {
		last := chain[len(chain)-1]
		isOpen := slices.ContainsFunc(chain, func(p blocks.Pool) bool { return !slices.Contains(m.full, p.Name) })
		err := m.unfit(last)
		var closed closedError
		switch {
		case isOpen:
		case errors.As(err, &closed):
			why, hint = err.Error(), m.afterClosing(ctx, o, closed.Pool)
		case err != nil:
			return err.Error(), "Give the cluster another pool, or this node another --pool."
		case o.Wants(last.Name):
			return m.exhausted(ctx, o, chain)
		}
	}
	if lost := m.strays(o); len(lost) > 0 {
		return fmt.Sprintf("the cluster did not hear of this node for so long that others may have the addresses of %d of its containers, such "+
				"as %v", len(lost), lost[0]),
			"End these containers: `fairlead ipam ls " + m.Network + "` lists all with their addresses."
	}
	return why, hint
}

// afterClosing says what to do about a pool that is closed: containers of other networks of this host may have addresses of it.
func (m *Member) afterClosing(ctx context.Context, o *blocks.Owner, p blocks.Pool) (hint string) {
	own := rangesOf(p, o.Owned())
	isToAdopt := func(l ipam.Lease) bool {
		return p.Prefix.Contains(l.Address) && !slices.ContainsFunc(own, func(r netip.Prefix) bool { return r.Contains(l.Address) })
	}
	networks, _ := m.Leases.Networks(ctx) // of what cannot be read, nothing is adopted
	for _, network := range networks {
		book, err := m.Leases.Look(ctx, network)
		if network != m.Network && err == nil && slices.ContainsFunc(book.Leases, isToAdopt) {
			return fmt.Sprintf("`fairlead cluster adopt --pool %[1]s` takes over the containers of the network %[2]s; do so on each node with "+
				"such, and then `fairlead cluster pools open %[1]s`.", p.Name, network)
		}
	}
	return fmt.Sprintf("`fairlead cluster pools open %s` lets nodes claim any block of it; or add another pool: `fairlead cluster pools add`.", p.Name)
}

// exhausted says that no pool of a family has a free block, or that all are closed, and which nodes have most addresses that nothing
// uses.
func (m *Member) exhausted(ctx context.Context, o *blocks.Owner, chain []blocks.Pool) (why, hint string) {
	if !hasOpen(chain) {
		return closedError{chain[0]}.Error(), m.afterClosing(ctx, o, chain[0])
	}
	var names []string
	for _, p := range chain {
		names = append(names, fmt.Sprintf("%s (%v)", p.Name, p.Prefix))
	}
	why = "no block is free in the pool " + strings.Join(names, ", ")
	own := new(big.Int)
	for _, p := range chain {
		own.Add(own, p.Addresses(rangesOf(p, o.Granted())))
	}
	if own.Sign() > 0 {
		why += fmt.Sprintf(", of which this node has %v addresses", own)
	}
	type donor struct {
		name         string
		free, usable *big.Int
	}
	var donors []donor
	ranges := m.View.Ranges()
	for _, e := range m.View.All(blocks.NodeKey) {
		d := donor{e.Value.Host.Name, new(big.Int), new(big.Int)}
		for _, p := range chain {
			usable := p.Addresses(ranges[e.Key.Node][p.Name])
			d.usable.Add(d.usable, usable)
			if free := usable.Sub(usable, big.NewInt(int64(e.Value.Host.Leased[p.Name]))); free.Sign() > 0 {
				d.free.Add(d.free, free)
			}
		}
		if e.Key.Node != o.Journal().Node && d.free.Sign() > 0 {
			donors = append(donors, d)
		}
	}
	slices.SortFunc(donors, func(a, b donor) int { return b.free.Cmp(a.free) })
	if len(donors) == 0 {
		return why, "Add a pool: `fairlead cluster pools add`."
	}
	var texts []string
	for _, d := range donors[:min(3, len(donors))] {
		texts = append(texts, fmt.Sprintf("%s (%v of %v addresses are free there)", d.name, d.free, d.usable))
	}
	return why, fmt.Sprintf("Add a pool (`fairlead cluster pools add`), or move containers: most is free on %s.",
		strings.Join(texts, ", "))
}

// announce tells the store that the agent runs, how others reach the node, and what it has left, if that is news: in the
// transaction that begins the agent's epoch, or in one of its own.
func (m *Member) announce(ctx context.Context, o *blocks.Owner) error {
	news := m.news(o)
	o.Announce(news)
	if news == nil {
		return nil
	}
	t, ok := o.Announcing(*news)
	if !ok {
		return nil
	}
	r, err := m.commit(ctx, t)
	if err == nil && !r.Done {
		o.Changed()
	}
	return err
}

// news returns what the store should say of the node, or nil if it does.
func (m *Member) news(o *blocks.Owner) *blocks.Announcement {
	now := m.Host
	now.Leased, now.LeasedAt = m.leased, time.Now().Unix()
	usable := 0
	for _, p := range m.pools(o) {
		usable += p.Count(rangesOf(p, o.Owned()))
	}
	lease := m.lease.Load()
	if lease == 0 || lease == m.saidLease && !m.sayAgain.Load() && !m.isNews(now, usable) {
		return nil
	}
	return &blocks.Announcement{Host: now, Lease: lease}
}

// commit does a transaction, which may have an announcement.
func (m *Member) commit(ctx context.Context, t blocks.Txn) (blocks.Outcome, error) {
	i := slices.IndexFunc(t.Put, func(p blocks.Pair) bool { return p.Key.Kind == blocks.NodeKey })
	isAsked := i >= 0 && m.sayAgain.Swap(false)
	r, err := m.Store.Commit(ctx, t)
	switch {
	case i >= 0 && r.Done:
		m.said, m.saidAt = *t.Put[i].Value.Host, time.Now()
		if t.Lease != m.saidLease { // and what ended with the former one has to be said again
			m.saidLease = t.Lease
			clear(m.wants)
		}
	case isAsked:
		m.sayAgain.Store(true)
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) { // nothing else may wait for another one
		m.lease.CompareAndSwap(t.Lease, 0)
	}
	return r, err
}

// SayAgain has the store told again how others reach the node, because it says something else. Who may write the fleet's
// keys can change those of other nodes.
func (m *Member) SayAgain() {
	m.sayAgain.Store(true)
	notify(m.changed)
}

// rarely is the time after which the store is told of any change of how many addresses have leases.
const rarely = 10 * time.Minute

// isNews reports whether the others should know: at once how they reach the node. How many of its addresses have leases, they
// should know after a minute if a tenth of all changed, or there are some and were none, or the reverse. Of less, they should know
// after ten minutes: a write each would be too many in a large fleet.
func (m *Member) isNews(now blocks.Host, usable int) bool {
	was := m.said
	if was.Name == "" || !slices.Equal(was.Endpoints, now.Endpoints) || was.MAC != now.MAC ||
		!reflect.DeepEqual(was.Tunnel, now.Tunnel) {
		return true
	}
	before, leased := total(was.Leased), total(now.Leased)
	moved := max(before, leased) - min(before, leased)
	age := time.Since(m.saidAt)
	isMuch := moved*10 > usable
	isFirstOrLast := (before == 0) != (leased == 0)
	return age >= again && (isMuch || isFirstOrLast) || age >= rarely && moved > 0
}

func total(counts map[string]int) (sum int) {
	for n := range maps.Values(counts) {
		sum += n
	}
	return sum
}
