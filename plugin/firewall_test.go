package plugin_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestIngressPolicy sends packets on every path, under every policy.
//
// clause: P18
func TestIngressPolicy(t *testing.T) {
	for _, backend := range []string{"auto", "nftables", "iptables-nft", "iptables-legacy"} {
		for _, policy := range []string{"open", "same-bridge", "isolated", "strict"} {
			for _, bridged := range []string{"0", "1"} {
				t.Run(fmt.Sprint(backend, "/", policy, "/br_netfilter=", bridged), func(t *testing.T) {
					t.Parallel()
					s, conf := newSite(t), backend
					s.sh("host", "sysctl -qw net.bridge.bridge-nf-call-iptables="+bridged+" net.bridge.bridge-nf-call-ip6tables="+bridged)
					if backend, variant, ok := strings.Cut(backend, "-"); ok {
						for _, p := range []string{"iptables", "ip6tables"} {
							s.sh("host", p+"-"+variant+" -P FORWARD ACCEPT")
						}
						conf = backend
					}
					fw := fmt.Sprintf(`"type":"firewall","backend":%q,"ingressPolicy":%q`, conf, policy)
					s.network("a", published, fw)
					s.network("b", fw)
					s.add("a1")
					s.runners["a"].chain.plugins = append(s.runners["a"].chain.plugins[:1:1], fw)
					s.add("a2")
					s.add("b1")
					s.policy(policy)
				})
			}
		}
	}
}
