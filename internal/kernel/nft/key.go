package nft

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
)

// Key encodes a key or data. Each field is a netip.Addr, a uint8 (protocol), a uint16 (port), a uint32 (mark), a
// net.HardwareAddr or a string (name of a link).
func Key(fields ...any) []byte {
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
			b = append(b, make([]byte, netlink.Align(len(b))-len(b))...)
		}
	}
	return b
}

// Fields decodes a value, the reverse of Key. It returns nil for a value of another length.
func Fields(types []Type, b []byte) []any {
	if _, size := typeOf(types); len(b) != size {
		return nil
	}
	var fields []any
	for _, t := range types {
		switch v := b[:t.Size()]; t {
		case Addr, Addr6:
			a, _ := netip.AddrFromSlice(v)
			fields = append(fields, a)
		case Proto:
			fields = append(fields, v[0])
		case Service:
			fields = append(fields, binary.BigEndian.Uint16(v))
		case Mark:
			fields = append(fields, binary.NativeEndian.Uint32(v))
		case Ether:
			fields = append(fields, net.HardwareAddr(append([]byte(nil), v...)))
		case Ifname:
			fields = append(fields, netlink.Text(v))
		}
		b = b[min(netlink.Align(t.Size()), len(b)):]
	}
	return fields
}

// keyText is a value, or a range of values, as nft(8) prints it.
func keyText(types []Type, b, end []byte) string {
	words := make([]string, 0, len(types))
	last := Fields(types, end)
	for i, f := range Fields(types, b) {
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
		return kernel.ProtoName(v)
	case uint32:
		return fmt.Sprintf("0x%08x", v)
	default:
		return fmt.Sprint(v)
	}
}

// KeyText returns e's key in the notation of nft(8).
func (e Elem) KeyText() string { return keyText(e.Set.Key, e.Key, e.KeyEnd) }

// DataText returns e's data in the notation of nft(8).
func (e Elem) DataText() string {
	return keyText(e.Set.Data, e.Data, nil)
}

// String returns the element in the words of nft(8), after "add element".
func (e Elem) String() string {
	s := fmt.Sprintf("%v %s { %s", e.Set.Table, e.Set.Name, e.KeyText())
	if d := e.DataText(); d != "" {
		s += " : " + d
	}
	return s + " }"
}

// CutKey parses the key of an element of s at the beginning of a line, as KeyText wrote it.
func (s *Set) CutKey(line string) (e Elem, rest string, ok bool) {
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
	e = Elem{Set: s, Key: Key(fields...)}
	if s.Interval {
		e.KeyEnd = Key(last...)
	}
	return e, line, true
}

// parse reads a field as fieldText wrote it.
func (t Type) parse(word string) (f any, ok bool) {
	switch t {
	case Addr, Addr6:
		a, err := netip.ParseAddr(word)
		return a, err == nil && a.BitLen() == 8*t.Size() && a.Zone() == ""
	case Proto:
		return kernel.ParseProto(word)
	case Service:
		n, err := strconv.ParseUint(word, 10, 16)
		return uint16(n), err == nil
	case Mark:
		n, err := strconv.ParseUint(word, 0, 32)
		return uint32(n), err == nil
	case Ether:
		mac, err := net.ParseMAC(word)
		return mac, err == nil && len(mac) == t.Size()
	case Ifname:
		return word, word != "" && len(word) < t.Size() && !strings.Contains(word, "\x00")
	}
	return nil, false
}
