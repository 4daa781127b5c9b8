package blocks

import "time"

// A Need keeps blocks of a pool for a while after the node needed them, because it may need them again soon.
type Need struct {
	Idle time.Duration // a block is given back when it was not needed for so long

	blocks int       // that are wanted now
	peak   int       // … and were needed since
	since  time.Time // … fewer were; zero: they are needed
}

// Blocks returns how many blocks the node wants, at a time at which it needs so many and owns some. What it owns when it
// is first asked, it keeps for the idle time. Next is when to ask again if nothing changes; zero: never.
func (n *Need) Blocks(now time.Time, needed, owned int) (blocks int, next time.Time) {
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

// Usable returns how many addresses of a block containers can have, as [Pool.Count] counts: all but the first, the gateway and the
// last one.
func (p Pool) Usable() int { return 1<<min(p.Prefix.Addr().BitLen()-p.Bits, mostSizeBits) - 3 }

// Blocks returns how many blocks have so many addresses for containers.
func (p Pool) Blocks(addresses int) int { return (addresses + p.Usable() - 1) / p.Usable() }
