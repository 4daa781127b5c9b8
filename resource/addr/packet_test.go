package addr

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
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

// advertise sends, as a router on link would, that it is the way out and that 2001:db8:bad::/64 is the subnet.
func advertise(t testing.TB, ns *kernel.NS, link string) {
	t.Helper()
	ra := make([]byte, 16+32)
	ra[0], ra[4] = 134, 64
	binary.BigEndian.PutUint16(ra[6:], 1800)
	prefix := ra[16:]
	prefix[0], prefix[1], prefix[2], prefix[3] = 3, 4, 64, 0xc0
	binary.BigEndian.PutUint32(prefix[4:], 3600)
	binary.BigEndian.PutUint32(prefix[8:], 3600)
	net := netip.MustParseAddr("2001:db8:bad::").As16()
	copy(prefix[16:], net[:])

	fd := contract.RawSocket(t, ns, unix.AF_INET6, unix.IPPROTO_ICMPV6, nstest.Patience(t))
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
		t.Fatal(err)
	}
	l, err := rtnl.LinkByName(ns, link)
	if err != nil {
		t.Fatal(err)
	}
	// Routers speak from their link-local address, which the kernel makes in its own time.
	if err := rtnl.Await(ns, t.Context(), nstest.Patience(t), []uint{rtnl.IPv6AddrEvents}, func() (bool, error) {
		list, err := rtnl.Addrs(ns, l.Index)
		for _, a := range list {
			if a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast() && !a.Tentative {
				return true, nil
			}
		}
		return false, err
	}); err != nil {
		t.Fatalf("no link-local address: %v", err)
	}
	to := &unix.SockaddrInet6{Addr: netip.MustParseAddr("ff02::1").As16(), ZoneId: uint32(l.Index)}
	if err := unix.Sendto(fd, ra, 0, to); err != nil {
		t.Fatal(err)
	}
}

// hostRA is what ip(8) shows of advertised routes and addresses on the host.
func hostRA(t testing.TB, w *kernel.World) string {
	t.Helper()
	return contract.Host(t, w, "ip -6 route show proto ra") + contract.Host(t, w, "ip -6 addr show to 2001:db8:bad::/64")
}

// A router advertisement from the container gains the host neither a route nor an address.
func TestContainerAsRouter(t *testing.T) {
	o := contract.Owner
	believed := func(t *testing.T, w *kernel.World) {
		t.Helper()
		err := rtnl.Await(w.Host, t.Context(), nstest.Patience(t), []uint{rtnl.IPv6RouteEvents, rtnl.IPv6AddrEvents},
			func() (bool, error) {
				ra := hostRA(t, w)
				return strings.Contains(ra, "default via fe80") && strings.Contains(ra, "2001:db8:bad:"), nil
			})
		if err != nil {
			t.Fatalf("the advertisement is not believed where it should be, so the test shows nothing: %v", err)
		}
	}
	t.Run("the test's own advertisement counts", func(t *testing.T) {
		w := contract.NewWorld(t)
		v := linktest.Veth(o, "")
		v.Down = true
		contract.Must(t, w, v, sysctl.EnableIPv6{Link: "eth0", NoDAD: true})
		contract.Host(t, w, "sysctl -qw net.ipv6.conf.%s.accept_ra=1", v.Host)
		contract.Must(t, w, link.Up{Link: "eth0"}, Announce{Link: "eth0", Port: v.Host})
		advertise(t, w.Container, "eth0")
		believed(t, w)
	})
	for name, master := range map[string]string{"bridge": "cni0", "point to point": ""} {
		t.Run(name, func(t *testing.T) {
			w := contract.NewWorld(t)
			v := linktest.Veth(o, master)
			v.Down = true
			gateway := v.Host
			p := plan.Plan{v, sysctl.EnableIPv6{Link: "eth0", NoDAD: true},
				Addr{Link: "eth0", Prefix: netip.MustParsePrefix("fd00::2/64"), NoDAD: true}, link.Up{Link: "eth0"}}
			if master != "" {
				gateway = master
				p = append(plan.Plan{link.Bridge{Name: master}}, p...)
			}
			contract.Must(t, w, p...)
			contract.Must(t, w, Gateway{Link: gateway, Prefix: netip.MustParsePrefix("fd00::1/64")},
				Announce{Link: "eth0", Port: v.Host})
			advertise(t, w.Container, "eth0")
			// The answer comes after the advertisement was dealt with: both went the same way.
			if err := contract.Ping(t, w.Container, "fd00::1"); err != nil {
				t.Fatal(err)
			}
			if ra := hostRA(t, w); ra != "" {
				t.Errorf("the host believes its container: %s", ra)
			}
		})
	}
}

// A host that begins to forward IPv6 keeps the default route that its router advertised.
func TestForwardingKeepsTheUplink(t *testing.T) {
	uplink := func(t *testing.T) *kernel.World {
		w := contract.NewWorld(t) // its container is the router
		contract.Host(t, w, "ip link add up0 type veth peer name r0 netns %s", w.Container.Path)
		contract.Must(t, w, sysctl.EnableIPv6{Link: "r0", NoDAD: true}, link.Up{Link: "r0"},
			link.Up{Where: resource.Host, Link: "up0"})
		contract.Host(t, w, "ip link add quiet0 up type bridge")
		contract.Host(t, w, "ip link add daemon0 up type bridge")
		contract.Host(t, w, "sysctl -qw net.ipv6.conf.daemon0.accept_ra=0")
		contract.Host(t, w, "ip -6 route add 2001:db8:1::/48 dev daemon0 proto ra")
		contract.Must(t, w, Announce{Link: "r0", Port: "up0"})
		advertise(t, w.Container, "r0")
		if err := rtnl.Await(w.Host, t.Context(), nstest.Patience(t), []uint{rtnl.IPv6RouteEvents}, func() (bool, error) {
			return strings.Contains(hostRA(t, w), "default"), nil
		}); err != nil {
			t.Fatalf("no default route to begin with: %v", err)
		}
		return w
	}
	t.Run("the kernel alone would drop it", func(t *testing.T) {
		w := uplink(t)
		contract.Host(t, w, "sysctl -qw net.ipv6.conf.all.forwarding=1")
		if ra := hostRA(t, w); strings.Contains(ra, "default") {
			t.Errorf("it does not, so the test shows nothing: %s", ra)
		}
	})
	w := uplink(t)
	contract.Test(t, w, sysctl.Forwarding{V6: true})
	if ra := hostRA(t, w); !strings.Contains(ra, "default") {
		t.Errorf("the default route is gone: %s", ra)
	}
	for link, want := range map[string]string{"up0": "2", "quiet0": "1", "daemon0": "0"} {
		if v := contract.Sysctl(t, w.Host, "net/ipv6/conf/"+link+"/accept_ra"); v != want {
			t.Errorf("%s: accept_ra is %s, want %s", link, v, want)
		}
	}
	// And goes on to believe its router.
	contract.Host(t, w, "ip -6 route del default")
	advertise(t, w.Container, "r0")
	if err := rtnl.Await(w.Host, t.Context(), nstest.Patience(t), []uint{rtnl.IPv6RouteEvents}, func() (bool, error) {
		return strings.Contains(hostRA(t, w), "default"), nil
	}); err != nil {
		t.Errorf("does not come back: %v", err)
	}
}

// Right after an addition the first packet of each side arrives, in both families.
//
// clause: P17
func TestFirstPacket(t *testing.T) {
	w := contract.NewWorld(t)
	for i := range 10 {
		c := *w
		c.Container = contract.OpenNS(t)
		o := spec.Owner{Network: "net", ContainerID: "c" + strconv.Itoa(i), IfName: "eth0"}
		v := linktest.Veth(o, "cni0")
		four, six := fmt.Sprintf("10.1.0.%d", i+2), fmt.Sprintf("fd00::%d", i+2)
		addrs := []netip.Prefix{netip.MustParsePrefix(four + "/16"), netip.MustParsePrefix(six + "/64")}
		contract.Must(t, &c, link.Bridge{Name: "cni0"}, v,
			Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("10.1.0.1/16")},
			Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("fd00::1/64")},
			sysctl.EnableIPv6{Link: "eth0", NoDAD: true}, Addr{Link: "eth0", Prefix: addrs[0]}, Addr{Link: "eth0",
				Prefix: addrs[1], NoDAD: true},
			Announce{Link: "eth0", Addrs: addrs, Port: v.Host})
		var err error
		if i%2 == 0 { // either may be the first one
			err = contract.Ping(t, c.Host, four)
		} else {
			err = contract.Ping(t, c.Container, "fd00::1")
		}
		if err != nil {
			t.Error(err)
		}
		for _, p := range []struct {
			from *kernel.NS
			to   string
		}{{c.Container, "10.1.0.1"}, {c.Container, "fd00::1"}, {c.Host, four}, {c.Host, six}} {
			if err := contract.Ping(t, p.from, p.to); err != nil {
				t.Error(err)
			}
		}
	}
}

// A neighbour hears of the container's addresses without asking.
func TestAnnounce(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, attached("eth0")...)
	neighbour := *w
	neighbour.Container = contract.OpenNS(t)
	o := spec.Owner{Network: "net", ContainerID: "neighbour", IfName: "eth0"}
	contract.Must(t, &neighbour, linktest.Veth(o, "cni0"), Announce{Link: "eth0", Port: identity.LinkName("veth", o)})

	var fd int
	if err := neighbour.Container.Do(func() (err error) {
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network order
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all&0xffff)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	timeout := unix.NsecToTimeval(nstest.Patience(t).Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		t.Fatal(err)
	}

	a := Announce{Link: "eth0", Port: identity.LinkName("veth", contract.Owner),
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16"), netip.MustParsePrefix("fd00::2/64")}}
	changed, err := a.Ensure(t.Context(), w)
	if err != nil || !changed {
		t.Fatalf("changed %v, error %v", changed, err)
	}
	mac := identity.MAC("cont", contract.Owner)
	four, six := a.Addrs[0].Addr().AsSlice(), a.Addrs[1].Addr().AsSlice()
	arp, na := false, false
	for buf := make([]byte, 1600); !arp || !na; {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			t.Fatalf("arp %v, neighbour advertisement %v: %v", arp, na, err)
		}
		b := buf[:n]
		switch {
		case n >= 42 && bytes.Equal(b[12:14], []byte{8, 6}):
			arp = arp || bytes.Equal(b[22:28], mac) && bytes.Equal(b[28:32], four) && bytes.Equal(b[38:42], four)
		case n >= 86 && bytes.Equal(b[12:14], []byte{0x86, 0xdd}) && b[20] == unix.IPPROTO_ICMPV6 && b[54] == 136:
			const override = 0x20
			na = na || b[58]&override != 0 && bytes.Equal(b[62:78], six) && bytes.Equal(b[80:86], mac)
		}
	}
	if changed, err := a.Ensure(t.Context(), w); err != nil || changed {
		t.Errorf("again: changed %v, error %v", changed, err)
	}
}
