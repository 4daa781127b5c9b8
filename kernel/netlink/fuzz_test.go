package netlink

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

type attr struct {
	kind  uint16
	value string
}

func (a attr) String() string { return fmt.Sprintf("%d: %x", a.kind, a.value) }

func attrs(b []byte) (list []attr) {
	EachAttr(b, func(kind uint16, value []byte) { list = append(list, attr{kind, string(value)}) })
	return list
}

// parsed is what package syscall reads.
func parsed(b []byte) (list []attr, err error) {
	head := make([]byte, syscall.SizeofIfAddrmsg)
	all, err := syscall.ParseNetlinkRouteAttr(&syscall.NetlinkMessage{
		Header: syscall.NlMsghdr{Type: syscall.RTM_NEWADDR}, Data: append(head, b...),
	})
	for _, a := range all {
		list = append(list, attr{a.Attr.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER), string(a.Value)})
	}
	return list, err
}

// FuzzAttr compares how attributes are read with package syscall, and with how they are written.
func FuzzAttr(f *testing.F) {
	f.Add([]byte{8, 0, 1, 0, 1, 2, 3, 4, 5, 0, 2, 0x80, 9, 0, 0, 0})
	f.Add([]byte{4, 0, 1, 0, 3, 0, 1, 0})
	f.Add([]byte{5, 0, 1, 0x40, 7})
	f.Fuzz(func(t *testing.T, b []byte) {
		got := attrs(b)

		if padded := b[:len(b)&^3]; slices.Equal(attrs(padded), got) { // the package reads behind one without padding
			if want, err := parsed(padded); err == nil && !slices.Equal(got, want) {
				t.Errorf("%x is read as %v; package syscall reads %v", padded, got, want)
			}
		}

		var written Buffer
		for _, a := range got {
			written.Attr(a.kind, []byte(a.value)...)
		}
		if again := attrs(written); !slices.Equal(got, again) {
			t.Errorf("%x is read as %v, and what is written of that as %v", b, got, again)
		}
		var nested Buffer
		nested.Nest(7, func() { nested = append(nested, written...) })
		for _, a := range got {
			first := got[slices.IndexFunc(got, func(other attr) bool { return other.kind == a.kind })]
			if v := Attr(nested, 7, a.kind); string(v) != first.value || v == nil {
				t.Errorf("%x: the first attribute %d is %q, want %q", b, a.kind, v, first.value)
			}
		}
	})
}

// FuzzError: each answer that reports a failure is an error, whatever else is in the message.
func FuzzError(f *testing.F) {
	f.Add(uint16(unix.NLMSG_ERROR), uint16(unix.NLM_F_ACK_TLVS), []byte{0xff, 0xff, 0xff, 0xff})
	f.Add(uint16(unix.NLMSG_DONE), uint16(0), []byte{})
	f.Fuzz(func(t *testing.T, typ, flags uint16, b []byte) {
		err := Message{Type: typ, Flags: flags, Body: b}.Err()
		success := len(b) >= 4 && U32(b) == 0 || len(b) < 4 && typ == unix.NLMSG_DONE
		if success != (err == nil) {
			t.Errorf("type %d, flags %d, %x: %v", typ, flags, b, err)
		}
		if err != nil && err.Error() == "" {
			t.Errorf("type %d, flags %d, %x: an error without words", typ, flags, b)
		}
	})
}
