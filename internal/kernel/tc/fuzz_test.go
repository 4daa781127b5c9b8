package tc

import (
	"testing"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// FuzzParse reads what the kernel could list as qdiscs, classes and filters.
func FuzzParse(f *testing.F) {
	attr := func(typ uint16, value ...byte) (b netlink.Buffer) {
		b.Attr(typ, value...)
		return b
	}
	for kind, options := range map[string][]byte{
		"tbf":   attr(tbfParms, netlink.Struct(tbfOptions{})...),
		"htb":   attr(htbRate64, make([]byte, 8)...),
		"bfifo": {0, 1, 0, 0},
		"u32":   attr(u32Selector, make([]byte, 16)...),
		"bpf":   attr(bpfName, []byte("fairlead\x00")...),
	} {
		b := netlink.Struct(tcMsg{})
		b.Str(unix.TCA_KIND, kind)
		b.Attr(unix.TCA_OPTIONS, options...)
		f.Add([]byte(b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		q := parseQdisc(b)
		filter, whole := parseFilter(b)
		if len(b) < sizeofMsg && (whole || q.Handle != 0) {
			t.Errorf("%x is taken for %+v, %+v", b, q, filter)
		}
		if whole && filter.info() != netlink.U32(b[16:]) {
			t.Errorf("%x: preference and protocol are written as %x", b, filter.info())
		}
	})
}
