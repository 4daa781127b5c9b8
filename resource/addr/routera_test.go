package addr

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A default route that a router advertised stays the kernel's, with its end, when the attachment has the same one.
func TestRouteByRouterKeepsItsEnd(t *testing.T) {
	w := contract.NewWorld(t)
	path := w.Container.Path
	nstest.RunIn(t, path, "sh", "-ec", `ip link add eth0 type veth peer name eth1
		echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad; ip link set eth0 up; ip link set eth1 up
		ip -6 route add default via fe80::1 dev eth0 proto ra expires 1000`)
	r := Route{Link: "eth0", Dst: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr("fe80::1")}
	if changed, err := r.Ensure(t.Context(), w); changed || err != nil {
		t.Errorf("changed %v, %v", changed, err)
	}
	if out := nstest.RunIn(t, path, "ip", "-6", "route", "show", "default"); !strings.Contains(out, "proto ra") ||
		!strings.Contains(out, "expires") || strings.Count(out, "default") != 1 {
		t.Errorf("the routes are %s", out)
	}
	if err := r.Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
	nstest.RunIn(t, path, "ip", "-6", "route", "del", "default")
	if err := r.Verify(t.Context(), w); err == nil {
		t.Error("it is gone")
	}
}
