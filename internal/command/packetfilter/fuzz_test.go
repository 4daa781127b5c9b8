package packetfilter

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// What the kernel says is decoded without a panic and without end, even if it were no rule at all.
func FuzzVerdict(f *testing.F) {
	path := nstest.NewNS(f)
	ns, err := kernel.Open(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(ns.Close)
	conn, err := nft.Open(ns)
	if err != nil {
		f.Fatal(err)
	}
	// Real rules, of both kinds, are where to begin.
	file := filepath.Join(f.TempDir(), "rules")
	if err := os.WriteFile(file, []byte(`table ip t {
		set s { type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/8 . 1-80 }; }
		chain c { }
		chain FORWARD {
			iifname "eth*" ip saddr 10.0.0.0/8 tcp dport { 80, 443 } ct state new,established counter limit rate 1/second meta mark set 1 accept
			ip daddr . th dport @s fib daddr type local tcp flags & (syn|ack) == syn reject
			meta l4proto vmap { tcp : jump c, udp : drop }
			meta mark and 0x10 == 0x10 meta mark set meta mark lshift 2 th dport 1-100 ip dscp set cs1 log
		}
	}`), 0o644); err != nil {
		f.Fatal(err)
	}
	nstest.RunIn(f, path, "nft", "-f", file)
	for _, rule := range []string{"-s 10.0.0.0/8 -m conntrack --ctstate NEW -j REJECT",
		"-p tcp -m multiport --dports 1,2:3 -m mark --mark 1/2 -j c1",
		"-m addrtype --dst-type LOCAL -j MARK --set-mark 1", "-p udp -m udp --dport 53 -m iprange --src-range 10.0.0.1-10.0.0.9 -i eth+ -g c1"} {
		nstest.RunIn(f, path, "sh", "-ec", "iptables-nft -N c1 || :; iptables-legacy -N c1 || :; iptables-nft -A FORWARD "+
			rule+"; iptables-legacy -A FORWARD "+rule)
	}
	var table *nftTable
	for _, name := range []string{"filter", "t"} {
		table = newTable(conn, &nft.Table{Family: unix.NFPROTO_IPV4, Name: name})
		rules, err := table.chain("FORWARD")
		if err != nil || len(rules) != 4 {
			f.Fatalf("%d rules, %v", len(rules), err)
		}
		for _, r := range rules {
			f.Add(r.(*nftRule).body, false, false)
		}
	}
	info, b, err := xtables.LegacyEntries(ns, false, "filter")
	if err != nil || b == nil {
		f.Fatal(err)
	}
	f.Add(b, true, false)
	packets := []Packet{
		{Src: netip.MustParseAddr("10.0.0.1")},
		{In: "eth0", Out: "eth1", Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"),
			Proto: kernel.TCP, SrcPort: 1000, DstPort: 80},
		{In: "eth0", Src: netip.MustParseAddr("fd00::1"), Proto: kernel.UDP, DstPort: 53, Reply: true},
	}
	f.Fuzz(func(t *testing.T, b []byte, legacy, v6 bool) {
		for _, p := range packets {
			w := newWalk(ns, p)
			w.left = 100
			chain := "FORWARD"
			if legacy {
				info.ValidHooks |= 1 << 2
				l, err := parseLegacy(info, b, v6)
				if err != nil {
					return
				}
				w.chains = l.chain
			} else {
				r := &nftRule{table: table, body: b}
				w.chains = func(string) ([]rule, error) { return []rule{r, r}, nil }
			}
			v := w.base(nft.BaseChain{Family: unix.NFPROTO_IPV4, Table: "filter", Name: chain})
			if s := v.String(); s == "" {
				t.Error("nothing is said")
			}
		}
	})
}
