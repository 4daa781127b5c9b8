package publish_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
)

// TestLocalnetOfAnotherLink: the administrator's route may lead to a container by the uplink, whose neighbours must not
// be let in to what listens on 127.0.0.1 (CVE-2020-8558).
func TestLocalnetOfAnotherLink(t *testing.T) {
	ports := []publish.Mapping{{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}}
	t.Run("nftables", func(t *testing.T) {
		localnetOfAnotherLink(t, contract.NewWorld(t),
			publish.Ports{Owner: contract.Owner, To4: contract.Prefix("10.1.2.5/24"),
				SNAT: true, Mappings: ports})
	})
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		w := contract.NewWorld(t)
		contract.ChooseVariant(t, w, v)
		localnetOfAnotherLink(t, w, filtertest.PortsByIPTables(ports...))
	})
}

func localnetOfAnotherLink(t *testing.T, w *kernel.World, p plan.Resource) {
	contract.Host(t, w, "ip link add up0 up type veth peer name wire")
	contract.Host(t, w, "ip addr add 192.0.2.2/24 dev up0")
	localnet := func(link, want string) {
		t.Helper()
		if got := contract.Sysctl(t, w.Host, "net/ipv4/conf/"+link+"/route_localnet"); got != want {
			t.Errorf("route_localnet of %s is %s, want %s", link, got, want)
		}
	}
	// What has no link of its own on the host, such as a macvlan, gets none.
	contract.Container(t, w, "ip link add eth0 up type veth peer name eth1")
	contract.Host(t, w, "ip route add 10.1.2.0/24 dev up0")
	contract.Ensure(t, w, p)
	contract.Verify(t, w, p)
	localnet("up0", "0")
	contract.Host(t, w, "ip route del 10.1.2.0/24 dev up0")
	contract.Container(t, w, "ip link del eth0")

	contract.Wire(t, w)
	for _, own := range []string{"veth1", "br0"} {
		if own == "br0" {
			contract.Host(t, w, "ip addr flush dev veth1")
			contract.Host(t, w, "ip link add br0 up type bridge")
			contract.Host(t, w, "ip link set veth1 master br0")
			contract.Host(t, w, "ip addr add 10.1.2.1/24 dev br0")
			contract.Host(t, w, "bridge link set dev veth1 hairpin on")
		}
		for _, route := range []struct{ route, says string }{
			{"10.1.2.5 dev up0", "elsewhere: host/up0, want host/" + own},
			{"10.1.2.5 via 192.0.2.1", "elsewhere: host/up0 via 192.0.2.1, want host/" + own},
			{"blackhole 10.1.2.5", "nowhere, want host/" + own},
		} {
			contract.Host(t, w, "sysctl -qw net.ipv4.conf.%s.route_localnet=0", own)
			contract.Host(t, w, "ip route add %s", route.route)
			if _, err := p.Ensure(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			localnet("up0", "0")
			localnet(own, "1")
			if err := p.Verify(t.Context(), w); err == nil ||
				!strings.Contains(err.Error(), "route to 10.1.2.5 leads "+route.says) {
				t.Errorf("%s: %v", route.route, err)
			}
			contract.Host(t, w, "ip route del %s", route.route)
			contract.Verify(t, w, p)
		}
	}
	// A bridge that the host has no address on is not its way to the containers.
	contract.Host(t, w, "sysctl -qw net.ipv4.conf.br0.route_localnet=0")
	contract.Host(t, w, "ip addr flush dev br0")
	contract.Host(t, w, "ip route add 10.1.2.5 dev up0")
	contract.Ensure(t, w, p)
	contract.Verify(t, w, p)
	localnet("up0", "0")
	localnet("br0", "0")
}
