package publish_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/spec"
)

// A client that never changes its port is heard by whoever has the port now: conntrack is told, on ADD and
// on DEL, and only of that port.
func TestUDPFlowsFollow(t *testing.T) {
	for _, c := range []struct{ name, network, host, from, bystander, a, b string }{
		{"IPv4", "udp4", "192.0.2.1:53", "192.0.2.2:4000", "198.51.100.2:53", "a 192.0.2.2", "b 192.0.2.2"},
		{"IPv6", "udp6", "[2001:db8::1]:53", "[2001:db8::2]:4000", "[2001:db8:1::2]:53", "a 2001:db8::2",
			"b 2001:db8::2"},
	} {
		for _, at := range []string{"any", "one", "range", "range at one"} {
			t.Run(c.name+" "+at, func(t *testing.T) {
				l := filtertest.NewLab(t)
				filtertest.MakeTables(t, l.W) // conntrack is at work from the first rule on that needs it
				l.Serve(l.A, "a", c.network, ":53")
				l.Serve(l.B, "b", c.network, ":53")
				l.Serve(l.Remote, "beyond", c.network, ":53")
				m := publish.Mapping{Protocol: "udp", HostPort: 53, ContainerPort: 53}
				if strings.HasPrefix(at, "range") {
					m.HostPort, m.HostPortEnd, m.ContainerPort = 50, 60, 50
				}
				if strings.HasSuffix(at, "one") {
					m.HostIP = contract.Addr(map[bool]string{true: "192.0.2.1", false: "2001:db8::1"}[c.name == "IPv4"])
				}
				ask := func(want string) {
					t.Helper()
					limit := nstest.Patience(t)
					if want == "" {
						limit = contract.Silence
					}
					got, err := l.Ask(l.Neighbour, c.network, c.from, c.host, limit)
					if got != want {
						t.Errorf("%s (%v), want %q", got, err, want)
					}
				}
				// Another flow to that port, which only passes through, stays in conntrack.
				if _, err := l.Ask(l.Neighbour, c.network, "", c.bystander, nstest.Patience(t)); err != nil {
					t.Fatal(err)
				}
				through := flows(l, c.bystander)
				if through == 0 {
					t.Fatal("conntrack does not know the flow that passes through")
				}
				ask("") // nobody listens, and conntrack knows that
				a := filtertest.PortsOfA(l, m)
				l.Ensure(a, l.W)
				ask("a " + c.a[2:])
				b := publish.Ports{Owner: l.OwnerB, To4: l.ToB, To6: l.ToB6, SNAT: true, Mappings: a.Mappings}
				if err := errors.Join(a.Remove(t.Context(), l.W), l.W.Finish()); err != nil {
					t.Fatal(err)
				}
				ask("")
				l.Ensure(b, l.WorldOf(l.B))
				ask("b " + c.b[2:])
				// The next one takes over, of the same container and on another network.
				stand := publish.Ports{Owner: spec.Owner{Network: "other", ContainerID: l.OwnerB.ContainerID,
					IfName: "eth0"}, To4: l.ToA,
					To6: l.ToA6, SNAT: true, Mappings: a.Mappings}
				l.Ensure(stand, l.W)
				ask("b " + c.b[2:])
				if err := b.Remove(t.Context(), l.WorldOf(l.B)); err != nil {
					t.Fatal(err)
				}
				ask("a " + c.a[2:])
				if now := flows(l, c.bystander); now != through {
					t.Errorf("flows that pass through were %d and are %d", through, now)
				}
			})
		}
	}
}

// flows counts what conntrack(8) knows of UDP to an address.
func flows(l *filtertest.Lab, to string) int {
	l.Helper()
	dst := netip.MustParseAddrPort(to).Addr()
	family := "ipv4"
	if dst.Is6() {
		family = "ipv6"
	}
	out := nstest.RunIn(l, l.W.Host.Path, "conntrack", "-L", "-f", family, "-p", "udp", "--dst", dst.String())
	return strings.Count(out, "dport=53")
}
