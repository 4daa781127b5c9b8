package xtables

import (
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// FuzzSaved: what was read of iptables-save is written so that it is read again.
func FuzzSaved(f *testing.F) {
	f.Add(":FORWARD ACCEPT [0:0]\n:CNI-a - [0:0]\n-A FORWARD -s 10.1.0.0/24 -m comment --comment \"a \\\"b\\\" c\" -j CNI-a\n")
	f.Add("-A CNI-a ! -d 10.1.0.2/32 -p tcp -m multiport --dports 80,8000:8010 -j DNAT --to-destination [fd00::2]:80\n")
	f.Add("-A c \"\" \"\\\\\" --comment \"unfinished\n-A\n-A  \n:\n")
	f.Fuzz(func(t *testing.T, out string) {
		if strings.Contains(out, "\x00") {
			return // which no argument has
		}
		for chain, rules := range parseSaved(out) {
			for _, r := range rules {
				again := parseSaved(r.String() + "\n")[chain]
				if len(again) != 1 || !again[0].Same(r) {
					t.Errorf("%q is read as %q of %q, and written as %q, which is %q", out, r.Words, chain, r, again)
				}
			}
		}
	})
}

// FuzzNative reads what nf_tables could list as a rule of iptables-nft.
func FuzzNative(f *testing.F) {
	var b netlink.Buffer
	expr := func(name string, data func()) {
		b.Nest(unix.NFTA_LIST_ELEM, func() {
			b.Str(unix.NFTA_EXPR_NAME, name)
			b.Nest(unix.NFTA_EXPR_DATA, data)
		})
	}
	value := func(typ uint16, v ...byte) { b.Nest(typ, func() { b.Attr(unix.NFTA_DATA_VALUE, v...) }) }
	b.Nest(unix.NFTA_RULE_EXPRESSIONS, func() {
		expr("payload", func() {
			b.U32(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER)
			b.U32(unix.NFTA_PAYLOAD_OFFSET, 12)
			b.U32(unix.NFTA_PAYLOAD_LEN, 4)
		})
		expr("bitwise", func() { value(unix.NFTA_BITWISE_MASK, 255, 255, 255, 0) })
		expr("cmp", func() {
			b.U32(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ)
			value(unix.NFTA_CMP_DATA, 10, 1, 0, 0)
		})
		expr("match", func() {
			b.Str(unix.NFTA_MATCH_NAME, "multiport")
			b.Attr(unix.NFTA_MATCH_INFO, append([]byte{1, 15}, make([]byte, 46)...)...)
		})
		expr("target", func() {
			b.Str(unix.NFTA_TARGET_NAME, "DNAT")
			b.Attr(unix.NFTA_TARGET_INFO, make([]byte, 40)...)
		})
		expr("immediate", func() { b.Nest(unix.NFTA_IMMEDIATE_DATA, func() { value(unix.NFTA_DATA_VERDICT, 1) }) })
	})
	f.Add([]byte(b))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, v6 := range []bool{false, true} {
			r := parseNative("c", body, v6)
			_, size := nft.AddressField(v6, false)
			if a := r.Src.Addr(); a.IsValid() && a.BitLen() != 8*int(size) {
				t.Errorf("%x, IPv6 %v: the source is %v", body, v6, r.Src)
			}
			if a := r.Dst.Addr(); a.IsValid() && a.BitLen() != 8*int(size) {
				t.Errorf("%x, IPv6 %v: the destination is %v", body, v6, r.Dst)
			}
			if len(r.Ports) > 15 {
				t.Errorf("%x: %d ports", body, len(r.Ports))
			}
		}
	})
}

// FuzzLegacyNames reads what ip_tables could have as the entries of a table.
func FuzzLegacyNames(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		_, offset, target := layout(v6)
		entry := make([]byte, target+64) // an entry without matches, whose target names a chain
		copy(entry[offset:], []byte{byte(target), 0, byte(len(entry)), 0})
		copy(entry[target+2:], "ERROR")
		copy(entry[target+32:], "CNI-a")
		if names := legacyChainNames(entry, v6); !slices.Equal(names, []string{"CNI-a"}) {
			f.Fatalf("the seed names %q", names)
		}
		f.Add(entry, v6)
	}
	f.Fuzz(func(t *testing.T, b []byte, v6 bool) {
		for _, name := range legacyChainNames(b, v6) {
			if len(name) > 30 || !strings.Contains(string(b), name) {
				t.Errorf("%x: chain %q", b, name)
			}
		}
	})
}
