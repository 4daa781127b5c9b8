package plugin_test

import (
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/sdk/sdktest"
)

// TestKill kills ADD of each chain's last plugin at each call that can change something, and then DEL of the chain
// has to leave nothing.
//
// clause: P11 P12
func TestKill(t *testing.T) {
	for _, c := range chains {
		if !slices.Contains([]string{"bridge", "portmap", "portmap-iptables", "firewall", "firewall-iptables", "bandwidth",
			"tuning", "ptp", "bridge-named", "ptp-named", "tap", "macvlan", "macvlan-egress", "macvtap", "ipvlan", "vlan", "vrf", "dummy", "sbr", "host-device", "host-device-mac", "bridge-vlan", "bridge-empty", "bridge-gateways", "dhcp-bridge", "debug", "route", "ovs", "alias", "ptp-chain" +
				inChain}, c.name) {
			continue
		}
		nstest.Apart(t, c.name, func(t *testing.T) {
			r := newRunner(t, c)
			withoutBridges(t)
			warm := &attachment{id: "k", netns: nstest.NewNS(t)}
			r.must("add", r.add(warm))
			r.must("del", r.del(warm))
			sdktest.Killed(t, func(netns string, under ...string) error {
				return r.add(&attachment{id: "k", netns: netns}, under...)
			}, func(netns string) error { return r.del(&attachment{id: "k", netns: netns}) })
		})
	}
}
