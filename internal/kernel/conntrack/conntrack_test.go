package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/kerneltest"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// track makes conntrack believe in a UDP flow.
func track(t testing.TB, ns *kernel.NS, orig, reply tuple) {
	t.Helper()
	const ctNew = unix.NFNL_SUBSYS_CTNETLINK << 8
	err := tell(ns, ctNew, unix.NLM_F_CREATE, orig.dst.Addr().Is6(), func(r *netlink.Requests) {
		putTuple(&r.Buffer, ctaTupleOrig, orig)
		putTuple(&r.Buffer, ctaTupleReply, reply)
		r.U32(7, 3600) // CTA_TIMEOUT
	})
	if err != nil {
		t.Fatal(err)
	}
}

// tracked is what conntrack(8) knows, as "destination>source of the answer".
func tracked(t testing.TB, ns *kernel.NS) (flows []string) {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		for line := range strings.Lines(nstest.RunIn(t, ns.Path, "conntrack", "-L", "-p", "udp", "-f", family)) {
			var v []string
			for _, f := range strings.Fields(line) {
				if k, x, ok := strings.Cut(f, "="); ok && (k == "src" || k == "dst" || k == "sport" || k == "dport") {
					v = append(v, x)
				}
			}
			if len(v) == 8 {
				flows = append(flows, fmt.Sprintf("%s:%s>%s:%s", v[1], v[3], v[4], v[6]))
			}
		}
	}
	slices.Sort(flows)
	return flows
}

// Of all that conntrack knows exactly the flows go that lead elsewhere now, whichever way they are found.
func TestForgetUDP(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		host, other, away, c1, c2, any := "192.0.2.1", "192.0.2.9", "198.51.100.1", "10.1.2.5", "10.1.2.6", "0.0.0.0"
		nodad := ""
		if v6 {
			nodad = " nodad"
			host, other, away, c1, c2, any = "2001:db8::1", "2001:db8::9", "2001:db8:1::1", "fd00::5", "fd00::6", "::"
		}
		addr, at := netip.MustParseAddr, func(a string,
			port uint16) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr(a), port)
		}
		client := at(map[bool]string{false: "203.0.113.1", true: "2001:db8:2::1"}[v6], 4000)
		for name, c := range map[string]struct {
			flow UDPFlow
			gone []string // destination>answer
		}{
			"any": {UDPFlow{Host: addr(any), Port: 53, To: at(c1, 5353)},
				[]string{host + ":53>" + host + ":53", other + ":53>" + other + ":53", host + ":53>" + c2 + ":5353"}},
			"one": {UDPFlow{Host: addr(host), Port: 53, To: at(c1, 5353)},
				[]string{host + ":53>" + host + ":53", host + ":53>" + c2 + ":5353"}},
			"gone": {UDPFlow{Host: addr(any), Port: 53, To: at(c2, 5353), Gone: true}, []string{host + ":53>" + c2 + ":5353"}},
		} {
			for _, way := range []string{"", "one read", "one read of all"} {
				t.Run(fmt.Sprintf("%s %s %v %s", name, any, v6, way), func(t *testing.T) {
					ns := kerneltest.Open(t)
					for _, line := range []string{"ip link add br0 type bridge", "ip addr add " + host + " dev br0" + nodad,
						"ip addr add " + other + " dev br0" + nodad,
						"ip link set br0 up", "nft add table inet t; add chain inet t c { type nat hook prerouting priority 0; }"} {
						f := strings.SplitN(line, " ", 2)
						if f[0] == "nft" {
							nstest.RunIn(t, ns.Path, "nft", f[1])
						} else {
							nstest.RunIn(t, ns.Path, f[0], strings.Fields(f[1])...)
						}
					}
					for _, a := range []string{host, other} { // the kernel makes the routes of IPv6 addresses in its own time
						if err := rtnl.Await(ns, t.Context(), nstest.Patience(t), []uint{rtnl.IPv6RouteEvents}, func() (bool, error) {
							r, err := rtnl.RouteTo(ns, addr(a))
							return err == nil && r.Type == rtnl.Local, nil
						}); err != nil {
							t.Fatalf("%s is not local: %v", a, err)
						}
					}
					if err := ForgetUDP(ns, []UDPFlow{c.flow}); err != nil { // of nothing
						t.Error(err)
					}
					for i, f := range []tuple{
						{at(host, 53), at(host, 53)}, {at(other, 53), at(other, 53)}, {at(away, 53), at(away, 53)},
						{at(host, 54), at(host, 54)}, {at(host, 53), at(c2, 5353)}, {at(host, 54), at(c2, 5353)},
					} {
						from := netip.AddrPortFrom(client.Addr(), client.Port()+uint16(i))
						track(t, ns, tuple{from, f.src}, tuple{f.dst, from})
					}
					if c.flow.Gone { // another one leads by now
						from := netip.AddrPortFrom(client.Addr(), 5000)
						track(t, ns, tuple{from, at(host, 53)}, tuple{at(c1, 5353), from})
					}
					before := tracked(t, ns)
					var err error
					orig, reply := c.flow.filter()
					switch way {
					case "":
						err = ForgetUDP(ns, []UDPFlow{c.flow})
					case "one read":
						err = forget(ns, v6, orig, reply, []UDPFlow{c.flow})
					default:
						err = forget(ns, v6, tuple{}, tuple{}, []UDPFlow{c.flow})
					}
					if err != nil {
						t.Fatal(err)
					}
					want := slices.DeleteFunc(slices.Clone(before), func(f string) bool { return slices.Contains(c.gone, f) })
					if got := tracked(t, ns); !slices.Equal(got, want) || len(before)-len(want) != len(c.gone) {
						t.Errorf("left %q\nwant %q\nof   %q", got, want, before)
					}
				})
			}
		}
	}
}

// Whether it is worth to look through conntrack is known without doing so.
func TestMayKnowUDP(t *testing.T) {
	ns := kerneltest.Open(t)
	nstest.RunIn(t, ns.Path, "nft", "add table inet t; add chain inet t c { type nat hook prerouting priority 0; }")
	port := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	track(t, ns, tuple{port("192.0.2.2:4000"), port("192.0.2.1:53")}, tuple{port("10.1.2.5:5353"), port("192.0.2.2:4000")})
	track(t, ns, tuple{port("[2001:db8::2]:4000"), port("[2001:db8::1]:100")},
		tuple{port("[fd00::5]:200"), port("[2001:db8::2]:4000")})
	for _, c := range []struct {
		first, last uint16
		want        bool
	}{
		{53, 53, true}, {53, 0, true}, {50, 60, true}, {100, 0, true}, {100, 200, true}, {99, 100, true},
		{54, 99, false}, {4000, 0, false}, {5353, 0, false}, {200, 0, false}, {1, 52, false}, {101, 65535, false},
	} {
		if got := mayKnow(ns, aboutPorts([]UDPFlow{{Port: c.first, Last: c.last}})); got != c.want {
			t.Errorf("%d-%d: %v", c.first, c.last, got)
		}
	}
}
