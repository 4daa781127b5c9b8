package kernel

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// track makes conntrack believe in a UDP flow.
func track(t testing.TB, ns *NS, orig, reply tuple) {
	t.Helper()
	c, err := ns.conn(unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.requests()
	r.begin(unix.NFNL_SUBSYS_CTNETLINK<<8, unix.NLM_F_CREATE|unix.NLM_F_ACK, ctFamily(orig.dst.Addr().Is6())...)
	r.tuple(ctaTupleOrig, orig)
	r.tuple(ctaTupleReply, reply)
	r.u32(7, 3600) // CTA_TIMEOUT
	if err := c.confirm(r); err != nil {
		t.Fatal(err)
	}
}

// tracked is what conntrack(8) knows, as "destination>source of the answer".
func tracked(t testing.TB, ns *NS) (flows []string) {
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
					_, ns := newNFT(t)
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
						if err := ns.Await(t.Context(), time.Minute, []uint{IPv6RouteEvents}, func() (bool, error) {
							r, err := ns.RouteTo(addr(a))
							return err == nil && r.Type == Local, nil
						}); err != nil {
							t.Fatalf("%s is not local: %v", a, err)
						}
					}
					if err := ns.ForgetUDP([]UDPFlow{c.flow}); err != nil { // of nothing
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
						err = ns.ForgetUDP([]UDPFlow{c.flow})
					case "one read":
						err = ns.forget(v6, orig, reply, []UDPFlow{c.flow})
					default:
						err = ns.forget(v6, tuple{}, tuple{}, []UDPFlow{c.flow})
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
	_, ns := newNFT(t)
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
		if got := ns.mayKnow(aboutPorts([]UDPFlow{{Port: c.first, Last: c.last}})); got != c.want {
			t.Errorf("%d-%d: %v", c.first, c.last, got)
		}
	}
}

func TestListens(t *testing.T) {
	_, ns := newNFT(t)
	nstest.RunIn(t, ns.Path, "ip", "link", "set", "lo", "up")
	err := ns.Do(func() error {
		l, err := net.Listen("tcp4", "0.0.0.0:80")
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		u, err := net.ListenPacket("udp6", "[::1]:53")
		if err != nil {
			return err
		}
		t.Cleanup(func() { u.Close() })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr
	for _, c := range []struct {
		proto       byte
		host        string
		first, last uint16
		want        uint16
	}{
		{TCP, "0.0.0.0", 80, 80, 80}, {TCP, "192.0.2.1", 80, 80, 80}, {TCP, "0.0.0.0", 81, 81, 0}, {UDP, "0.0.0.0", 80, 80,
			0},
		{TCP, "::", 80, 80, 0}, {UDP, "::1", 53, 53, 53}, {UDP, "::", 53, 53, 0},
		{TCP, "0.0.0.0", 1, 1000, 80}, {TCP, "192.0.2.1", 80, 81, 80}, {TCP, "0.0.0.0", 79, 80, 80}, {TCP, "0.0.0.0", 81,
			65535, 0}, {TCP, "0.0.0.0", 1, 79, 0},
		{UDP, "0.0.0.0", 1, 1000, 0}, {TCP, "::", 1, 1000, 0}, {UDP, "::1", 1, 1000, 53}, {UDP, "::", 1, 1000, 53}, {UDP,
			"::2", 1, 1000, 0},
	} {
		got, ok := ns.Listens(c.proto, addr(c.host), c.first, c.last)
		if ok != (c.want != 0) || ok && got != c.want {
			t.Errorf("%s %s %d-%d: %d %v", ProtoName(c.proto), c.host, c.first, c.last, got, ok)
		}
	}
}

func TestListeners(t *testing.T) {
	_, ns := newNFT(t)
	nstest.RunIn(t, ns.Path, "ip", "link", "set", "lo", "up")
	err := ns.Do(func() error {
		for _, at := range []string{"tcp4 127.0.0.1:80", "tcp6 [::1]:80", "tcp [::]:81"} {
			network, addr, _ := strings.Cut(at, " ")
			l, err := net.Listen(network, addr)
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
		}
		u, err := net.ListenPacket("udp4", "0.0.0.0:53")
		if err != nil {
			return err
		}
		t.Cleanup(func() { u.Close() })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		proto byte
		port  uint16
		want  []string
		takes string // what 192.0.2.1, 2001:db8::1 and 127.0.0.1 get to
	}{
		{TCP, 80, []string{"127.0.0.1:80", "[::1]:80"}, "false false true"},
		{TCP, 81, []string{"[::]:81"}, "true true true"},
		{UDP, 53, []string{"0.0.0.0:53"}, "true false true"},
		{UDP, 80, nil, "false false false"},
	} {
		all, err := ns.Listeners(c.proto, c.port)
		var got []string
		var takes [3]bool
		for _, l := range all {
			got = append(got, l.At.String())
			for i, a := range []string{"192.0.2.1", "2001:db8::1", "127.0.0.1"} {
				takes[i] = takes[i] || l.Takes(netip.MustParseAddr(a))
			}
			if l.Inode == 0 {
				t.Errorf("%v has no inode", l.At)
			}
		}
		if text := fmt.Sprint(takes[0], takes[1], takes[2]); err != nil || !slices.Equal(got, c.want) || text != c.takes {
			t.Errorf("%s %d: %q %s %v, want %q %s", ProtoName(c.proto), c.port, got, text, err, c.want, c.takes)
		}
	}
}
