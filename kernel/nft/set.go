package nft

import (
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

func (t Type) size() int {
	switch t {
	case Proto:
		return 1
	case Service:
		return 2
	case Ether:
		return 6
	case Addr6, Ifname:
		return 16
	}
	return 4
}

// A Set is a set, or a map if Data is given. There are no maps to chains (verdict maps). For each element that is
// added to one, the kernel validates the whole table element by element, which takes 15 ms at 25,000 elements.
type Set struct {
	Table *Table
	Name  string
	Key   []Type // several are a concatenation
	Data  []Type

	// Interval has the keys be ranges, each of a concatenation that has no other element in common with it (from
	// Linux 5.6 on). Putting one in costs more the more there are: 7 ms at 10,000.
	Interval bool
	// Later says that a table which stands may lack the set: Diff makes it with a new table alone.
	Later bool
}

// typeOf is nft(8)'s number of a type or concatenation, and the length of a value.
func typeOf(types []Type) (id uint32, size int) {
	if len(types) == 1 {
		return uint32(types[0]), types[0].size()
	}
	for _, t := range types {
		id = id<<6 | uint32(t)
		size += netlink.Align(t.size())
	}
	return id, size
}

func (s *Set) question() *question {
	return &question{op: unix.NFT_MSG_GETSET, family: s.Table.Family, answer: func([]byte) {},
		fill: named(unix.NFTA_SET_TABLE, s.Table, unix.NFTA_SET_NAME, s.Name)}
}
