package overlay

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// direct is node b, whose containers are reached by its own addresses.
func direct() Peer {
	p := peer()
	p.Direct = []Hop{{netip.MustParseAddr("192.0.2.2"), "up0"}, {netip.MustParseAddr("2001:db8::2"), "up0"}}
	return p
}

// routesOf is what ip(8) shows of routes of both families.
func routesOf(t testing.TB, w *kernel.World, filter string) string {
	t.Helper()
	return contract.Host(t, w, "ip -4 route show %s", filter) + contract.Host(t, w, "ip -6 route show %s", filter)
}

// A peer that is reached directly keeps its entries of the tunnel, and a change of the way replaces routes only.
func TestDirectPeer(t *testing.T) {
	w := withDevice(t)
	all := func(t testing.TB) string { return entries(w)(t) + routesOf(t, w, "dev up0 proto 118") }
	contract.Terms{State: all}.Test(t, w, direct(),
		contract.Break("entry gone", contract.On(w, fmt.Sprintf("bridge fdb del %v dev vx0 dst 192.0.2.2 self", peer().MAC)),
			fmt.Sprintf("forwarding entry %v is missing", peer().MAC)),
		contract.Break("by the tunnel", contract.On(w, fmt.Sprintf(
			"ip route replace 10.244.2.0/24 via inet6 %v dev vx0 onlink src 10.244.1.1 mtu 1400 proto 118", NextHop(peer().MAC))),
			"dev of route 10.244.2.0/24 is vx0, want up0"),
		contract.Break("IPv6 by the tunnel", contract.On(w, fmt.Sprintf(
			"ip -6 route replace fd00:2::/64 via %v dev vx0 src fd00:1::1 mtu 1400 proto 118", NextHop(peer().MAC))),
			"dev of route fd00:2::/64 is vx0, want up0"),
		contract.Break("another router", contract.On(w,
			"ip route replace 10.244.2.0/24 via 192.0.2.9 dev up0 src 10.244.1.1 mtu 1400 proto 118"),
			"via of route 10.244.2.0/24 is 192.0.2.9, want 192.0.2.2"),
	)

	for name, tc := range map[string]struct {
		direct []Hop
		v4, v6 string // where the routes lead
	}{
		"none":      {nil, "vx0", "vx0"},
		"IPv4 only": {direct().Direct[:1], "up0", "vx0"},
		"IPv6 only": {direct().Direct[1:], "up0", "up0"},
		"both":      {direct().Direct, "up0", "up0"},
	} {
		p := peer()
		p.Direct = tc.direct
		found, err := Sync(t.Context(), w, []string{"vx0"}, []Peer{p})
		if err != nil {
			t.Error(name, found, err)
		}
		for _, want := range [][2]string{{"-4 route show 10.244.2.0/24", tc.v4}, {"-6 route show fd00:2::/64", tc.v6}} {
			out := contract.Host(t, w, "ip %s", want[0])
			if strings.Count(out, "proto 118") != 1 || !strings.Contains(out, "dev "+want[1]) {
				t.Errorf("%s: %s; want one route by %s", name, out, want[1])
			}
		}
	}

	// What has no tunnel has no entries.
	p := direct()
	contract.Must(t, w, p)
	p.Device = ""
	if found, err := Sync(t.Context(), w, []string{"vx0"}, []Peer{p}); err != nil || len(found) != 2 {
		t.Errorf("%v, %v; want that the neighbour and the forwarding entry go", found, err)
	}
	contract.Verify(t, w, p)
	contract.Remove(t, w, p)
	if out := routesOf(t, w, "proto 118"); out != "" {
		t.Error(out)
	}
}

// A way is how the packets of a test travel.
type way struct {
	local  string // the outer address of a node, with %d for the node
	direct bool
	mtu    int
}

// end is the address of node i.
func end(pattern string, i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(pattern, i)) }

// prefixesOf are those of node i's containers, and srcOf its own addresses among them.
func prefixesOf(i int) []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i)), netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", i))}
}

func srcOf(i int) []netip.Addr {
	return []netip.Addr{end("10.244.%d.1", i), end("fd00:%d::1", i)}
}

// A pair is two nodes on one link. Each has a container, devices of both families, and rp_filter=1.
type pair struct {
	t    *testing.T
	node [2]*kernel.World
}

func newPair(t *testing.T) *pair {
	nstest.Need(t, "vxlan", "id", "1", "dstport", "1")
	n := &pair{t, [2]*kernel.World{contract.NewWorld(t), contract.NewWorld(t)}}
	for _, w := range n.node { // no link-local address is tentative, with which the kernel asks for no neighbour
		contract.Host(t, w, "sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0")
	}
	contract.Host(t, n.node[0], "ip link add up0 type veth peer name up0 netns %s", n.node[1].Host.Path)
	for i, w := range n.node {
		own := i + 1
		contract.IPBatch(t, w.Host.Path, fmt.Sprintf("addr add 192.0.2.%[1]d/24 dev up0\naddr add 2001:db8::%[1]d/64 dev up0 nodad\nlink set up0 up", own))
		contract.Host(t, w, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1")
		for name, local := range map[string]string{"vx0": "192.0.2.%d", "vx6": "2001:db8::%d"} {
			d := vx
			d.Name, d.Local, d.MAC = name, end(local, own), MAC("c", fmt.Sprint(own))
			d.MTU = 1500 - Overhead(d.Local)
			contract.Must(t, w, d)
			contract.IPBatch(t, w.Host.Path, fmt.Sprintf("addr add 10.244.%[1]d.1/32 dev %[2]s\naddr add fd00:%[1]d::1/128 dev %[2]s nodad", own, name))
		}
		contract.IPBatch(t, w.Host.Path, fmt.Sprintf(`link add pod0 type veth peer name eth0 netns %[1]s
link set pod0 up
addr add 10.244.%[2]d.1/32 dev pod0
addr add fd00:%[2]d::1/128 dev pod0 nodad
route add 10.244.%[2]d.2/32 dev pod0
route add fd00:%[2]d::2/128 dev pod0`, strings.TrimPrefix(w.Container.Path, "/run/netns/"), own))
		contract.IPBatch(t, w.Container.Path, fmt.Sprintf(`link set eth0 up
addr add 10.244.%[1]d.2/24 dev eth0
addr add fd00:%[1]d::2/64 dev eth0 nodad
route add default via 10.244.%[1]d.1
route add default via fd00:%[1]d::1`, own))
	}
	return n
}

// goes makes a node reach the other one by a way.
func (n *pair) goes(i int, by way) {
	n.t.Helper()
	other := 2 - i
	p := Peer{Device: "vx0", Node: fmt.Sprint(other), MAC: MAC("c", fmt.Sprint(other)), Endpoint: end(by.local, other),
		Prefixes: prefixesOf(other), Src: srcOf(i + 1)}
	if p.Endpoint.Is6() {
		p.Device = "vx6"
	}
	if by.direct {
		p.Direct = []Hop{{p.Endpoint, "up0"}}
	}
	if _, err := Sync(n.t.Context(), n.node[i], []string{"vx0", "vx6"}, []Peer{p}); err != nil {
		n.t.Fatal(err)
	}
	contract.Verify(n.t, n.node[i], p)
}

// ways are all ways between the nodes of a pair.
func ways() map[string]way {
	return map[string]way{
		"VXLAN in IPv4":  {local: "192.0.2.%d", mtu: 1450},
		"VXLAN in IPv6":  {local: "2001:db8::%d", mtu: 1430},
		"direct by IPv4": {local: "192.0.2.%d", direct: true, mtu: 1450}, // of the IPv6 prefix, which goes by VXLAN
		"direct by IPv6": {local: "2001:db8::%d", direct: true, mtu: 1500},
	}
}

// Two nodes carry packets of their containers by each way, whole ones too, in both families, and the host's packets to
// them where rp_filter is strict. Nothing has an address but what is named here.
func TestPackets(t *testing.T) {
	n := newPair(t)
	for name, by := range ways() {
		t.Run(name, func(t *testing.T) {
			n.t = t
			n.goes(0, by)
			n.goes(1, by)
			a, b := n.node[0], n.node[1]
			const whole = "ping -nqc1 -W20 -M do -s %d %s"
			v4 := by.mtu - 28
			if by.direct {
				v4 = 1500 - 28
			}
			contract.Container(t, a, whole, v4, "10.244.2.2")
			contract.Container(t, a, whole, by.mtu-48, "fd00:2::2")
			contract.Container(t, b, whole, v4, "10.244.1.2")
			contract.Container(t, b, whole, by.mtu-48, "fd00:1::2")
			contract.Host(t, a, whole, v4, "10.244.2.2")
			contract.Host(t, a, whole, by.mtu-48, "fd00:2::2")
			contract.Container(t, b, whole, v4, "10.244.1.1")
		})
	}
}

// whilePinging runs change while the container of the first node sends 500 packets a second to dst. Each has to come
// back.
func (n *pair) whilePinging(dst string, change func()) {
	n.t.Helper()
	contract.Container(n.t, n.node[0], "ping -nqc1 -W20 %s", dst) // neighbours are known then
	ctx, stop := context.WithTimeout(n.t.Context(), nstest.Patience(n.t))
	defer stop()
	ping := exec.CommandContext(ctx, "nsenter", "--net="+n.node[0].Container.Path, "ping", "-n", "-i0.002", dst)
	ping.Cancel = func() error { return ping.Process.Signal(os.Interrupt) }
	out, err := ping.StdoutPipe()
	if err == nil {
		err = ping.Start()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	answered := map[int]bool{}
	last := 0
	answers := func(count int) {
		for count > 0 && lines.Scan() {
			_, after, found := strings.Cut(lines.Text(), "icmp_seq=")
			if !found {
				continue
			}
			number, _, _ := strings.Cut(after, " ")
			if last, err = strconv.Atoi(number); err != nil {
				n.t.Fatal(lines.Text())
			}
			answered[last] = true
			count--
		}
	}
	answers(10)
	change()
	answers(10)
	stop()
	ping.Wait()
	for i := range last {
		if !answered[i+1] {
			n.t.Errorf("%s: packet %d of %d was lost", dst, i+1, last)
		}
	}
	if len(answered) < 20 {
		n.t.Errorf("%s: %d packets came back; want 20 at least", dst, len(answered))
	}
}

// No packet is lost while the nodes change their ways, one after the other.
func TestChangeOfWay(t *testing.T) {
	n := newPair(t)
	for _, w := range n.node { // else what comes directly to a node that has not changed yet is dropped
		contract.Host(t, w, "sysctl -qw net.ipv4.conf.all.rp_filter=2")
	}
	all := ways()
	change := func(to ...string) {
		for _, name := range to {
			n.goes(0, all[name])
			n.goes(1, all[name])
		}
	}
	change("VXLAN in IPv4", "direct by IPv6", "VXLAN in IPv4")
	for _, dst := range []string{"10.244.2.2", "fd00:2::2"} {
		n.whilePinging(dst, func() {
			for range 20 {
				change("direct by IPv4", "VXLAN in IPv4", "VXLAN in IPv6", "direct by IPv6", "VXLAN in IPv4")
			}
		})
	}
}

// A node that gets another address changes its device in place, and the other one changes one entry. No packet is lost
// if the node keeps the former address until then.
func TestChangeOfAddress(t *testing.T) {
	n := newPair(t)
	by := ways()["VXLAN in IPv4"]
	n.goes(0, by)
	n.goes(1, by)
	contract.Host(t, n.node[1], "ip addr add 192.0.2.22/24 dev up0")
	p := Peer{Device: "vx0", Node: "2", MAC: MAC("c", "2"), Endpoint: netip.MustParseAddr("192.0.2.22"),
		Prefixes: prefixesOf(2), Src: srcOf(1)}
	d := vx
	d.Local, d.MAC = p.Endpoint, p.MAC
	n.whilePinging("10.244.2.2", func() {
		contract.Must(t, n.node[1], d)
		found, err := Sync(t.Context(), n.node[0], []string{"vx0", "vx6"}, []Peer{p})
		if err != nil || len(found) != 1 {
			t.Errorf("%v, %v; want one change", found, err)
		}
	})
}
