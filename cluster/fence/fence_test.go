package fence

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// A lab is a node with two containers, and another host. The containers have addresses in pools with a fence and in pools
// without one, which end on 2 and 3. The other host has addresses that end on 9, and the node's own end on 1.
type lab struct {
	*testing.T
	Fence
	file      *grant.File
	hosts     map[byte]string // network namespaces, by the ends of addresses
	listeners map[byte]*net.UDPConn
	sent      int
}

// The pools of both families: with a fence, and without.
var (
	fenced  = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("fd00:9::/112")}
	without = []netip.Prefix{netip.MustParsePrefix("10.8.0.0/16"), netip.MustParsePrefix("fd00:8::/112")}
)

// addr returns an address of a pool.
func addr(pool netip.Prefix, end byte) netip.Addr {
	b := pool.Addr().AsSlice()
	b[len(b)-1] = end
	a, _ := netip.AddrFromSlice(b)
	return a
}

func newLab(t *testing.T) *lab {
	l := &lab{T: t, file: &grant.File{Network: "net"}, hosts: map[byte]string{1: ""}, listeners: map[byte]*net.UDPConn{}}
	host, err := kernel.Open("")
	if err != nil {
		t.Fatal(err)
	}
	l.Network, l.World = "net", &kernel.World{Host: host}
	t.Cleanup(func() { l.World.Close() })
	nstest.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	for _, end := range []byte{2, 3, 9} {
		ns, link := nstest.NewNS(t), fmt.Sprint("v", end)
		l.hosts[end] = ns
		nstest.RunIn(t, ns, "sh", "-ec", fmt.Sprintf("ip link set lo up; ip link add eth0 type veth peer name %s netns %d; ip link set eth0 up",
			link, os.Getpid()))
		nstest.Run(t, "sh", "-ec", strings.ReplaceAll("ip link set LINK up; ip addr add 169.254.0.1/32 dev LINK; "+
			"ip addr add fe80::1/64 dev LINK nodad", "LINK", link))
		nstest.RunIn(t, ns, "sh", "-ec", "ip route add 169.254.0.1 dev eth0; ip route add default via 169.254.0.1; "+
			"ip route add default via fe80::1 dev eth0")
		for _, pool := range append(fenced, without...) {
			nstest.RunIn(t, ns, "ip", "addr", "add", addr(pool, end).String(), "dev", "eth0", "nodad")
			nstest.Run(t, "ip", "route", "add", addr(pool, end).String(), "dev", link)
		}
	}
	for _, pool := range append(fenced, without...) {
		nstest.Run(t, "ip", "addr", "add", addr(pool, 1).String(), "dev", "lo", "nodad")
	}
	for end, ns := range l.hosts {
		err := nstest.In(ns, func() (err error) {
			l.listeners[end], err = net.ListenUDP("udp", nil)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.listeners[end].Close() })
	}
	for end, ns := range l.hosts { // until all neighbours are known
		for peer := range l.hosts {
			for _, pool := range append(fenced, without...) {
				if end != peer {
					nstest.RunIn(t, ns, "sh", "-c", "until ping -qc1 -W1 "+addr(pool, peer).String()+"; do :; done")
				}
			}
		}
	}
	return l
}

// A way is from an address to another one.
type way struct{ from, to netip.Addr }

func (w way) String() string { return fmt.Sprintf("%v to %v", w.from, w.to) }

// send sends a number from one host to another.
func (l *lab) send(w way, n int) {
	l.Helper()
	b := w.from.AsSlice()
	to := w.to.AsSlice()
	port := l.listeners[to[len(to)-1]].LocalAddr().(*net.UDPAddr).Port
	err := nstest.In(l.hosts[b[len(b)-1]], func() error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(w.from, 0)),
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(w.to, uint16(port))))
		if err != nil {
			return err
		}
		_, _ = fmt.Fprint(c, n) // an error is a packet that is dropped
		return c.Close()
	})
	if err != nil {
		l.Fatal(w, err)
	}
}

// passes reports whether a packet arrives on a way before one that is sent later on another way between the same hosts.
func (l *lab) passes(w, open way) (arrived bool) {
	l.Helper()
	l.sent += 2
	l.send(w, l.sent)
	l.send(open, l.sent+1)
	to := w.to.AsSlice()
	c := l.listeners[to[len(to)-1]]
	if err := c.SetReadDeadline(nstest.Deadline(l.T)); err != nil {
		l.Fatal(err)
	}
	for b := make([]byte, 20); ; {
		n, err := c.Read(b)
		if err != nil {
			l.Fatalf("%v: nothing arrives on %v: %v", w, open, err)
		}
		switch string(b[:n]) {
		case fmt.Sprint(l.sent):
			arrived = true
		case fmt.Sprint(l.sent + 1):
			return arrived
		}
	}
}

// reached says on which ways of the container that ends on a number packets arrive: all, none, or some.
func (l *lab) reached(end byte) string {
	l.Helper()
	var open, cut []string
	for i, pool := range fenced {
		own, free := addr(pool, end), addr(without[i], end)
		local := addr(pool, 5-end)
		for _, peer := range []netip.Addr{addr(without[i], 9), addr(without[i], 1), local} {
			for _, ways := range [][2]way{{{own, peer}, {free, peer}}, {{peer, own}, {peer, free}}} {
				if peer == local { // which may be behind the fence, too
					other := addr(without[i], 5-end)
					ways[1] = map[bool]way{true: {free, other}, false: {other, free}}[ways[0].from == own]
				}
				if l.passes(ways[0], ways[1]) {
					open = append(open, fmt.Sprint(ways[0]))
				} else {
					cut = append(cut, fmt.Sprint(ways[0]))
				}
			}
		}
	}
	switch {
	case len(cut) == 0:
		return "all"
	case len(open) == 0:
		return "none"
	}
	return fmt.Sprintf("some: %v passes, not %v", open, cut)
}

// ownReached reports whether packets arrive from the node's own addresses among its containers, and to them.
func (l *lab) ownReached() bool {
	l.Helper()
	for i, pool := range fenced {
		own, free, other := addr(pool, 1), addr(without[i], 1), addr(without[i], 9)
		from, to := l.passes(way{own, other}, way{free, other}), l.passes(way{other, own}, way{other, free})
		if from != to {
			l.Errorf("%v: packets from it arrive: %v; to it: %v", own, from, to)
		}
		if !from {
			return false
		}
	}
	return true
}

func (l *lab) want(when string, end byte, want string) {
	l.Helper()
	if got := l.reached(end); got != want {
		l.Errorf("%s: the container %d reaches %s, want %s\n%s", when, end, got, want, nstest.Run(l.T, "nft", "list", "ruleset"))
	}
}

// grantUntil has the grant say a deadline for all ranges of pools with a fence.
func (l *lab) grantUntil(end int64) {
	l.Helper()
	err := l.Change(l.Context(), l.file, func(g *grant.Grant) {
		g.Until, g.Ranges, g.Pools = map[netip.Prefix]int64{}, nil, nil
		for _, p := range append(fenced, without...) {
			r := netip.PrefixFrom(p.Addr(), p.Addr().BitLen()-6)
			isFenced := p == fenced[0] || p == fenced[1]
			g.Ranges = append(g.Ranges, r)
			g.Pools = append(g.Pools, grant.Pool{Name: "p", Prefix: p, Bits: r.Bits(), Fenced: isFenced})
			g.Until[r] = end
		}
	})
	if err != nil {
		l.Fatal(err)
	}
}

func (l *lab) mends(when string, want bool) {
	l.Helper()
	if changed, err := l.Mend(l.Context()); err != nil || changed != want {
		l.Errorf("%s: mended %v, %v", when, changed, err)
	}
}

func in(d time.Duration) int64 { return disk.Uptime() + int64(d) }

// At the deadline, the kernel alone cuts off the containers of pools with a fence, and no others: from other hosts, from the node,
// and from each other. A later deadline ends that.
func TestDeadline(t *testing.T) {
	l := newLab(t)
	l.grantUntil(in(time.Hour))
	l.want("an hour before the deadline", 2, "all")
	if !l.ownReached() {
		t.Error("an hour before the deadline, the node's own addresses are cut off")
	}
	l.mends("nothing happened", false)

	end := in(3 * time.Second)
	l.grantUntil(end)
	for disk.Uptime() < end { // nobody does anything but send packets
		l.reached(2)
	}
	l.want("after the deadline", 2, "none")
	l.want("after the deadline", 3, "none")
	l.mends("after the deadline", false)
	if l.ownReached() {
		t.Error("after the deadline, the node's own addresses are reached")
	}

	l.grantUntil(in(time.Hour))
	l.want("with a later deadline", 2, "all")
	l.grantUntil(in(-time.Hour))
	l.want("with a former deadline", 2, "none")
	nstest.Run(t, "nft", "flush", "ruleset")
	l.want("without rules", 2, "all")
	l.mends("without rules", true)
	l.want("with the rules again", 2, "none")
}

// A container is cut off also from those who reach it by a published address.
func TestTranslated(t *testing.T) {
	l := newLab(t)
	nstest.Run(t, "sh", "-ec", `ip route add 10.7.0.0/16 dev v9
for hook in prerouting output; do
	nft "add table ip nat; add chain ip nat $hook { type nat hook $hook priority -100; }
		add rule ip nat $hook ip daddr 10.7.9.2 dnat to 10.9.0.2; add rule ip nat $hook ip daddr 10.7.8.2 dnat to 10.8.0.2"
done`)
	published, open := netip.MustParseAddr("10.7.9.2"), netip.MustParseAddr("10.7.8.2")
	for _, tc := range []struct {
		left   time.Duration
		passes bool
	}{{time.Hour, true}, {0, false}} {
		l.grantUntil(in(tc.left))
		for _, from := range []netip.Addr{addr(without[0], 9), addr(without[0], 1)} {
			if passes := l.passes(way{from, published}, way{from, open}); passes != tc.passes {
				t.Errorf("%v before the deadline, from %v: passes is %v", tc.left, from, passes)
			}
		}
	}
}

// The fence stands at the deadline in the grant, though the kernel's elements would live on, as after a sleep.
func TestSleep(t *testing.T) {
	l := newLab(t)
	l.grantUntil(in(time.Hour))
	err := l.file.Change(func(g *grant.Grant) {
		for r := range g.Until {
			g.Until[r] = in(500 * time.Millisecond)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	l.want("nobody has looked", 2, "all")
	l.mends("the deadline is over", true)
	l.want("the deadline is over", 2, "none")
}

// A container whose address is lost is cut off, and no other one, until it has ended. With nothing to be cut off, there is no
// table.
func TestLost(t *testing.T) {
	l := newLab(t)
	l.grantUntil(in(time.Hour))
	change := func(change func(*grant.Grant)) {
		t.Helper()
		if err := l.Change(t.Context(), l.file, change); err != nil {
			t.Fatal(err)
		}
	}
	change(func(g *grant.Grant) {
		g.Until, g.Ranges = nil, nil
		g.Lost = []netip.Addr{addr(fenced[0], 2), addr(fenced[1], 2), addr(without[0], 3)}
	})
	l.want("lost", 2, "none")
	for i, pool := range fenced {
		ways := way{addr(pool, 3), addr(without[i], 9)}
		if !l.passes(ways, way{addr(without[i], 3), addr(without[i], 9)}) {
			t.Errorf("%v: is cut off, and was not lost", ways)
		}
	}
	nstest.Run(t, "nft", "flush", "ruleset")
	l.mends("flushed", true)
	l.want("lost, with the rules again", 2, "none")
	change(func(g *grant.Grant) { g.Lost = g.Lost[2:] })
	l.want("ended", 2, "all")
	if tables := nstest.Run(t, "nft", "list", "tables"); strings.Contains(tables, l.Table()) {
		t.Errorf("%s: want no table", tables)
	}
}
