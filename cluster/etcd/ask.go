package etcd

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

// An ask is a call of Ask that waits.
type ask struct {
	grant.Want
	adopts []netip.Prefix // of Adopt: the blocks
	dry    bool           // … and nothing is to be claimed
	answer chan error
	since  time.Time
	until  time.Time // when what it got is not needed, if no container has it
}

// hold is how long a node keeps a pinned address for a container that asked for it.
const hold = 2 * patience

// Ask has the member look whether the node can get more addresses, and returns when the grant says so. The error is a
// [grant.Refusal] if it cannot have an address by name.
func (m *Member) Ask(ctx context.Context, want grant.Want) error {
	return m.ask(ctx, &ask{Want: want})
}

func (m *Member) ask(ctx context.Context, a *ask) error {
	a.answer, a.since = make(chan error, 1), time.Now()
	select {
	case m.asks <- a:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-a.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pinnedPools returns the pools of single addresses that the node may have.
func (m *Member) pinnedPools(o *blocks.Owner) []blocks.Pool {
	return slices.DeleteFunc(m.allowed(o), func(p blocks.Pool) bool { return !p.Pinned })
}

// pin tells the owner which addresses of pinned pools have leases, or are asked for. It returns when to ask again if nothing
// changes.
func (m *Member) pin(o *blocks.Owner, leased []netip.Addr) (next time.Time) {
	m.pinned = slices.DeleteFunc(m.pinned, func(a *ask) bool {
		hasNone := slices.ContainsFunc(a.Pins, func(addr netip.Addr) bool { return !slices.Contains(leased, addr) })
		return !hasNone || !time.Now().Before(a.until)
	})
	pools := m.pinnedPools(o)
	var pins []blocks.Pin
	for _, addr := range leased {
		if h, isPinned := pinOf(pools, addr); isPinned {
			pins = append(pins, blocks.Pin{h})
		}
	}
	pools = slices.DeleteFunc(pools, func(p blocks.Pool) bool { return m.unfit(p) != nil })
	isDrained := m.View.Drains(o.Journal().Node)
	for _, a := range slices.Concat(m.asking, m.pinned) {
		if len(a.adopts) > 0 && !a.dry {
			if all, refused := m.adopted(o, a); refused == nil {
				pins = append(pins, all)
			}
		}
		var pin blocks.Pin
		for _, addr := range a.Pins {
			if h, isPinned := pinOf(pools, addr); isPinned {
				pin = append(pin, h)
			}
		}
		if len(pin) == len(a.Pins) && len(pin) > 0 && !isDrained {
			pins = append(pins, pin)
		}
		if !a.until.IsZero() && (next.IsZero() || a.until.Before(next)) {
			next = a.until
		}
	}
	o.Pin(pins)
	return next
}

// pinOf returns an address as a block of its pinned pool.
func pinOf(pools []blocks.Pool, addr netip.Addr) (h blocks.Holding, isPinned bool) {
	for _, p := range pools {
		if p.Prefix.Contains(addr) {
			return blocks.Holding{Pool: p.Name, Block: netip.PrefixFrom(addr, addr.BitLen()), Parts: 1}, true
		}
	}
	return h, false
}

// askingOf returns how many calls want an address of a family of which these are the pools: of any, or of one that they name,
// if it is the first of those that may have free blocks.
func (m *Member) askingOf(chain []blocks.Pool, named *blocks.Pool) (calls int) {
	for _, a := range m.asking {
		of := chain
		if len(a.Pools) > 0 {
			of = slices.DeleteFunc(slices.Clone(chain), func(p blocks.Pool) bool { return !slices.Contains(a.Pools, p.Name) })
		}
		first := slices.IndexFunc(of, func(p blocks.Pool) bool { return !slices.Contains(m.full, p.Name) })
		isOfAny := named == nil && len(a.Pools) == 0
		isOfNamed := named != nil && len(a.Pools) > 0 && first >= 0 && of[first].Name == named.Name
		if len(a.adopts) == 0 && !a.names(chain[0]) && (isOfAny || isOfNamed) {
			calls++
		}
	}
	return calls
}

// names reports whether a call asks for an address of a pool's family by name.
func (a *ask) names(p blocks.Pool) bool {
	return slices.ContainsFunc(a.Pins, func(addr netip.Addr) bool { return addr.Is4() == p.Prefix.Addr().Is4() })
}

// answer answers the calls of Ask that wait, but those that another node may still give addresses. Why and hint say what the
// node lacks, also where the grant could not be written, so that it does not.
func (m *Member) answer(ctx context.Context, o *blocks.Owner, why, hint string, isUnwritten bool) error {
	var waiting []*ask
	for _, a := range m.asking {
		if len(a.adopts) > 0 {
			a.answer <- m.answerAdopt(o, a, why, hint)
			continue
		}
		starved := m.starved(o, a)
		if len(starved) > 0 && time.Since(a.since) < cedeWait && m.wantPart(ctx, o, starved, false) {
			waiting = append(waiting, a)
			continue
		}
		err := m.noPin(o, a, why, hint)
		if err == nil && len(starved) > 0 && len(a.Pools) > 0 {
			why, hint := m.exhausted(ctx, o, starved)
			err = &grant.Refusal{Why: why, Hint: hint}
		}
		if err == nil && isUnwritten {
			err = &grant.Refusal{Why: why, Hint: hint}
		}
		if err == nil && len(a.Pins) > 0 {
			a.until = time.Now().Add(hold)
			m.pinned = append(m.pinned, a)
		}
		a.answer <- err
	}
	m.asking = waiting
	bare := m.bare(o)
	isWanting := len(bare) > 0 && m.wantPart(ctx, o, bare, true)
	if len(waiting) > 0 || isWanting {
		return nil
	}
	return m.wantNothing(ctx, o)
}

// noPin says why the node does not have an address that was asked for by name.
func (m *Member) noPin(o *blocks.Owner, a *ask, why, hint string) error {
	pools := m.pinnedPools(o)
	var refusal error
	for _, addr := range a.Pins {
		h, isPinned := pinOf(pools, addr)
		if slices.Contains(o.Granted(), h) {
			continue
		}
		if taken := o.TakenBy(h); taken.Revision != 0 { // because of which the node has none of the others, either
			return m.takenBy(addr, taken)
		}
		r := &grant.Refusal{Why: why, Hint: hint}
		in := slices.IndexFunc(pools, func(p blocks.Pool) bool { return p.Name == h.Pool })
		switch {
		case !isPinned:
			r.Why, r.Hint = fmt.Sprintf("no pinned pool of the node has the address %v", addr), "`fairlead cluster pools` lists the pools."
		case m.unfit(pools[in]) != nil:
			r.Why, r.Hint = m.unfit(pools[in]).Error(), "Give the cluster another pinned pool."
		case why == "":
			r.Why, r.Hint = fmt.Sprintf("etcd does not say yet who has the address %v", addr), "Try again."
		}
		refusal = r
	}
	return refusal
}

// takenBy says which other node has an address, by the entry in etcd.
func (m *Member) takenBy(addr netip.Addr, taken blocks.Entry) *grant.Refusal {
	node := taken.Value.Node
	if len(taken.Value.Owners) > 0 {
		node = taken.Value.Owners[0]
	}
	if name := m.View.Names()[node]; name != "" {
		node = name
	}
	if taken.Key.Kind == blocks.GraveKey {
		return &grant.Refusal{Why: fmt.Sprintf("the address %v rests, because the node %s, which had it, was forgotten or silent", addr, node),
			Hint: "Try again ten minutes after that."}
	}
	return &grant.Refusal{Why: fmt.Sprintf("a container on the node %s has the address %v", node, addr),
		Hint: "Remove that container; if the node is gone for good, `fairlead cluster forget " + node + "`."}
}
