package plugin_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestKill kills ADD of each chain's last plugin at each call that can change something, and then DEL of the chain
// has to leave nothing.
//
// clause: P11 P12
func TestKill(t *testing.T) {
	for _, c := range chains {
		if !slices.Contains([]string{"bridge", "portmap", "portmap-iptables", "firewall", "firewall-iptables", "bandwidth",
			"tuning", "ptp", "bridge-named", "ptp-named", "tap", "macvlan", "macvlan-egress", "macvtap", "ipvlan", "vlan", "vrf", "dummy", "sbr", "host-device", "host-device-mac", "bridge-vlan", "bridge-empty", "dhcp-bridge", "debug", "route", "ovs", "alias", "ptp-chain" +
				inChain}, c.name) {
			continue
		}
		nstest.Apart(t, c.name, func(t *testing.T) {
			nstest.NeedProgram(t, "strace")
			r := newRunner(t, c)
			withoutBridges(t)
			warm := &attachment{id: "k", netns: nstest.NewNS(t)}
			r.must("add", r.add(warm))
			r.must("del", r.del(warm))
			clean := state(t)
			calls := "sendto,sendmsg,write,pwrite64,renameat,renameat2,rename,linkat,unlinkat,mkdirat,ftruncate,flock"
			for n := 1; ; n++ {
				a := &attachment{id: "k", netns: nstest.NewNS(t)}
				err := r.add(a, "strace", "-f", "-qqq", "-o", "/dev/null", "-e",
					"inject="+calls+fmt.Sprintf(":signal=SIGKILL:when=%d", n))
				r.must(fmt.Sprintf("del after a kill at call %d", n), r.del(&attachment{id: "k", netns: a.netns}))
				if after := state(t); after != clean {
					t.Fatalf("a kill at call %d left\n%s\nbefore it was\n%s", n, after, clean)
				}
				if err == nil {
					t.Logf("ADD has %d such calls", n-1)
					if n < 3 {
						t.Error("too few: was anything killed?")
					}
					return
				}
			}
		})
	}
}
