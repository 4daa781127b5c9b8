package rtnl

import (
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// TestSettings compares the numbers of the kernel's arrays with the files that say the same.
func TestSettings(t *testing.T) {
	ns, err := kernel.Open(nstest.NewNS(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	nstest.RunIn(t, ns.Path, "ip", "link", "add", "ens4", "type", "veth", "peer", "name", "wire")
	l, err := LinkByName(ns, "ens4")
	if err != nil {
		t.Fatal(err)
	}
	for key := range l.Settings() {
		family, file, _ := strings.Cut(key, " ")
		path := "net/" + family + "/conf/ens4/" + file
		was, err := procsys.Get(ns, path)
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		want := 1
		if was == "1" {
			want = 0
		}
		if _, err := procsys.Set(ns, procsys.Setting{Key: path, Value: strconv.Itoa(want)}); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		is, err := LinkByName(ns, "ens4")
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := is.Settings()[key]; got != int32(want) || !ok {
			t.Errorf("%s: the kernel says %d, the file %d", key, got, want)
		}
	}
	if n := len(l.Settings()); n < 30 {
		t.Errorf("only %d settings", n)
	}
}

// TestSaved: addresses and routes come back with all that they have.
func TestSaved(t *testing.T) {
	ns, err := kernel.Open(nstest.NewNS(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	run := func(command string) string { return nstest.RunIn(t, ns.Path, "sh", "-ec", command) }
	run(`ip link set lo up; ip link add ens4 up type veth peer name wire; ip link set wire up
		ip addr add 192.0.2.4 peer 192.0.2.5 dev ens4 label ens4:p metric 7; ip addr add 203.0.113.4/24 dev ens4 noprefixroute
		ip addr add 2001:db8::4/64 dev ens4 nodad; ip addr add 2001:db8::5/64 dev ens4 nodad valid_lft 1000 preferred_lft 900
		ip route add 203.0.113.0/24 dev ens4 src 203.0.113.4
		ip route add 198.51.100.0/24 via 203.0.113.1 src 203.0.113.4 metric 50 mtu lock 1300 table 77
		ip route add 198.51.101.0/24 via inet6 2001:db8::1 dev ens4
		ip route add 198.51.102.0/24 via 198.18.0.1 dev ens4 onlink
		ip -6 route add default via 2001:db8::1 metric 5 pref high`)
	const show = `{ ip -o addr show dev ens4 scope global permanent; ip -4 route show table all dev ens4; ip -6 route show dev ens4; } | sed 's/^[0-9]*: //' | grep -v fe80`
	before := run(show)
	l, err := LinkByName(ns, "ens4")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := SaveAddrs(ns, l.Index)
	if err != nil {
		t.Fatal(err)
	}
	routes, err := SaveRoutes(ns, l.Index)
	if err != nil {
		t.Fatal(err)
	}
	if len(addrs) != 3 || len(routes) != 5 {
		t.Errorf("%d addresses and %d routes, want 3 and 5", len(addrs), len(routes))
	}
	run("ip link del ens4; ip link add unused type bridge; ip link add ens4 up type veth peer name wire; ip link set wire up")
	again, err := LinkByName(ns, "ens4")
	if err != nil || again.Index == l.Index {
		t.Fatalf("%+v, %v", again, err)
	}
	for _, a := range addrs {
		if err := RestoreAddr(ns, again.Index, a); err != nil {
			t.Error(err)
		}
	}
	for _, r := range routes {
		if err := RestoreRoute(ns, again.Index, r); err != nil {
			t.Error(err)
		}
	}
	if after := run(show); after != before {
		t.Errorf("now\n%s\nbefore\n%s", after, before)
	}
}
