package agent

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
)

// A pool that overlaps a network or a route of the host is refused by the names of both. Those of the node's own containers
// are in no way.
func TestFit(t *testing.T) {
	h := newHost(t, 1)
	contract.Host(t, h.w, "ip route add 10.7.0.0/16 via 192.0.2.9")
	contract.Host(t, h.w, "ip route add default via 192.0.2.254")
	contract.Host(t, h.w, "ip route add 10.9.0.8/29 via 192.0.2.2 proto 118")
	contract.Host(t, h.w, "ip route add 10.9.0.2/32 dev up0")
	contract.Host(t, h.w, "ip addr add 10.9.1.1/26 dev up0")
	own := []netip.Prefix{netip.MustParsePrefix("10.9.1.0/26")}
	for pool, want := range map[string]string{
		"10.9.0.0/16": "", "10.8.0.0/16": "", "fd00::/64": "",
		"10.0.0.0/8":   "overlaps the route to 10.7.0.0/16 by link up0",
		"192.0.2.0/28": "overlaps the network 192.0.2.0/24 of link up0",
	} {
		got := ""
		if err := h.agent.Fit(netip.MustParsePrefix(pool), own); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", pool, got, want)
		}
	}
	if err := h.agent.Fit(netip.MustParsePrefix("10.9.0.0/16"), nil); err == nil || !strings.Contains(err.Error(), "10.9.1.0/26 of link up0") {
		t.Errorf("%v: want the network that is no container's", err)
	}

	ips, err := NodeIPs(h.w.Host)
	if want := []netip.Addr{netip.MustParseAddr("192.0.2.1")}; err != nil || !slices.Equal(ips, want) {
		t.Errorf("%v, %v: want %v, of the link with the default route", ips, err, want)
	}
}
