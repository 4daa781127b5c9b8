package plugin_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// TestBridgeVLANNeighbors has a network with a policy beside an open one and one without plugin firewall, in VLANs of
// one bridge under br_netfilter.
func TestBridgeVLANNeighbors(t *testing.T) {
	needBridgeVLANs(t)
	for _, backend := range []string{"nftables", "iptables"} {
		for _, policy := range []string{"same-bridge", "strict"} {
			t.Run(backend+"/"+policy, func(t *testing.T) {
				s := newSite(t)
				s.sh("host", "for f in /proc/sys/net/bridge/bridge-nf-call-ip*; do if [ -e $f ]; then echo 1 > $f; fi; done")
				fw := func(p string) string {
					return fmt.Sprintf(`"type":"firewall","backend":%q,"ingressPolicy":%q`, backend, p)
				}
				for i, r := range []*runner{s.network("a", fw(policy)), s.network("b", fw("open")), s.network("c")} {
					r.chain.plugins[0] = strings.Replace(r.chain.plugins[0], `"bridge":"br-`+"abc"[i:i+1]+`"`, fmt.Sprintf(`"bridge":"br-v","access":%d`, 100+i), 1)
				}
				for _, n := range []string{"a1", "b1", "c1"} {
					s.add(n)
				}
				s.listen("a1")
				for v := range 2 {
					at := func(name string) string { return net.JoinHostPort(s.addr[name][v], "80") }
					if policy != "strict" {
						s.expect("to open", "a1", at("b1"), "b1")
						s.expect("from open", "b1", at("a1"), "a1")
						s.expect("from none", "c1", at("a1"), "a1")
					}
					s.expect("to none", "a1", at("c1"), "c1")
				}
				if policy == "strict" {
					for i, n := range []string{"b1", "c1"} {
						l, err := rtnl.LinkByName(s.ns["host"], fmt.Sprintf("br-v.%d", 101+i))
						if err != nil {
							t.Fatal(err)
						}
						s.forgeBy("in a VLAN", n, "a1", l.MAC, false)
						s.answerBy("in a VLAN", n, "a1", l.MAC)
					}
				}
			})
		}
	}
}
