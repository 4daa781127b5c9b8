package disk

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
)

// base is the first address of a's block.
func base(a netip.Addr) netip.Addr {
	b := a.As16()
	b[15] = 0
	b[14] &^= byte(perBlock>>8 - 1)
	out := netip.AddrFrom16(b)
	if a.Is4() {
		return out.Unmap()
	}
	return out
}

// place is the position of a in its block.
func place(a netip.Addr) int {
	b := a.As16()
	return int(binary.BigEndian.Uint16(b[14:])) % perBlock
}

// above is the first address of the blocks that share a top with a, and the position of a's among them.
func above(a netip.Addr) (from netip.Addr, at int) {
	b := a.As16()
	at = int(b[13]&0x0f)<<6 | int(b[14])>>2
	b[13], b[14], b[15] = b[13]&0xf0, 0, 0
	if from = netip.AddrFrom16(b); a.Is4() {
		from = from.Unmap()
	}
	return from, at
}

// A where is the kind of a page and the first address that it is about.
type where struct {
	kind uint32
	from netip.Addr
}

func (w where) key() key {
	if w.kind == kindTop {
		return keyOf("top", w.from.String())
	}
	return keyOf("block", w.from.String())
}

// find is the number of the page, or 0.
func (x *index) find(w where) uint32 {
	if n := x.found[w]; n != 0 {
		return n
	}
	for _, s := range x.lookup(w.key()) {
		if s.kind == w.kind && s.page > x.buckets {
			if x.found == nil {
				x.found = map[where]uint32{}
			}
			x.found[w] = s.page
			return s.page
		}
	}
	return 0
}

// ensure finds the page, or makes it. It is 0 where that fails.
func (x *index) ensure(w where) uint32 {
	n := x.find(w)
	if n == 0 {
		x.add(slot{key: w.key(), addr: w.from, kind: w.kind})
		n = x.find(w) // add said why there is none
	}
	return n
}

// block is the page of a's block, or 0.
func (x *index) block(a netip.Addr) uint32 { return x.find(where{kindBlock, base(a)}) }

// mark writes down what became of a.
func (x *index) mark(a netip.Addr, word uint32) {
	was := x.word(a)
	if word == was {
		return
	}
	n := x.ensure(where{kindBlock, base(a)})
	if n == 0 {
		return
	}
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], word)
	x.write(n, place(a)*4, b[:])
	switch taken {
	case word:
		x.count(a, 1)
	case was:
		x.count(a, -1)
	}
}

// count writes down that in a's block so many more are taken.
func (x *index) count(a netip.Addr, more int) {
	from, at := above(a)
	n := x.ensure(where{kindTop, from})
	if n == 0 {
		return
	}
	p := x.page(n)
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], uint32(int(binary.LittleEndian.Uint32(p[at*4:]))+more))
	x.write(n, at*4, b[:])
	x.topAt = 0
}

// full reports whether all of a's block is taken.
func (x *index) full(a netip.Addr) bool {
	from, at := above(a)
	n := x.find(where{kindTop, from})
	if n == 0 {
		return false
	}
	if n != x.topAt {
		x.top, x.topAt = *x.page(n), n
	}
	return binary.LittleEndian.Uint32(x.top[at*4:]) == perBlock
}

// word is what became of a: 0 nothing, taken, when it was released, or until when it is held for a sticky key.
func (x *index) word(a netip.Addr) uint32 {
	n := x.block(a)
	if n == 0 {
		return 0
	}
	p := x.page(n)
	return binary.LittleEndian.Uint32(p[place(a)*4:])
}

// How good a find of free's is.
const (
	nowhere = iota
	held    // for somebody's sticky key
	tired   // it has not rested since its release
	rested  // or was never given out
)

// free finds an address that is not taken: the first one in order that has rested since its release; where
// there is none, the one that has rested longest; else the one whose sticky key has the shortest time left.
func (x *index) free(order []ipam.Span, now clock, rest time.Duration) (found netip.Addr, how int) {
	var since uint32
	for _, sp := range order {
		for a := sp.First; a.IsValid() && !sp.Last.Less(a); a = ipam.Plus(base(a), perBlock-1).Next() {
			if x.full(a) {
				continue
			}
			from, end := base(a), perBlock-1
			if from == base(sp.Last) {
				end = place(sp.Last)
			}
			p := &page{} // no block: nothing there is taken
			if n := x.block(a); n != 0 {
				p = x.page(n)
			}
			for i := place(a); i <= end; i++ {
				word := binary.LittleEndian.Uint32(p[i*4:])
				if word == taken {
					continue
				}
				at := ipam.Plus(from, uint64(i))
				switch {
				case at == sp.Gateway:
				case word == 0, isHold(word) && now.left(word) <= 0, !isHold(word) && now.since(word) >= rest:
					return at, rested
				case isHold(word) && (how == nowhere || how == held && word < since):
					found, how, since = at, held, word
				case !isHold(word) && (how < tired || word < since):
					found, how, since = at, tired, word
				}
			}
		}
	}
	return found, how
}

// used counts the taken addresses of set that are not reserved.
func (x *index) used(set ipam.Set, reserved ipam.Reserved) ipam.Count {
	return x.census(set, reserved, 0, 0).Used
}

// census counts what becomes of the addresses of set that are not reserved.
func (x *index) census(set ipam.Set, reserved ipam.Reserved, now clock, rest time.Duration) (u ipam.Use) {
	var n, resting, holding uint64
	x.all(func(s slot) {
		if s.kind != kindBlock {
			return
		}
		p := x.page(s.page)
		for i := range perBlock {
			word := binary.LittleEndian.Uint32(p[i*4:])
			if word == 0 {
				continue
			}
			a := ipam.Plus(s.addr, uint64(i))
			r, ok := set.Find(a)
			switch {
			case !ok || a == r.Gateway || reserved.Contains(a):
			case word == taken:
				n++
			case isHold(word) && now.left(word) > 0:
				holding++
			case !isHold(word) && now.since(word) < rest:
				resting++
			}
		}
	})
	u.Used, u.Held, u.Resting = ipam.CountOf(n), ipam.CountOf(holding), ipam.CountOf(resting)
	return u
}

// A clock is a time of this boot in tenths of a second, beginning with 1.
type clock uint32

func (c clock) since(word uint32) time.Duration {
	return time.Duration(int64(c)-int64(word)) * (time.Second / 10)
}

// The time until which an address is held is a word with this bit, and seconds of this boot in the others.
const holdBit = 1 << 31

func isHold(word uint32) bool { return word != taken && word&holdBit != 0 }

// held is the word of an address that is held for a while from c on.
func (c clock) held(left time.Duration) uint32 {
	return holdBit | uint32(min(int64(c/10)+int64((left+time.Second-1)/time.Second), holdBit-2))
}

// left is for how long, at c, an address with this word is still held.
func (c clock) left(word uint32) time.Duration {
	return time.Duration(int64(word&^holdBit)-int64(c/10)) * time.Second
}
