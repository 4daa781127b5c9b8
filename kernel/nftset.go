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

// ProtoName is the name of a protocol that ParseProto knows, else its number.
func ProtoName(proto byte) string {
	switch proto {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
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
	Data    []byte
	Comment string
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

// nftText is a value as nft(8) prints it.
func nftText(types []NFTType, b []byte) string {
	words := make([]string, 0, len(types))
	for _, f := range NFTFields(types, b) {
		switch v := f.(type) {
		case uint8:
			words = append(words, ProtoName(v))
		case uint32:
			words = append(words, fmt.Sprintf("0x%08x", v))
		default:
			words = append(words, fmt.Sprint(v))
		}
	}
	return strings.Join(words, " . ")
}

// KeyText is e's key as nft(8) prints it.
func (e NFTElem) KeyText() string { return nftText(e.Set.Key, e.Key) }

// DataText is what e maps its key to, as nft(8) prints it.
func (e NFTElem) DataText() string {
	return nftText(e.Set.Data, e.Data)
}

// String is the element in the words of nft(8), after "add element".
func (e NFTElem) String() string {
	s := fmt.Sprintf("%v %s { %s", e.Set.Table, e.Set.Name, e.KeyText())
	if d := e.DataText(); d != "" {
		s += " : " + d
	}
	return s + " }"
}

// CutNFTKey reads a key of s from the front of a line, as KeyText wrote it.
func (s *NFTSet) CutNFTKey(line string) (key []byte, rest string, ok bool) {
	var fields []any
	for i, t := range s.Key {
		if i > 0 {
			if line, ok = strings.CutPrefix(line, ". "); !ok {
				return nil, "", false
			}
		}
		var word string
		if word, line, ok = strings.Cut(line, " "); !ok {
			return nil, "", false
		}
		var f any
		var err error
		switch t {
		case NFTAddr, NFTAddr6:
			var a netip.Addr
			a, err = netip.ParseAddr(word)
			f, ok = a, a.BitLen() == 8*t.size() && a.Zone() == ""
		case NFTProto:
			f, ok = ParseProto(word)
		case NFTService:
			var n uint64
			n, err = strconv.ParseUint(word, 10, 16)
			f = uint16(n)
		case NFTMark:
			var n uint64
			n, err = strconv.ParseUint(word, 0, 32)
			f = uint32(n)
		case NFTEther:
			var mac net.HardwareAddr
			mac, err = net.ParseMAC(word)
			f, ok = mac, len(mac) == t.size()
		case NFTIfname:
			f, ok = word, word != "" && len(word) < t.size() && !strings.Contains(word, "\x00")
		}
		if err != nil || !ok {
			return nil, "", false
		}
		fields = append(fields, f)
	}
	return NFTKey(fields...), line, true
}
