package plugin_test

import (
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/ipam/grant"
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
