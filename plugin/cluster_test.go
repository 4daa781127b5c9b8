package plugin_test

import (
	"net/netip"
	"os"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// grantRanges grants ranges to a network of TestLife, as fairlead-agent does.
func grantRanges(t *testing.T) {
	boot, err := grant.Boot()
	if err != nil {
		t.Fatal(err)
	}
	ranges := []netip.Prefix{netip.MustParsePrefix("10.77.0.0/24"), netip.MustParsePrefix("fd00:77::/64")}
	g := grant.Grant{Cluster: "c", Node: "a", Boot: boot, Ranges: ranges, MTU: 1450}
	if err := grant.Write("life-cluster", g); err != nil {
		t.Fatal(err)
	}
}

// With "mtu": "auto" the links of a container have the MTU of the way to other nodes, in ADD and in CHECK, also after the
// cluster's MTU has changed.
func TestMTUOfCluster(t *testing.T) {
	for name, plugin := range map[string]string{
		"ptp":    `"type":"ptp","mtu":"auto","ipam":{"type":"cluster"}`,
		"bridge": `"type":"bridge","bridge":"br-mtu","isGateway":true,"mtu":"auto","ipam":{"type":"cluster"}`,
	} {
		nstest.Apart(t, name, func(t *testing.T) {
			r := newRunner(t, chain{name: "cluster", plugins: []string{plugin}})
			grantRanges(t)
			a := &attachment{id: "m", netns: nstest.NewNS(t)}
			out, err := r.run(0, "ADD", a, "")
			r.must("add", err)
			a.prev = out
			if mtu := interfaceOf(t, out, "eth0").MTU; mtu != 1450 {
				t.Errorf("eth0 has an MTU of %d, want 1450: %s", mtu, out)
			}
			if err := os.Remove(grant.Path(r.network())); err != nil {
				t.Fatal(err)
			}
			r.must("check without a grant", r.check(a))
		})
	}
}
