package nft

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Type is the type of one field of a set's key or data.
type Type uint8

// The types, with the numbers of nft(8). nft(8) needs the numbers to print a set that it has not made.
const (
	Addr    Type = 7  // ipv4_addr
	Addr6   Type = 8  // ipv6_addr
	Ether   Type = 9  // ether_addr
	Proto   Type = 12 // inet_proto
	Service Type = 13 // inet_service
	Mark    Type = 19 // mark
	Ifname  Type = 41 // ifname
)

// Size returns the length of a value in bytes, and 0 for a type that is not known here.
func (t Type) Size() int {
	switch t {
	case Addr, Mark:
		return 4
	case Proto:
		return 1
	case Service:
		return 2
	case Ether:
		return 6
	case Addr6, Ifname:
		return 16
	}
	return 0
}

// A Set is a set, or a map if Data is given. There are no maps to chains (verdict maps). For each element that is
// added to one, the kernel validates the whole table element by element, which takes 15 ms at 25,000 elements.
type Set struct {
	Table *Table
	Name  string
	Key   []Type // several are a concatenation
	Data  []Type

	// Interval has the keys be ranges, none of which has a key in common with another. Ranges of a concatenation (from
	// Linux 5.6 on) are elements with a KeyEnd; putting one in costs more the more there are: 7 ms at 10,000. Others
	// are what Prefix returns.
	Interval bool
	// Times has elements end after their Left.
	Times bool
	// Bits is the length of the prefixes in the keys, to which rules mask the addresses that they look up.
	Bits int
	// Of are the fields of packets that the parts of a concatenation are, where nft(8) has no type for one of them.
	Of []Field
}

// v6 reports whether addresses in keys or data are of IPv6.
func (s *Set) v6() bool { return slices.Contains(s.Key, Addr6) || slices.Contains(s.Data, Addr6) }

// typeOf is nft(8)'s number of a type or concatenation, and the length of a value.
func typeOf(types []Type) (id uint32, size int) {
	if len(types) == 1 {
		return uint32(types[0]), types[0].Size()
	}
	for _, t := range types {
		id = id<<6 | uint32(t)
		size += netlink.Align(t.Size())
	}
	return id, size
}

// keyType is typeOf the keys. nft(8) calls a field that it has no word for an integer.
func (s *Set) keyType() (id uint32, size int) {
	const integer, bits = 4, 6
	id, size = typeOf(s.Key)
	for i, f := range s.Of {
		if shift := bits * (len(s.Of) - 1 - i); f.proto == 0 {
			id = id&^(1<<bits-1<<shift) | integer<<shift
		}
	}
	return id, size
}

// Bounds are the elements of one interval: its first key, and the first one behind it if there is one. They are added
// and deleted together.
type Bounds []Elem

// ID returns a text that identifies the interval in its set.
func (b Bounds) ID() string {
	id := ""
	for _, e := range b {
		id += string(e.Key)
	}
	return id
}

// Intervals returns the intervals of which a set has the bounds, in ascending order.
func Intervals(elements []Elem) (all []Bounds) {
	slices.SortFunc(elements, func(a, b Elem) int {
		endsFirst := func(e Elem) int {
			if e.End {
				return 0
			}
			return 1
		}
		return cmp.Or(bytes.Compare(a.Key, b.Key), endsFirst(a)-endsFirst(b))
	})
	for _, e := range elements {
		switch {
		case !e.End:
			all = append(all, Bounds{e})
		case len(all) > 0: // or else it is the end that the kernel shows before the first interval
			all[len(all)-1] = append(all[len(all)-1], e)
		}
	}
	return all
}

// Prefix returns the interval of a prefix in a set of intervals of addresses.
func (s *Set) Prefix(p netip.Prefix) Bounds {
	bounds := Bounds{{Set: s, Key: Key(p.Masked().Addr())}}
	if behind := last(p).Next(); behind.IsValid() {
		bounds = append(bounds, Elem{Set: s, Key: Key(behind), End: true})
	}
	return bounds
}

// Within returns the element of an address with each one of a prefix, in a set of ranges of pairs of addresses.
func (s *Set) Within(a netip.Addr, p netip.Prefix) Elem {
	return Elem{Set: s, Key: Key(a, p.Masked().Addr()), KeyEnd: Key(a, last(p))}
}

// last returns the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i, mask := range prefixMask(uint32(len(b)), p.Bits()) {
		b[i] |= ^mask
	}
	end, _ := netip.AddrFromSlice(b)
	return end
}

func (s *Set) question(answer func(set []byte)) *question {
	return &question{op: unix.NFT_MSG_GETSET, family: s.Table.Family, answer: answer,
		fill: s.Table.named(unix.NFTA_SET_NAME, s.Name)}
}

// timesOut reports whether the kernel's set is one whose elements can have timeouts.
func timesOut(set []byte) bool {
	return netlink.Attr32(set, unix.NFTA_SET_FLAGS)&unix.NFT_SET_TIMEOUT != 0
}
