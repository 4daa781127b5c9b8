package policy_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestPortsOfContainer attaches a container twice, and another one: each of the container's ports may send with both of
// its addresses. What one attachment has goes with it, in any order.
func TestPortsOfContainer(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	contract.Host(t, w, "ip link add p1 type veth peer name p2")
	contract.Host(t, w, "ip link add p3 type veth peer name p4")
	filtertest.MakeTables(t, w)
	before := filtertest.Elements(t, w)
	port := func(container, ifName, link, addr string) policy.IsolatedPort {
		return policy.IsolatedPort{Owner: spec.Owner{Network: "net", ContainerID: container, IfName: ifName},
			Link: link, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
	}
	first, second := port("c1", "eth0", "p1", "10.1.2.1"), port("c1", "eth1", "p2", "10.1.2.2")
	other := port("c2", "eth0", "p3", "10.1.2.3")
	pairs := func() string {
		list := setText(filtertest.NFT(t, w, "list ruleset"), "port_addresses_ip")
		var all []string
		for _, link := range []string{"p1", "p2", "p3"} {
			for _, addr := range []string{"10.1.2.1", "10.1.2.2", "10.1.2.3"} {
				if strings.Contains(list, `"`+link+`" . `+addr) {
					all = append(all, link+"."+addr[len(addr)-1:])
				}
			}
		}
		return strings.Join(all, " ")
	}
	expect := func(when, want string) {
		t.Helper()
		if got := pairs(); got != want {
			t.Errorf("%s: pairs are %q, want %q", when, got, want)
		}
	}
	for _, order := range [][]policy.IsolatedPort{{first, second}, {second, first}} {
		goes, stays := order[0], order[1]
		for _, p := range []policy.IsolatedPort{first, other, second} {
			contract.Ensure(t, w, p)
		}
		for _, p := range []policy.IsolatedPort{first, other, second} {
			contract.Verify(t, w, p)
			if changed, err := p.Ensure(t.Context(), w); err != nil || changed {
				t.Errorf("%v again: %v, %v", p, changed, err)
			}
		}
		expect("attached twice", "p1.1 p1.2 p2.1 p2.2 p3.3")
		filtertest.NFT(t, w, "delete element bridge fairlead port_addresses_ip { p1 . 10.1.2.2 }")
		if err := second.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "p1 . 10.1.2.2 } is missing") {
			t.Errorf("without the second address at the first port: %v", err)
		}
		contract.Verify(t, w, first)
		contract.Ensure(t, w, second)
		contract.Remove(t, w, goes)
		contract.Verify(t, w, stays)
		contract.Verify(t, w, other)
		addr := stays.Addrs[0].String()[len("10.1.2."):]
		expect("after one is detached", "p1."+addr+" p2."+addr+" p3.3")
		contract.Remove(t, w, stays)
		contract.Remove(t, w, other)
		if got := filtertest.Elements(t, w); got != before {
			t.Errorf("left:%s", contract.Difference(before, got))
		}
	}
}
