package plugin_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestDelOfRefused has a second network refused because the container has an interface of that name. The DEL that
// runtimes send then leaves what the first network has on it as it is.
//
// clause: P10 P12
func TestDelOfRefused(t *testing.T) {
	of := func(network, subnet string) *runner {
		return newRunner(t, chain{name: network, plugins: []string{
			`"type":"ptp","ipam":{"type":"host-local","subnet":"` + subnet + `"}`,
			`"type":"bandwidth","ingressRate":1000000,"egressRate":1000000`,
			`"type":"tuning","mtu":1400,"sysctl":{"net.core.somaxconn":"500"}`, `"type":"sbr"`}})
	}
	first, second := of("first", "10.61.0.0/24"), of("second", "10.62.0.0/24")
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	first.must("ADD", first.add(a))
	inside := func() string {
		return nstest.RunIn(t, a.netns, "sh", "-c",
			"ip -br link; (ip -4 route show table all; ip rule; tc qdisc) | sort; cat /proc/sys/net/core/somaxconn")
	}
	before := inside()
	limits := nstest.RunIn(t, "/proc/self/ns/net", "tc", "qdisc")
	if !strings.Contains(limits, "tbf") {
		t.Fatalf("no limit: %s", limits)
	}
	for _, id := range []string{"c1", "c2"} {
		b := &attachment{id: id, netns: a.netns}
		if err := second.add(b); err == nil {
			t.Fatal("a second eth0 was made")
		}
		second.must("DEL", second.del(b))
		if now := inside(); now != before {
			t.Errorf("%s: after the DEL of what was refused:\n%s\nwant\n%s", id, now, before)
		}
		if now := nstest.RunIn(t, "/proc/self/ns/net", "tc", "qdisc"); now != limits {
			t.Errorf("%s: limits are\n%s\nwant\n%s", id, now, limits)
		}
		first.must("CHECK", first.check(a))
	}
	first.must("DEL", first.del(a))
}
