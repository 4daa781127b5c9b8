package keys

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Packets to the other subnets of the network keep their addresses, those to the attachment's own are another matter, and
// before there are addresses nothing is known.
func TestOtherSubnets(t *testing.T) {
	ips := func(prefixes ...string) (list []spec.IP) {
		for _, p := range prefixes {
			list = append(list, spec.IP{Address: netip.MustParsePrefix(p)})
		}
		return list
	}
	r := &sdk.Request{Ranges: ips("10.1.0.1/24", "10.2.0.1/24", "fd00::1/64", "10.2.0.9/24")}
	if got := otherSubnets(r); got != nil {
		t.Errorf("without addresses: %v", got)
	}
	r.IPs = ips("10.1.0.7/24", "fd00::7/64")
	want := []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")}
	if got := otherSubnets(r); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
