package kernel

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// An NFTType is the type of one field of a set's key or data.
type NFTType uint8

// The types have nft(8)'s numbers, which nft(8) needs to print a set that it did not make.
const (
	NFTAddr    NFTType = 7  // ipv4_addr
	NFTAddr6   NFTType = 8  // ipv6_addr
	NFTEther   NFTType = 9  // ether_addr
	NFTProto   NFTType = 12 // inet_proto
	NFTService NFTType = 13 // inet_service
	NFTMark    NFTType = 19 // mark
	NFTIfname  NFTType = 41 // ifname
)

func (t NFTType) size() int {
	switch t {
	case NFTProto:
		return 1
	case NFTService:
		return 2
	case NFTEther:
		return 6
	case NFTAddr6, NFTIfname:
		return 16
	}
	return 4
}

// The protocols that have ports.
const (
	TCP  = 6
	UDP  = 17
	SCTP = 132

	ICMP   = 1
	ICMPv6 = 58
)

// ParseProto is the number of tcp, udp or sctp.
func ParseProto(name string) (byte, bool) {
	switch name {
	case "tcp":
		return TCP, true
	case "udp":
		return UDP, true
	case "sctp":
		return SCTP, true
	}
	return 0, false
}

// ProtoName is the name of a protocol that ParseProto knows, or of ICMP, else its number.
func ProtoName(proto byte) string {
	switch proto {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	case ICMP:
		return "icmp"
	case ICMPv6:
		return "ipv6-icmp"
	}
	return strconv.Itoa(int(proto))
}

// An NFTSet is a set, or a map where Data is given. There are no maps to chains: each element that is added to
// one has the kernel validate the whole table, element by element, which takes 15 ms at 25,000.
type NFTSet struct {
	Table *NFTTable
	Name  string
	Key   []NFTType // several are a concatenation
	Data  []NFTType

	// Interval has the keys be ranges, each of a concatenation that has no other element in common with it (from
	// Linux 5.6 on). Putting one in costs more the more there are: 7 ms at 10,000.
	Interval bool
	// Later says that a table which stands may lack the set: Diff makes it with a new table alone.
	Later bool
}

// typeOf is nft(8)'s number of a type or concatenation, and the length of a value.
func typeOf(types []NFTType) (id uint32, size int) {
	if len(types) == 1 {
		return uint32(types[0]), types[0].size()
	}
	for _, t := range types {
		id = id<<6 | uint32(t)
		size += align4(t.size())
	}
	return id, size
}

// An NFTElem is an element of a set.
type NFTElem struct {
	Set     *NFTSet
	Key     []byte // see NFTKey
	KeyEnd  []byte // where the set has intervals: the last key of the range
	Data    []byte
	Comment string
	timeout uint64 // ms; 0: none
}

// NFTKey is the value of a key or of data, from a netip.Addr, uint8 (a protocol), uint16 (a port), uint32
// (a mark), net.HardwareAddr or string (a link's name) for each field.
func NFTKey(fields ...any) []byte {
	var b []byte
	for _, f := range fields {
		switch v := f.(type) {
		case netip.Addr:
			b = append(b, v.AsSlice()...)
		case uint8:
			b = append(b, v)
		case uint16:
			b = binary.BigEndian.AppendUint16(b, v)
		case uint32:
			b = binary.NativeEndian.AppendUint32(b, v)
		case net.HardwareAddr:
			b = append(b, v...)
		case string:
			b = append(b, append([]byte(v), make([]byte, 16)...)[:16]...)
		default:
			panic(fmt.Sprintf("nft key of %T", f))
		}
		if len(fields) > 1 {
			b = append(b, make([]byte, align4(len(b))-len(b))...)
		}
	}
	return b
}

// NFTFields takes a value apart, the reverse of NFTKey. A value of another length gives nil.
func NFTFields(types []NFTType, b []byte) []any {
	if _, size := typeOf(types); len(b) != size {
		return nil
	}
	var fields []any
	for _, t := range types {
		switch v := b[:t.size()]; t {
		case NFTAddr, NFTAddr6:
			a, _ := netip.AddrFromSlice(v)
			fields = append(fields, a)
		case NFTProto:
			fields = append(fields, v[0])
		case NFTService:
			fields = append(fields, binary.BigEndian.Uint16(v))
		case NFTMark:
			fields = append(fields, binary.NativeEndian.Uint32(v))
		case NFTEther:
			fields = append(fields, net.HardwareAddr(append([]byte(nil), v...)))
		case NFTIfname:
			fields = append(fields, text(v))
		}
		b = b[min(align4(t.size()), len(b)):]
	}
	return fields
}

// nftText is a value, or a range of values, as nft(8) prints it.
func nftText(types []NFTType, b, end []byte) string {
	words := make([]string, 0, len(types))
	last := NFTFields(types, end)
	for i, f := range NFTFields(types, b) {
		w := fieldText(f)
		if last != nil && fieldText(last[i]) != w {
			w += "-" + fieldText(last[i])
		}
		words = append(words, w)
	}
	return strings.Join(words, " . ")
}

func fieldText(f any) string {
	switch v := f.(type) {
	case uint8:
		return ProtoName(v)
	case uint32:
		return fmt.Sprintf("0x%08x", v)
	default:
		return fmt.Sprint(v)
	}
}

// KeyText is e's key as nft(8) prints it.
func (e NFTElem) KeyText() string { return nftText(e.Set.Key, e.Key, e.KeyEnd) }

// DataText is what e maps its key to, as nft(8) prints it.
func (e NFTElem) DataText() string {
	return nftText(e.Set.Data, e.Data, nil)
}

// String is the element in the words of nft(8), after "add element".
func (e NFTElem) String() string {
	s := fmt.Sprintf("%v %s { %s", e.Set.Table, e.Set.Name, e.KeyText())
	if d := e.DataText(); d != "" {
		s += " : " + d
	}
	return s + " }"
}

// CutNFTKey reads the place of an element of s from the front of a line, as KeyText wrote it.
func (s *NFTSet) CutNFTKey(line string) (e NFTElem, rest string, ok bool) {
	var fields, last []any
	for i, t := range s.Key {
		if i > 0 {
			if line, ok = strings.CutPrefix(line, ". "); !ok {
				return e, "", false
			}
		}
		var word string
		if word, line, ok = strings.Cut(line, " "); !ok {
			return e, "", false
		}
		end := word
		if s.Interval {
			if first, after, both := strings.Cut(word, "-"); both {
				word, end = first, after
			}
		}
		f, ok1 := t.parse(word)
		l, ok2 := t.parse(end)
		if !ok1 || !ok2 {
			return e, "", false
		}
		fields, last = append(fields, f), append(last, l)
	}
	e = NFTElem{Set: s, Key: NFTKey(fields...)}
	if s.Interval {
		e.KeyEnd = NFTKey(last...)
	}
	return e, line, true
}

// parse reads a field as fieldText wrote it.
func (t NFTType) parse(word string) (f any, ok bool) {
	switch t {
	case NFTAddr, NFTAddr6:
		a, err := netip.ParseAddr(word)
		return a, err == nil && a.BitLen() == 8*t.size() && a.Zone() == ""
	case NFTProto:
		return ParseProto(word)
	case NFTService:
		n, err := strconv.ParseUint(word, 10, 16)
		return uint16(n), err == nil
	case NFTMark:
		n, err := strconv.ParseUint(word, 0, 32)
		return uint32(n), err == nil
	case NFTEther:
		mac, err := net.ParseMAC(word)
		return mac, err == nil && len(mac) == t.size()
	case NFTIfname:
		return word, word != "" && len(word) < t.size() && !strings.Contains(word, "\x00")
	}
	return nil, false
}
