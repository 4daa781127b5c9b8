package tc

import (
	"testing"

	"github.com/vishvananda/netlink/nl"
)

// FuzzParse reads what the kernel could list as qdiscs, classes and filters.
func FuzzParse(f *testing.F) {
	head := make([]byte, nl.SizeofTcMsg)
	for kind, options := range map[string][]byte{
		"tbf":   nl.NewRtAttr(nl.TCA_TBF_PARMS, make([]byte, nl.SizeofTcTbfQopt)).Serialize(),
		"htb":   nl.NewRtAttr(nl.TCA_HTB_RATE64, make([]byte, 8)).Serialize(),
		"bfifo": {0, 1, 0, 0},
		"u32":   nl.NewRtAttr(nl.TCA_U32_SEL, make([]byte, 16)).Serialize(),
		"bpf":   nl.NewRtAttr(nl.TCA_BPF_NAME, []byte("fairlead\x00")).Serialize(),
	} {
		b := append(head[:len(head):len(head)], nl.NewRtAttr(nl.TCA_KIND, []byte(kind+"\x00")).Serialize()...)
		f.Add(append(b, nl.NewRtAttr(nl.TCA_OPTIONS, options).Serialize()...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		q := parseQdisc(b)
		filter, whole := parseFilter(b)
		if len(b) < nl.SizeofTcMsg && (whole || q.Handle != 0) {
			t.Errorf("%x is taken for %+v, %+v", b, q, filter)
		}
		if whole && filter.info() != nl.NativeEndian().Uint32(b[16:]) {
			t.Errorf("%x: preference and protocol are written as %x", b, filter.info())
		}
	})
}
