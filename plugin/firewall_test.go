package plugin_test

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestIngressPolicy sends packets on every path, under every policy.
//
// clause: P18
func TestIngressPolicy(t *testing.T) {
	type site struct{ backend, policy, bridged string }
	var sites []site
	for _, backend := range []string{"auto", "nftables", "iptables-nft", "iptables-legacy"} {
		for _, policy := range []string{"open", "same-bridge", "isolated", "strict"} {
			for _, bridged := range []string{"0", "1"} {
				if backend == "auto" && bridged == "0" { // which is nftables here
					continue
				}
				sites = append(sites, site{backend, policy, bridged})
			}
		}
	}
	for _, c := range nstest.Some(t, 4, sites) {
		t.Run(fmt.Sprint(c.backend, "/", c.policy, "/br_netfilter=", c.bridged), func(t *testing.T) {
			t.Parallel()
			s, conf := newSite(t), c.backend
			s.sh("host", "sysctl -qw net.bridge.bridge-nf-call-iptables="+c.bridged+" net.bridge.bridge-nf-call-ip6tables="+
				c.bridged)
			if backend, variant, ok := strings.Cut(c.backend, "-"); ok {
				for _, p := range []string{"iptables", "ip6tables"} {
					s.sh("host", p+"-"+variant+" -P FORWARD ACCEPT")
				}
				conf = backend
			}
			fw := fmt.Sprintf(`"type":"firewall","backend":%q,"ingressPolicy":%q`, conf, c.policy)
			s.network("a", published, fw)
			s.network("b", fw)
			s.add("a1")
			s.runners["a"].chain.plugins = append(s.runners["a"].chain.plugins[:1:1], fw)
			s.add("a2")
			s.add("b1")
			for _, filter := range []string{"0", "1", "2"} { // rp_filter: the routing rules must not disturb it
				if filter != "0" && (c.backend != "nftables" || c.bridged == "0") {
					continue
				}
				s.sh("host", "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo "+filter+" > $f; done")
				s.policy(c.policy)
			}
		})
	}
}

// TestClosedWithoutTable flushes the packet filter: what is isolated or strict stays apart from other networks, and
// the next ADD of somebody else opens nothing.
func TestClosedWithoutTable(t *testing.T) {
	for _, policy := range []string{"isolated", "strict"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			fw := fmt.Sprintf(`"type":"firewall","ingressPolicy":%q`, policy)
			s.network("a", published, fw)
			s.network("b", fw)
			s.network("c")
			s.add("a1")
			s.add("b1")
			s.add("c1")
			apart := func(when string) {
				t.Helper()
				for v := range 2 {
					at := func(name string) string { return net.JoinHostPort(s.addr[name][v], "80") }
					s.expect(when+", between networks", "b1", at("a1"), "")
					s.expect(when+", between networks, back", "a1", at("b1"), "")
					s.expect(when+", from the host", "host", at("a1"), "a1")
					if policy == "strict" {
						s.expect(when+", from outside", "outside", at("a1"), "")
						s.expect(when+", from a network without a policy", "c1", at("a1"), "")
					}
				}
			}
			apart("with the table")
			s.sh("host", "nft flush ruleset")
			apart("flushed")
			s.network("d", `"type":"firewall"`)
			s.add("d1")
			apart("after an ADD of another network")
			if err := s.runners["a"].gc("a1"); err != nil {
				t.Fatal(err)
			}
			apart("after GC")
		})
	}
}

// TestFirewallInParallel adds many containers at once where each call writes into iptables: none fails, and all is
// there and goes.
//
// clause: P20
func TestFirewallInParallel(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.restore(variant, dropRules)
			r := s.network("a", `"type":"firewall","ingressPolicy":"strict"`)
			var all [12]attachment
			errs := make([]error, len(all))
			var wg sync.WaitGroup
			each := func(fn func(a *attachment) error) {
				t.Helper()
				for i := range all {
					wg.Go(func() { errs[i] = fn(&all[i]) })
				}
				wg.Wait()
				for i, err := range errs {
					if err != nil {
						t.Errorf("%s: %v", all[i].id, err)
					}
				}
			}
			for i := range all {
				all[i] = attachment{id: fmt.Sprint("p", i), netns: nstest.NewNS(t)}
			}
			each(func(a *attachment) error { return r.add(a) })
			if n := strings.Count(s.saved(), "-s 10.81."); n != len(all) {
				t.Errorf("%d accepts for %d containers", n, len(all))
			}
			each(r.check)
			each(r.del)
			if got := s.saved(); strings.Contains(got, "10.81.") || strings.Contains(got, "fd00:81:") {
				t.Errorf("left:\n%s", got)
			}
		})
	}
}
