package conntrack

import (
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
)

// FuzzTuple: the ends of a flow are read as they are written.
func FuzzTuple(f *testing.F) {
	for _, ends := range [][2]string{{"10.1.0.2:53", "10.1.0.1:4000"}, {"[fd00::2]:53", "[fd00::1]:0"}} {
		var b netlink.Buffer
		putTuple(&b, ctaTupleOrig, tuple{netip.MustParseAddrPort(ends[0]), netip.MustParseAddrPort(ends[1])})
		f.Add([]byte(b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		flowOf(b)
		got := parseTuple(netlink.Attr(b, ctaTupleOrig))
		for _, end := range []netip.AddrPort{got.src, got.dst} {
			if end.Port() == 0 || !end.Addr().IsValid() || end.Addr().Is4In6() {
				return // of which not all is written
			}
		}
		var written netlink.Buffer
		putTuple(&written, ctaTupleOrig, got)
		again := parseTuple(netlink.Attr(written, ctaTupleOrig))
		sameFamily := got.src.Addr().Is4() == got.dst.Addr().Is4() // else there are two of an end
		if sameFamily && again != got || !got.matches(again) {
			t.Errorf("%x is %+v, and is written as %+v", b, got, again)
		}
	})
}
