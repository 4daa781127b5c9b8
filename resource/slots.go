package resource

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
)

// A slot is where claims are gathered: those of one port, or those of ranges that are in one block of 16, 256,
// 4096 or all ports and in none that is smaller; of one family, of the same conditions, of one protocol. So
// whatever is claimed of a port stands in five slots, and a slot of ranges has few of them, for those that
// lie about the same border share it with nothing that has no port in common with them.
type slot struct {
	portMaps
	proto byte
	level uint8 // 0 is a port, and n are 16^n
	base  uint16
}

// slotOf is where the claims of exactly these ports stand.
func (p portMaps) slotOf(proto byte, first, last uint16) slot {
	level := uint8(0)
	for first>>(4*level) != last>>(4*level) {
		level++
	}
	return p.slotAt(proto, level, first)
}

// slotAt is the slot of a level that has a port.
func (p portMaps) slotAt(proto byte, level uint8, port uint16) slot {
	return slot{p, proto, level, port >> (4 * level) << (4 * level)}
}

// slotsAt are the slots that any claim of a port stands in.
func (p portMaps) slotsAt(proto byte, port uint16) (all []slot) {
	for level := range uint8(5) {
		all = append(all, p.slotAt(proto, level, port))
	}
	return all
}

// key is what the claims of a slot are gathered under.
func (s slot) key() string { return s.claims.Name + " " + string(s.claimKey(0)) }

// claimKey is the key of the nth claim of the slot.
func (s slot) claimKey(n int) []byte {
	return kernel.NFTKey(s.proto, s.base, uint32(s.level)<<24|uint32(n))
}

// A block is as many ports as share a mark, which says that a claim begins among them. Whoever wants a range
// need not ask for each of its ports then. No mark is counted: who takes the last claim away looks.
type block struct {
	portMaps
	proto byte
	base  uint16
}

const blockSize = 64

func (p portMaps) blockOf(proto byte, port uint16) block {
	return block{p, proto, port / blockSize * blockSize}
}

// blocks are those that ports from first to last are in.
func (p portMaps) blocks(proto byte, first, last uint16) (all []block) {
	for base := int(p.blockOf(proto, first).base); base <= int(last); base += blockSize {
		all = append(all, block{p, proto, uint16(base)})
	}
	return all
}

// slots are those where what begins in a part of the block stands.
func (b block) slots(first, last uint16) (all []slot) {
	for port := max(int(b.base), int(first)); port <= min(int(b.base)+blockSize-1, int(last)); port++ {
		all = append(all, b.slotsAt(b.proto, uint16(port))...)
	}
	return all
}

// has reports whether a claim begins in the block.
func (b block) has(s slot, c claim) bool {
	return s.claims.Name == b.claims.Name && s.proto == b.proto && c.first/blockSize*blockSize == b.base
}

// mark is the mark of a block, among the claims.
func (b block) mark() kernel.NFTElem {
	none := netip.IPv4Unspecified()
	if b.v6 {
		none = netip.IPv6Unspecified()
	}
	return kernel.NFTElem{Set: b.claims, Key: kernel.NFTKey(b.proto, b.base, uint32(0xff)<<24),
		Data: kernel.NFTKey(none, none, uint32(0), uint32(0), uint32(0)), Comment: "claims begin in these 64 ports"}
}

// around are the slots where any claim stands that may have a port in common with what is wanted, and the marks
// that what is wanted lacks.
func (f filter) around(want []wanted) (slots []slot, lacking []kernel.NFTElem, err error) {
	var blocks []block
	var marks []kernel.NFTElem
	number := map[string]int{}
	for _, w := range want {
		for _, b := range w.blocks(w.proto, w.first, w.last) {
			if _, ok := number[place(b.mark())]; !ok {
				number[place(b.mark())] = len(blocks)
				blocks, marks = append(blocks, b), append(marks, b.mark())
			}
		}
	}
	found, err := f.Get(marks...)
	if err != nil {
		return nil, nil, err
	}
	lacks := make([]bool, len(blocks))
	for _, w := range want {
		slots = append(slots, w.slotsAt(w.proto, w.first)...)
		begins := number[place(w.blockOf(w.proto, w.first).mark())]
		lacks[begins] = found[begins] == nil
		if w.last == w.first {
			continue
		}
		for _, b := range w.blocks(w.proto, w.first, w.last) {
			if found[number[place(b.mark())]] != nil {
				slots = append(slots, b.slots(w.first, w.last)...)
			}
		}
	}
	for i, l := range lacks {
		if l {
			lacking = append(lacking, marks[i])
		}
	}
	return slots, lacking, nil
}

// unmark writes into b the marks of blocks that lost the last claim that began there.
func (f filter) unmark(b *kernel.NFTBatch, m claimants) error {
	var blocks []block
	seen := map[string]bool{}
	for _, c := range m {
		for _, d := range c.before {
			if bl := c.blockOf(c.proto, d.first); !seen[place(bl.mark())] && !c.still(d) {
				seen[place(bl.mark())] = true
				blocks = append(blocks, bl)
			}
		}
	}
	for _, bl := range blocks {
		if begins(m, bl) {
			continue
		}
		unknown := slices.DeleteFunc(bl.slots(0, 65535), func(s slot) bool { return m[s.key()] != nil })
		more, err := f.claims(unknown)
		if err != nil {
			return err
		}
		if begins(more, bl) {
			continue
		}
		found, err := f.Get(bl.mark())
		if err != nil {
			return err
		}
		if found[0] != nil {
			b.Delete(*found[0])
		}
	}
	return nil
}

// begins reports whether any of the claims that shall be begins in a block.
func begins(m claimants, b block) bool {
	for _, c := range m {
		for _, d := range c.after {
			if b.has(c.slot, d) {
				return true
			}
		}
	}
	return false
}
