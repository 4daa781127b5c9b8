package plugin_test

import (
	"strings"
	"testing"
)

// TestFirstPacket sends one packet from a container to another one by the host, as soon as both are there: by cables of
// their own, and by a bridge each that are made for them. The host has nothing to make sure of first.
func TestFirstPacket(t *testing.T) {
	for name, tc := range map[string]struct {
		network func(*site, string, ...string) *runner
		links   string
	}{"ptp": {(*site).cables, "veth"}, "bridge": {(*site).network, "br-"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			for _, net := range []string{"a", "b"} {
				tc.network(s, net)
			}
			s.add("a1")
			s.add("b1")
			for v := range 2 {
				s.sh("a1", "busybox ping -q -c 1 -W 1 "+s.addr["b1"][1-v])
			}
			for _, name := range []string{"a1", "b1"} {
				if err := s.runners[name[:1]].check(s.containers[name]); err != nil {
					t.Error(err)
				}
			}
			links := s.sh("host", "ip -6 -o addr show scope link tentative; ip -6 -o addr show scope link dadfailed")
			if strings.Contains(links, ": "+tc.links) {
				t.Errorf("the host is not sure of %s", links)
			}
		})
	}
}
