package addr

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/link/linktest"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// attached is a world with a bridge and a container on it that has 10.1.0.2/16 and fd00::2/64, and a plan that
// makes it so.
func attached(ifname string) plan.Plan {
	o := contract.Owner
	o.IfName = ifname
	v := linktest.Veth(o, "cni0")
	v.Down = true
	return plan.Plan{
		link.Bridge{Name: "cni0"}, v, sysctl.EnableIPv6{Link: ifname, NoDAD: true},
		Addr{Link: ifname, Prefix: netip.MustParsePrefix("10.1.0.2/16")},
		Addr{Link: ifname, Prefix: netip.MustParsePrefix("fd00::2/64"), NoDAD: true},
		link.Up{Link: ifname},
		Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("10.1.0.1/16")},
		Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("fd00::1/64")},
	}
}

// clause: P14
func TestRoute(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, attached("eth0")...)
	via4, via6 := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00::1")
	for _, c := range []struct {
		route    Route
		breakers []contract.Breakage
	}{
		{Route{Link: "eth0", Dst: contract.Default4, Via: via4}, []contract.Breakage{
			contract.Break("gone", contract.In(w, "ip route del default"), "is missing"),
			contract.Break("another router", contract.In(w, "ip route replace default via 10.1.0.9"), "is missing")}},
		{Route{Link: "eth0", Dst: contract.Default6, Via: via6}, []contract.Breakage{
			contract.Break("gone", contract.In(w, "ip -6 route del default"), "is missing")}},
		{Route{Link: "eth0", Dst: netip.MustParsePrefix("192.0.2.0/24"), Via: via4, Src: netip.MustParseAddr("10.1.0.2"),
			MTU: 1300, AdvMSS: 1200, Priority: 7}, []contract.Breakage{
			contract.Break("mtu", contract.In(w, "ip route change 192.0.2.0/24 via 10.1.0.1 src 10.1.0.2 metric 7 mtu 1400 advmss 1200"), "mtu is 1400"),
			contract.Break("advmss", contract.In(w, "ip route change 192.0.2.0/24 via 10.1.0.1 src 10.1.0.2 metric 7 mtu 1300 advmss 1100"), "advmss is 1100"),
			contract.Break("src", contract.In(w, "ip addr add 10.1.0.3/32 dev eth0",
				"ip route change 192.0.2.0/24 via 10.1.0.1 src 10.1.0.3 metric 7 mtu 1300 advmss 1200"), "src is 10.1.0.3"),
			contract.Break("metric", contract.In(w, "ip route del 192.0.2.0/24",
				"ip route add 192.0.2.0/24 via 10.1.0.1 metric 8"), "is missing")}},
		{Route{Link: "eth0", Dst: netip.MustParsePrefix("2001:db8::/32"), Via: via6, MTU: 1300, Priority: 7},
			[]contract.Breakage{
				contract.Break("mtu", contract.In(w, "ip route change 2001:db8::/32 via fd00::1 metric 7 mtu 1400"),
					"mtu is 1400")}},
		{Route{Link: "eth0", Dst: netip.MustParsePrefix("198.51.100.0/24")}, nil},
		{Route{Link: "eth0", Dst: netip.MustParsePrefix("198.51.100.0/24"), Table: 1000, Scope: 253, HasScope: true},
			[]contract.Breakage{
				contract.Break("scope", contract.In(w, "ip route del 198.51.100.0/24 table 1000",
					"ip route add 198.51.100.0/24 dev eth0 table 1000 scope global"), "scope is 0")}},
		{Route{Link: "eth0", Dst: netip.MustParsePrefix("203.0.113.0/24"), Via: netip.MustParseAddr("203.0.113.1"),
			OnLink: true}, []contract.Breakage{
			contract.Break("gone", contract.In(w, "ip route del 203.0.113.0/24"), "is missing")}},
		{Route{Link: "eth0", Dst: netip.MustParsePrefix("203.0.114.0/24"), Via: via6}, []contract.Breakage{
			contract.Break("gone", contract.In(w, "ip route del 203.0.114.0/24"), "is missing")}},
		{Route{Where: resource.Host, Link: "cni0", Dst: netip.MustParsePrefix("192.0.2.7/32")}, []contract.Breakage{
			contract.Break("gone", contract.On(w, "ip route del 192.0.2.7"), "is missing")}},
		{Route{Link: "eth0", Dst: netip.MustParsePrefix("192.0.2.99/16"), Via: via4}, nil}, // host bits do not count
	} {
		t.Run(c.route.String(), func(t *testing.T) {
			contract.Terms{Repair: func(t *testing.T) {
				if c.route.Where == resource.Container {
					for _, family := range []string{"-4", "-6"} {
						contract.Container(t, w, "ip %s route flush table all exact %v", family, flushable(c.route.Dst, family))
					}
				}
				contract.Must(t, w, c.route)
			}}.Test(t, w, c.route, c.breakers...)
			if there, err := c.route.Present(t.Context(), w); err != nil || !there {
				t.Errorf("present: %v, %v", there, err)
			}
		})
	}
	t.Run("no way to the router", func(t *testing.T) {
		_, err := Route{Link: "eth0", Dst: netip.MustParsePrefix("192.0.3.0/24"),
			Via: netip.MustParseAddr("203.0.113.1")}.Ensure(t.Context(), w)
		if !errors.Is(err, unix.ENETUNREACH) || !strings.Contains(err.Error(), "Nexthop has invalid gateway") {
			t.Errorf("the kernel's own words: %v", err)
		}
		if hint := spec.AsError(err, 0).Hint; !strings.Contains(hint,
			"Give the route a router in a subnet of the container's") {
			t.Errorf("hint %q", hint)
		}
	})
	t.Run("several routers coexist", func(t *testing.T) {
		dst := netip.MustParsePrefix("192.0.4.0/24")
		a := Route{Link: "eth0", Dst: dst, Via: via4}
		b := Route{Link: "eth0", Dst: dst, Via: netip.MustParseAddr("10.1.0.9")}
		contract.Must(t, w, a)
		contract.Test(t, w, b)
		c := Route{Link: "eth0", Dst: netip.MustParsePrefix("2001:db8:1::/48"), Via: via6}
		d := Route{Link: "eth0", Dst: c.Dst, Via: netip.MustParseAddr("fd00::9")}
		contract.Must(t, w, c)
		contract.Test(t, w, d)
		for _, r := range []Route{a, b, c, d} {
			if err := r.Verify(t.Context(), w); err != nil {
				t.Errorf("%v: %v", r, err)
			}
		}
	})
	t.Run("same in what tells routes apart, other in the rest", func(t *testing.T) {
		a := Route{Link: "eth0", Dst: netip.MustParsePrefix("2001:db8:2::/48"), Via: via6, MTU: 1300}
		contract.Must(t, w, a)
		a.MTU = 1400
		if changed, err := a.Ensure(t.Context(), w); changed || err == nil || !strings.Contains(err.Error(), "mtu is 1300") {
			t.Errorf("changed %v, error %v", changed, err)
		}
	})
	// clause: P16
	t.Run("moved to another table by a later plugin", func(t *testing.T) {
		r := Route{Link: "eth0", Dst: netip.MustParsePrefix("192.0.5.0/24"), Via: via4}
		contract.Must(t, w, r)
		contract.Container(t, w, "ip route del 192.0.5.0/24")
		contract.Container(t, w, "ip route add 192.0.5.0/24 via 10.1.0.1 table 100")
		if err := r.Verify(t.Context(), w); err == nil {
			t.Error("no rule leads to the table")
		}
		contract.Container(t, w, "ip rule add from 10.1.0.2 lookup 100")
		if err := r.Verify(t.Context(), w); err != nil {
			t.Error(err)
		}
		r.Table = 254
		if err := r.Verify(t.Context(), w); err == nil {
			t.Error("the table was asked for")
		}
		r.Table, r.Via = 0, netip.MustParseAddr("10.1.0.9")
		if err := r.Verify(t.Context(), w); err == nil {
			t.Error("it is by another router")
		}
		d := Route{Link: "eth0", Dst: contract.Default4, Via: via4}
		contract.Container(t, w, "ip route add default via 10.1.0.9 table 100")
		if err := d.Verify(t.Context(), w); err != nil {
			t.Errorf("a default route that has got another router: %v", err)
		}
		contract.Container(t, w, "ip rule del from 10.1.0.2")
	})
}

// flushable is dst for the flush of its own family, and what does not exist for the other's.
func flushable(dst netip.Prefix, family string) string {
	switch {
	case dst.Addr().Is4() == (family == "-4"):
		return dst.Masked().String()
	case family == "-4":
		return "240.0.0.0/32"
	}
	return "2001:db8:ffff::/128"
}

// clause: P25
func TestDefaultRouteOfAnotherNetwork(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, attached("eth0")...)
	o := contract.Owner
	o.IfName = "eth1"
	contract.Must(t, w, linktest.Veth(o, ""), sysctl.EnableIPv6{Link: "eth1", NoDAD: true},
		Addr{Link: "eth1", Prefix: netip.MustParsePrefix("10.2.0.2/16")}, Addr{Link: "eth1",
			Prefix: netip.MustParsePrefix("fd01::2/64"), NoDAD: true})
	for _, c := range []struct {
		first, second Route
		skipped       bool
	}{
		{Route{Link: "eth0", Dst: contract.Default4, Via: netip.MustParseAddr("10.1.0.1")},
			Route{Link: "eth1", Dst: contract.Default4, Via: netip.MustParseAddr("10.2.0.1")}, true},
		{Route{Link: "eth0", Dst: contract.Default6, Via: netip.MustParseAddr("fd00::1")},
			Route{Link: "eth1", Dst: contract.Default6, Via: netip.MustParseAddr("fd01::1")}, true},
		{Route{Link: "eth0", Dst: contract.Default4, Via: netip.MustParseAddr("10.1.0.1")},
			Route{Link: "eth1", Dst: contract.Default4, Via: netip.MustParseAddr("10.2.0.1"), Priority: 10}, false},
		{Route{Link: "eth0", Dst: contract.Default6, Via: netip.MustParseAddr("fd00::1")},
			Route{Link: "eth1", Dst: contract.Default6, Via: netip.MustParseAddr("fd01::1"), Priority: 10}, false},
		{Route{Link: "eth0", Dst: contract.Default4, Via: netip.MustParseAddr("10.1.0.1")},
			Route{Link: "eth1", Dst: contract.Default4, Via: netip.MustParseAddr("10.2.0.1"), Table: 100}, false},
		{Route{Link: "eth0", Dst: contract.Default4, Via: netip.MustParseAddr("10.1.0.1")},
			Route{Link: "eth0", Dst: contract.Default4, Via: netip.MustParseAddr("10.1.0.9")}, false},
		{Route{Link: "eth0", Dst: contract.Default6, Via: netip.MustParseAddr("fd00::1")},
			Route{Link: "eth0", Dst: contract.Default6, Via: netip.MustParseAddr("fd00::9")}, false},
	} {
		t.Run(c.second.String(), func(t *testing.T) {
			contract.Must(t, w, c.first)
			before := contract.State(t, w)
			changed, err := c.second.Ensure(t.Context(), w)
			if err != nil || changed == c.skipped {
				t.Errorf("changed %v, error %v", changed, err)
			}
			there, err := c.second.Present(t.Context(), w)
			if err != nil || there == c.skipped {
				t.Errorf("present %v, error %v", there, err)
			}
			if err := c.second.Verify(t.Context(), w); (err != nil) != c.skipped {
				t.Errorf("verify: %v", err)
			}
			if after := contract.State(t, w); c.skipped && after != before {
				t.Errorf("changed:%s", contract.Difference(before, after))
			}
			if err := c.first.Verify(t.Context(), w); err != nil {
				t.Errorf("the first: %v", err)
			}
			contract.Container(t, w, "ip -4 route flush table all exact 0.0.0.0/0")
			contract.Container(t, w, "ip -6 route flush table all exact ::/0")
		})
	}
}

// clause: P15
func TestSysctl(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, linktest.Veth(contract.Owner, ""))
	contract.Container(t, w, "ip link set eth0 down")
	contract.Container(t, w, "ip link set eth0 name eth0.5")
	for _, key := range []string{"net.ipv4.conf.eth0/5.rp_filter", "net/ipv4/conf/eth0.5/rp_filter",
		"net.ipv4.conf.eth0.5.rp_filter"} {
		contract.Container(t, w, "sysctl -qw net/ipv4/conf/eth0.5/rp_filter=0")
		contract.Test(t, w, sysctl.Sysctl{Key: key, Value: "2"},
			contract.Break("value", contract.In(w, "sysctl -qw net/ipv4/conf/eth0.5/rp_filter=1"), "is 1, want 2"))
	}
	contract.Test(t, w, sysctl.Sysctl{Key: "net.ipv4.ip_local_port_range", Value: "20000 30000"},
		contract.Break("value", func(t *testing.T) {
			if _, err := procsys.Set(w.Container, procsys.Setting{Key: "net/ipv4/ip_local_port_range",
				Value: "20000 30001"}); err != nil {
				t.Fatal(err)
			}
		}, "30001, want 20000 30000"))
	contract.Test(t, w, sysctl.Sysctl{Where: resource.Host, Key: "net/ipv4/conf/all/forwarding", Value: "1"},
		contract.Break("value", contract.On(w, "sysctl -qw net.ipv4.conf.all.forwarding=0"), "is 0, want 1"))
	if _, err := (sysctl.Sysctl{Key: "net/ipv4/route/flush", Value: "1"}).Ensure(t.Context(), w); err != nil {
		t.Errorf("one that can only be written: %v", err)
	}
	for _, c := range []struct{ key, want string }{
		{"kernel.hostname", "not of a network namespace"},
		{"net/../kernel/hostname", "not a key"},
		{"net..ipv4", "not a key"},
		{"", "not a key"},
		{"/net/ipv4/ip_forward", "not a key"},
		{"net.ipv4.none", "no such file"},
		{"net.ipv4.conf.eth0/5.rp_filter", "invalid argument"},
	} {
		if _, err := (sysctl.Sysctl{Key: c.key, Value: "x"}).Ensure(t.Context(), w); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.key, err, c.want)
		}
	}
}

// A node may have its /proc/sys read-only: what is right already has to do.
func TestReadOnlySysctls(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, attached("eth0")...)
	contract.Host(t, w, "sysctl -qw net.ipv4.ip_forward=1")
	contract.Container(t, w, "sysctl -qw net.ipv4.conf.eth0.rp_filter=1")
	if err := unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount("/proc/sys", unix.MNT_DETACH) })
	if err := unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for _, r := range []plan.Resource{
		sysctl.Sysctl{Key: "net.ipv4.conf.eth0.rp_filter", Value: "1"}, sysctl.Forwarding{}, sysctl.EnableIPv6{Link: "eth0",
			NoDAD: true},
	} {
		if changed, err := r.Ensure(t.Context(), w); changed || err != nil {
			t.Errorf("%v: changed %v, error %v", r, changed, err)
		}
	}
	if _, err := (sysctl.Sysctl{Key: "net.ipv4.conf.eth0.rp_filter", Value: "2"}).Ensure(t.Context(), w); !errors.Is(err,
		unix.EROFS) {
		t.Errorf("another value: %v", err)
	}
	contract.Must(t, w, Announce{Link: "eth0",
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16"), netip.MustParsePrefix("fd00::2/64")}})
	o := contract.Owner
	o.IfName = "eth1"
	contract.Must(t, w, linktest.Veth(o, "cni0")) // a port hears no router advertisements whatever accept_ra says
	o.IfName = "eth2"
	before := contract.State(t, w)
	if _, err := linktest.Veth(o, "").Ensure(t.Context(), w); !errors.Is(err, unix.EROFS) ||
		!strings.Contains(err.Error(), "accept_ra") {
		t.Errorf("a pair whose host end would believe the container: %v", err)
	}
	if after := contract.State(t, w); after != before {
		t.Errorf("left behind:%s", contract.Difference(before, after))
	}
}

func TestKernelWithoutIPv6(t *testing.T) {
	w := contract.NewWorld(t)
	for _, ns := range []*kernel.NS{w.Host, w.Container} {
		if err := ns.Do(func() error { return unix.Mount("tmpfs", "/proc/sys/net/ipv6", "tmpfs", 0, "") }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := ns.Do(func() error { return unix.Unmount("/proc/sys/net/ipv6", unix.MNT_DETACH) }); err != nil {
				t.Error(err)
			}
		})
	}
	p := plan.Plan{link.Bridge{Name: "cni0"}, linktest.Veth(contract.Owner, "cni0"), sysctl.IPv6Off{Link: "eth0"},
		Addr{Link: "eth0", Prefix: netip.MustParsePrefix("10.1.0.2/16")},
		Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("10.1.0.1/16")}, sysctl.Forwarding{},
		Announce{Link: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")},
			Port: identity.LinkName("veth", contract.Owner)}}
	contract.Must(t, w, p...)
	if err := engine.Verify(t.Context(), w, p); err != nil {
		t.Error(err)
	}
	for _, r := range []plan.Resource{sysctl.EnableIPv6{Link: "eth0"}, sysctl.Forwarding{V6: true}} {
		if _, err := r.Ensure(t.Context(), w); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: %v", r, err)
		}
	}
}

func TestIPv6OnAndOff(t *testing.T) {
	w := contract.NewWorld(t)
	v := linktest.Veth(contract.Owner, "")
	v.Down = true
	contract.Must(t, w, v)
	contract.Container(t, w, "sysctl -qw net.ipv6.conf.lo.disable_ipv6=1 net.ipv6.conf.eth0.disable_ipv6=1")
	contract.Test(t, w, sysctl.EnableIPv6{Link: "eth0", NoDAD: true},
		contract.Break("link", contract.In(w, "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1"), "eth0/disable_ipv6 is 1"),
		contract.Break("lo", contract.In(w, "sysctl -qw net.ipv6.conf.lo.disable_ipv6=1"), "lo/disable_ipv6 is 1"),
		contract.Break("keep", contract.In(w, "sysctl -qw net.ipv6.conf.eth0.keep_addr_on_down=0"), "keep_addr_on_down is 0"),
		contract.Break("dad", contract.In(w, "sysctl -qw net.ipv6.conf.eth0.accept_dad=1"), "accept_dad is 1"),
	)
	contract.Test(t, w, sysctl.EnableIPv6{Link: "eth0"},
		contract.Break("dad", contract.In(w, "sysctl -qw net.ipv6.conf.eth0.accept_dad=0"), "accept_dad is 0"))
	contract.Test(t, w, sysctl.IPv6Off{Link: "eth0"},
		contract.Break("on", contract.In(w, "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0"), "disable_ipv6 is 0"))
	contract.Must(t, w, link.Up{Link: "eth0"})
	if out := contract.Container(t, w, "ip -6 addr show dev eth0"); out != "" {
		t.Errorf("addresses with IPv6 off: %s", out)
	}
	if _, err := (sysctl.IPv6Off{Link: "none0"}).Ensure(t.Context(), w); !errors.Is(err, rtnl.ErrNoLink) {
		t.Error(err)
	}
	// All or nothing: the last setting fails, and the first ones are taken back.
	contract.Container(t, w, "sysctl -qw net.ipv6.conf.lo.disable_ipv6=1")
	if changed, err := (sysctl.EnableIPv6{Link: "none0"}).Ensure(t.Context(), w); changed || err == nil {
		t.Errorf("changed %v, error %v", changed, err)
	}
	if v := contract.Sysctl(t, w.Container, "net/ipv6/conf/lo/disable_ipv6"); v != "1" {
		t.Errorf("lo's disable_ipv6 is %s", v)
	}
}

// clause: P15
func TestForwarding(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Host(t, w, "sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")
	contract.Test(t, w, sysctl.Forwarding{},
		contract.Break("off", contract.On(w, "sysctl -qw net.ipv4.ip_forward=0"), "ip_forward is 0, want 1"))
	contract.Test(t, w, sysctl.Forwarding{V6: true},
		contract.Break("off", contract.On(w, "sysctl -qw net.ipv6.conf.all.forwarding=0"), "forwarding is 0, want 1"))
}

// clause: P17
func TestAnnounceWaits(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, attached("eth0")...)
	a := Announce{Link: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")},
		Port: identity.LinkName("veth", contract.Owner)}
	contract.Must(t, w, a)
	if err := a.Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
	contract.Container(t, w, "ip link set eth0 down")
	if _, err := a.Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), "link cont/eth0 is down") {
		t.Errorf("a link that is down: %v", err)
	}
	if err := a.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "cont/eth0 is not operational") ||
		!strings.Contains(err.Error(), "host/veth") {
		t.Errorf("verify a link that is down: %v", err)
	}
	contract.Container(t, w, "ip link set eth0 up")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := rtnl.Await(w.Host, ctx, resource.CarrierLimit, []uint{rtnl.LinkEvents},
		func() (bool, error) { return false, nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	// A port that listens for the spanning tree's word does not forward for long; the addition goes on.
	contract.Host(t, w, "ip link set cni0 type bridge stp_state 1 forward_delay 3000")
	contract.Container(t, w, "ip link set eth0 down")
	contract.Container(t, w, "ip link set eth0 up")
	contract.Must(t, w, a)
}
