package blocks

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/big"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/spec"
)

// maxCountBits bounds the blocks of a pool that are ever claimed: 2 to this power.
const maxCountBits = 62

// mostSizeBits bounds the addresses of a range that a node counts with.
const mostSizeBits = 30

// count returns how many blocks a pool has.
func (p Pool) count() uint64 { return 1 << min(p.Bits-p.Prefix.Bits(), maxCountBits) }

// Total returns how many blocks a pool has.
func (p Pool) Total() *big.Int { return new(big.Int).Lsh(big.NewInt(1), uint(p.Bits-p.Prefix.Bits())) }

// order returns the number of the block that a node tries n-th, for n below count. Nodes that went on at the neighbouring
// block would meet again there, where many claim at once. As count is a power of two, each odd stride leads to all blocks.
func (p Pool) order(node string) func(n uint64) uint64 {
	sum := sha256.Sum256([]byte(p.Name + "\x00" + node))
	first, stride := binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])|1
	return func(n uint64) uint64 { return (first + n*stride) % p.count() }
}

// block returns the block with a number.
func (p Pool) block(n uint64) netip.Prefix { return subnet(p.Prefix, p.Bits, n) }

// Part returns how many addresses a part of a block has.
func (p Pool) Part() int { return 1 << min(p.Prefix.Addr().BitLen()-p.Bits, mostSizeBits) / p.Parts }

// part returns the addresses of a part of a block.
func (p Pool) part(block netip.Prefix, n int) netip.Prefix {
	return subnet(block, block.Bits()+bits.TrailingZeros(uint(p.Parts)), uint64(n))
}

// Ranges returns the addresses of a holding.
func (p Pool) Ranges(h Holding) (ranges []netip.Prefix) {
	if h.Parts == p.all() {
		return []netip.Prefix{h.Block}
	}
	for n := range p.Parts {
		if h.Parts&(1<<n) != 0 {
			ranges = append(ranges, p.part(h.Block, n))
		}
	}
	return ranges
}

// Addresses returns how many addresses of its ranges of the pool a node can give containers: all but the first and the last
// one of each block, and the node's own.
func (p Pool) Addresses(ranges []netip.Prefix) *big.Int {
	sum := new(big.Int)
	for _, r := range ranges {
		size := new(big.Int).Lsh(big.NewInt(1), uint(r.Addr().BitLen()-r.Bits()))
		sum.Add(sum, size.Sub(size, big.NewInt(int64(p.reserved(r, ranges)))))
	}
	return sum
}

// Count returns the same, but counts no more than 2 to the power of mostSizeBits of each range: nodes need not know more.
func (p Pool) Count(ranges []netip.Prefix) (n int) {
	for _, r := range ranges {
		n += 1<<min(r.Addr().BitLen()-r.Bits(), mostSizeBits) - p.reserved(r, ranges)
	}
	return n
}

// reserved returns how many addresses of a range containers cannot have.
func (p Pool) reserved(r netip.Prefix, all []netip.Prefix) (n int) {
	if p.Pinned {
		return 0
	}
	block := netip.PrefixFrom(r.Addr(), p.Bits).Masked()
	isFirst, isLast := r.Addr() == block.Addr(), r == subnet(block, r.Bits(), 1<<(r.Bits()-p.Bits)-1)
	for _, is := range []bool{isFirst, isLast, p.Gateway(r, all).IsValid()} {
		if is {
			n++
		}
	}
	return n
}

// Gateway returns the node's own address among the containers with addresses of a range: that of the block, where the node
// has its first part, and else the second address. It is invalid if a range has none.
func (p Pool) Gateway(r netip.Prefix, all []netip.Prefix) netip.Addr {
	block := netip.PrefixFrom(r.Addr(), p.Bits).Masked()
	hasFirst := slices.ContainsFunc(all, func(q netip.Prefix) bool { return q.Contains(block.Addr()) })
	if p.Pinned || hasFirst && r.Addr() != block.Addr() {
		return netip.Addr{}
	}
	return r.Addr().Next()
}

// Block returns the block that has an address.
func (p Pool) Block(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, p.Bits).Masked() }

// IsReserved reports whether no container can have an address of the pool: it is the first, the second (the gateway) or the
// last one of a block.
func (p Pool) IsReserved(a netip.Addr) bool {
	block := p.Block(a)
	last := subnet(block, a.BitLen(), 1<<(a.BitLen()-p.Bits)-1).Addr()
	return !p.Pinned && (a == block.Addr() || a == block.Addr().Next() || a == last)
}

// Whole returns a block of the pool as a whole.
func (p Pool) Whole(block netip.Prefix) Holding { return Holding{p.Name, block, p.all()} }

// subnet returns the subnet number n of a prefix, of so many bits.
func subnet(of netip.Prefix, length int, n uint64) netip.Prefix {
	a := of.Masked().Addr().As16()
	high, low := binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
	shift := of.Addr().BitLen() - length
	if shift < 64 {
		low |= n << shift
		high |= n >> (64 - shift)
	} else {
		high |= n << (shift - 64)
	}
	binary.BigEndian.PutUint64(a[:8], high)
	binary.BigEndian.PutUint64(a[8:], low)
	addr := netip.AddrFrom16(a)
	if of.Addr().Is4() {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, length)
}

// Validate returns an error if no node can claim blocks of these pools. It names the pool.
func (c Config) Validate() error {
	for i, p := range c.Pools {
		longest := p.Prefix.Addr().BitLen() - 2 // a range has a network address, a gateway and a broadcast address
		most := longest - bits.TrailingZeros(uint(max(p.Parts, 1)))
		pool := fmt.Sprintf("pool %s (%v)", p.Name, p.Prefix)
		switch {
		case p.Name == "":
			return fmt.Errorf("pool %d (%v) has no name", i+1, p.Prefix)
		case !p.Prefix.IsValid() || p.Prefix.Addr().Is4In6():
			return fmt.Errorf("%s: this is no range of IPv4 or IPv6", pool)
		case p.Prefix != p.Prefix.Masked():
			return fmt.Errorf("%s: this is an address in a range: want %v", pool, p.Prefix.Masked())
		case p.Pinned && (p.Prefix.Bits() > longest || p.Bits != p.Prefix.Addr().BitLen() || p.Parts != 1):
			return fmt.Errorf("%s with blocks of /%d in %d parts: want a pool of at least 4 addresses, each of which is "+
				"a block, because it is pinned", pool, p.Bits, p.Parts)
		case p.Reclaim.validate() != nil:
			return fmt.Errorf("%s: %w", pool, p.Reclaim.validate())
		case p.Fence.validate() != nil:
			return fmt.Errorf("%s: %w", pool, p.Fence.validate())
		case p.Fence != "" && p.Reclaim == 0:
			return fmt.Errorf("%s has fence=%v and reclaim=%v: no node has a deadline then: want a time too, such as reclaim=2h, or "+
				"fence=%s", pool, p.Fence, p.Reclaim, noFence)
		case p.Pinned && p.Closed:
			return fmt.Errorf("%s is pinned and closed: want one of the two", pool)
		case p.Parts != 1 && p.Parts != 2 && p.Parts != 4 && p.Parts != 8:
			return fmt.Errorf("%s with blocks of %d parts: want 1, 2, 4 or 8", pool, p.Parts)
		case !p.Pinned && p.Bits < p.Prefix.Bits():
			return fmt.Errorf("%s with blocks of /%d: a block is larger than the pool: want /%d to /%d", pool, p.Bits, p.Prefix.Bits(), most)
		case !p.Pinned && p.Bits > most:
			return fmt.Errorf("%s with blocks of /%d in %d parts: a part has fewer than 4 addresses: want /%d to /%d", pool, p.Bits, p.Parts,
				p.Prefix.Bits(), most)
		}
		for _, other := range c.Pools[:i] {
			if p.Prefix.Overlaps(other.Prefix) {
				return fmt.Errorf("%s overlaps pool %s (%v)", pool, other.Name, other.Prefix)
			}
			if p.Name == other.Name {
				return fmt.Errorf("%s has the name of the pool with %v", pool, other.Prefix)
			}
		}
	}
	if len(c.Pools) == 0 {
		return fmt.Errorf("--pool: want at least one, such as main=10.64.0.0/12")
	}
	if !slices.ContainsFunc(c.Pools, func(p Pool) bool { return !p.Pinned }) {
		return fmt.Errorf("--pool: want one at least that is not pinned, for containers that ask for no address")
	}
	return nil
}

// mostName is the longest name of a pool, as of a label of the DNS.
const mostName = 63

// unusable are ranges of which no container can have an address (RFC 6890), with what they are.
var unusable = []struct {
	prefix netip.Prefix
	is     string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "for no host: it means this network"},
	{netip.MustParsePrefix("127.0.0.0/8"), "the loopback network of each host"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local: no router forwards it"},
	{netip.MustParsePrefix("224.0.0.0/4"), "for multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved: kernels send nothing to it"},
	{netip.MustParsePrefix("::/96"), "for no host: it has the loopback address"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "for IPv4 addresses in IPv6"},
	{netip.MustParsePrefix("fe80::/10"), "link-local: no router forwards it"},
	{netip.MustParsePrefix("ff00::/8"), "for multicast"},
}

// ValidateNew returns an error if no pool should be made with this name or range. A pool that a former release made may
// have it.
func (p Pool) ValidateNew() error {
	if err := spec.ValidName(p.Name); err != nil {
		return fmt.Errorf("pool %s (%v): %w", p.Name, p.Prefix, err)
	}
	if n := len(p.Name); n > mostName {
		return fmt.Errorf("pool %s (%v): the name has %d characters: want at most %d", p.Name, p.Prefix, n, mostName)
	}
	for _, u := range unusable {
		if p.Prefix.IsValid() && p.Prefix.Overlaps(u.prefix) {
			return fmt.Errorf("pool %s (%v): %v is %s: choose addresses that containers can have, such as of 10.0.0.0/8 or fd00::/8",
				p.Name, p.Prefix, u.prefix, u.is)
		}
	}
	return nil
}

// pool returns the pool with a name, as the administrator wrote it.
func (o *Owner) pool(name string) (Pool, bool) {
	pools := o.view.config.Value.Config.Pools
	i := slices.IndexFunc(pools, func(p Pool) bool { return p.Name == name })
	if i < 0 {
		return Pool{}, false
	}
	return pools[i], true
}

func (o *Owner) blockKey(h Holding) Key {
	return Key{Kind: BlockKey, Pool: h.Pool, Block: h.Block}
}

func mineKey(node string, h Holding) Key {
	return Key{Kind: MineKey, Node: node, Pool: h.Pool, Block: h.Block}
}

func graveKey(pool string, block netip.Prefix) Key {
	return Key{Kind: GraveKey, Pool: pool, Block: block}
}

// Ranges returns the addresses of a holding, as the administrator divided the pool.
func (o *Owner) Ranges(h Holding) []netip.Prefix {
	if o.view == nil {
		return nil
	}
	p, known := o.pool(h.Pool)
	if !known {
		return nil
	}
	return p.Ranges(h)
}
