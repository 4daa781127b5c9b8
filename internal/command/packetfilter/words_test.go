package packetfilter

import (
	"encoding/binary"
	"testing"
)

// TestWidthOfConstants holds that what may be an address is written with all its digits, and that marks stay short.
func TestWidthOfConstants(t *testing.T) {
	number := func(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
	for _, c := range []struct {
		name    string
		v, mask []byte
		want    string
	}{
		{"@nh,96,32", []byte{8, 0x21, 0x4d, 0xa}, nil, "0x08214d0a"},
		{"@nh,96,32", []byte{0, 1, 0x4d, 0xa}, []byte{0, 0xff, 0xff, 0xff}, "0x00014d0a/0x00ffffff"},
		{"meta mark", number(0x4000), number(0x4000), "0x4000/0x4000"},
		{"ct mark", number(1), nil, "0x1"},
	} {
		if got := valueText(c.name, c.v, c.mask, nil); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
