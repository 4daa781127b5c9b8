package blocks

import "time"

// A Need is how many addresses of a pool a node keeps ready, so that no container waits for the store.
type Need struct {
	Least int           // blocks that the node has always
	Spare int           // addresses that are free at least. Zero: Least is all that counts
	Idle  time.Duration // a block is given back when it was not needed for so long

	blocks int       // that are wanted now
	peak   int       // … and were needed since
	since  time.Time // … fewer were; zero: they are needed
}

// Blocks returns how many blocks the node wants, at a time at which it owns some and so many addresses have leases.
// What it owns when it is first asked, it keeps for the idle time. Next is when to ask again if nothing changes;
// zero: never.
func (n *Need) Blocks(now time.Time, p Pool, owned, leases int) (blocks int, next time.Time) {
	needed := n.Least
	if n.Spare > 0 {
		each := p.Usable()
		needed = max(needed, (leases+n.Spare+each-1)/each)
	}
	n.blocks = max(n.blocks, owned)
	if needed >= n.blocks {
		n.blocks, n.since = needed, time.Time{}
		return n.blocks, time.Time{}
	}
	if n.since.IsZero() {
		n.since, n.peak = now, needed
	}
	n.peak = max(n.peak, needed)
	if due := n.since.Add(n.Idle); now.Before(due) {
		return n.blocks, due
	}
	n.blocks, n.since = n.peak, time.Time{}
	return n.blocks, time.Time{}
}

// Usable returns how many addresses of a block containers can have: all but the first, the gateway and the last one.
func (p Pool) Usable() int { return 1<<min(p.Prefix.Addr().BitLen()-p.Bits, 30) - 3 }
