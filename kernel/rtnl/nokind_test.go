package rtnl

import (
	"os/exec"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// What the kernel says of a kind that it is only asked about is what it says to ip(8), which makes one.
func TestNoKind(t *testing.T) {
	host, err := kernel.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	nstest.Run(t, "ip", "link", "add", "below", "type", "veth", "peer", "name", "peer")
	defer nstest.Run(t, "ip", "link", "del", "below")
	before := nstest.Run(t, "ip", "-o", "link")
	kinds := map[string][]string{
		"dummy": {"dummy"}, "vlan": {"vlan", "id", "7"}, "ipvlan": {"ipvlan"}, "macvlan": {"macvlan"}, "vrf": {"vrf", "table",
			"7"}, "veth": {"veth"},
		"nonsense": {"nonsense"},
	}
	for kind, words := range kinds {
		got := NoKind(host, kind)
		if after := nstest.Run(t, "ip", "-o", "link"); after != before {
			t.Errorf("%s: asking made a link:\n%s", kind, after)
		}
		out, err := exec.Command("ip", append([]string{"link", "add", "link", "below", "name", "kind0", "type"},
			words...)...).CombinedOutput()
		if err == nil {
			nstest.Run(t, "ip", "link", "del", "kind0")
		}
		if (got == nil) != (err == nil) {
			t.Errorf("%s: we say %v, ip(8) %v: %s", kind, got, err, out)
		}
	}
}
