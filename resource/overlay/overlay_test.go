package overlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestMain(m *testing.M) { contract.Main(m) }

var vx = Device{Name: "vx0", ID: 7, Port: 8472, Local: netip.MustParseAddr("192.0.2.1"), MAC: MAC("c", "a"), MTU: 1450}

// node is a host with an uplink that has 192.0.2.1 and 2001:db8::1, the device, and the node's own addresses on it.
func node(t *testing.T) *kernel.World {
	nstest.Need(t, "vxlan", "id", "1", "dstport", "1")
	w := contract.NewWorld(t)
	contract.IPBatch(t, w.Host.Path, `link add up0 type veth peer name up1
link set up0 up
link set up1 up
addr add 192.0.2.1/24 dev up0
addr add 2001:db8::1/64 dev up0 nodad`)
	return w
}

func TestDevice(t *testing.T) {
	w := node(t)
	contract.Test(t, w, vx,
		contract.Break("mtu", contract.On(w, "ip link set vx0 mtu 1300"), "mtu is 1300, want 1450"),
		contract.Break("another source", contract.On(w, "ip link set vx0 type vxlan local 192.0.2.9"), "local is 192.0.2.9, want 192.0.2.1"),
		contract.Break("address", contract.On(w, "ip link set vx0 address 02:00:00:00:00:0b"), "address is 02:00:00:00:00:0b"),
		contract.Break("down", contract.On(w, "ip link set vx0 down"), "state is down, want up"),
		contract.Break("killed before the alias", func(t *testing.T) {
			index, err := rtnl.IndexOf(w.Host, "vx0")
			if err := errors.Join(err, rtnl.SetAlias(w.Host, index, "")); err != nil {
				t.Fatal(err)
			}
		}, "alias is , want "+mark),
		contract.Break("gone", contract.On(w, "ip link del vx0"), "link vx0: link does not exist"),
		contract.Break("strict rp_filter", contract.On(w, "sysctl -qw net.ipv4.conf.vx0.rp_filter=1"), "rp_filter is 1, want 2"),
		contract.Break("no IPv6", contract.On(w, "sysctl -qw net.ipv6.conf.vx0.disable_ipv6=1"), "disable_ipv6 is 1, want 0"),
		contract.Break("another port", contract.On(w, "ip link del vx0",
			"ip link add vx0 type vxlan id 7 dstport 4789 local 192.0.2.1 learning", "ip link set vx0 alias "+mark),
			"dstport is 4789, want 8472\nlearning is true, want false"),
	)

	// It changes in place what it can, and takes a new device for the rest.
	contract.Must(t, w, vx)
	index := func() int {
		i, err := rtnl.IndexOf(w.Host, "vx0")
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	first, moved := index(), vx
	moved.MTU, moved.MAC, moved.Local = 1400, MAC("c", "b"), netip.MustParseAddr("192.0.2.11")
	contract.Must(t, w, moved)
	contract.Verify(t, w, moved)
	if now := index(); now != first {
		t.Errorf("another MTU, MAC and address took a new device, %d, was %d", now, first)
	}
	moved.Local = netip.MustParseAddr("2001:db8::1")
	if changed, err := moved.Ensure(t.Context(), w); !changed || err != nil {
		t.Fatal(changed, err)
	}
	contract.Verify(t, w, moved)
	contract.Remove(t, w, moved)

	// What others made stays, and is named.
	contract.Host(t, w, "ip link add theirs type vxlan id 7 dstport 8472 local 192.0.2.1")
	if _, err := vx.Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), "link theirs has id 7 and port 8472 already") {
		t.Error(err)
	}
	contract.Host(t, w, "ip link set theirs name vx0")
	before := contract.State(t, w)
	if _, err := vx.Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), "link vx0: is a vxlan that another program made") {
		t.Error(err)
	}
	contract.Remove(t, w, vx)
	if after := contract.State(t, w); after != before {
		t.Error(contract.Difference(before, after))
	}
}

// peer is node b.
func peer() Peer {
	return Peer{Device: "vx0", Node: "b", MAC: MAC("c", "b"), Endpoint: netip.MustParseAddr("192.0.2.2"), MTU: 1400,
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24"), netip.MustParsePrefix("fd00:2::/64")},
		Src:      []netip.Addr{netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:1::1")}}
}

// withDevice is a node with the device and its addresses.
func withDevice(t *testing.T) *kernel.World {
	w := node(t)
	contract.Must(t, w, vx)
	contract.IPBatch(t, w.Host.Path, "addr add 10.244.1.1/32 dev vx0\naddr add fd00:1::1/128 dev vx0 nodad")
	return w
}

// entries is what ip(8) and bridge(8) show of the device.
func entries(w *kernel.World) func(testing.TB) string {
	return func(t testing.TB) string {
		return contract.Host(t, w, "ip neigh show dev vx0 nud permanent") + contract.Host(t, w, "bridge fdb show dev vx0") +
			contract.Host(t, w, "ip route show dev vx0") + contract.Host(t, w, "ip -6 route show dev vx0 proto 118")
	}
}

func TestPeer(t *testing.T) {
	w := withDevice(t)
	p := peer()
	via := NextHop(p.MAC)
	contract.Terms{State: entries(w)}.Test(t, w, p,
		contract.Break("neighbour gone", contract.On(w, fmt.Sprintf("ip neigh del %v dev vx0", via)),
			fmt.Sprintf("neighbour %v is missing", via)),
		contract.Break("neighbour elsewhere", contract.On(w, fmt.Sprintf("ip neigh replace %v lladdr 02:00:00:00:00:0b dev vx0 nud permanent", via)),
			fmt.Sprintf("lladdr of neighbour %v is 02:00:00:00:00:0b, want %v", via, p.MAC)),
		contract.Break("entry gone", contract.On(w, fmt.Sprintf("bridge fdb del %v dev vx0 dst 192.0.2.2 self", p.MAC)),
			fmt.Sprintf("forwarding entry %v is missing", p.MAC)),
		contract.Break("entry elsewhere", contract.On(w, fmt.Sprintf("bridge fdb replace %v dev vx0 dst 192.0.2.9 self permanent", p.MAC)),
			fmt.Sprintf("dst of forwarding entry %v is 192.0.2.9, want 192.0.2.2", p.MAC)),
		contract.Break("route gone", contract.On(w, "ip route del 10.244.2.0/24"), "route 10.244.2.0/24 is missing"),
		contract.Break("IPv6 route gone", contract.On(w, "ip -6 route del fd00:2::/64"), "route fd00:2::/64 is missing"),
		contract.Break("another MTU", contract.On(w, fmt.Sprintf(
			"ip route replace 10.244.2.0/24 via inet6 %v dev vx0 onlink src 10.244.1.1 mtu 1300 proto 118", via)),
			"mtu of route 10.244.2.0/24 is 1300, want 1400"),
		contract.Break("another source", contract.On(w, fmt.Sprintf(
			"ip route replace 10.244.2.0/24 via inet6 %v dev vx0 onlink src 192.0.2.1 mtu 1400 proto 118", via)),
			"src of route 10.244.2.0/24 is 192.0.2.1, want 10.244.1.1"),
		contract.Break("another next hop", contract.On(w,
			"ip route replace 10.244.2.0/24 via inet6 fe80::9 dev vx0 onlink src 10.244.1.1 mtu 1400 proto 118"),
			fmt.Sprintf("via of route 10.244.2.0/24 is fe80::9, want %v", via)),
	)

	// It is made completely or not at all, and another program's route stays.
	contract.Host(t, w, "ip route add 10.244.2.0/24 dev up0 proto 99")
	before := entries(w)(t)
	changed, err := p.Ensure(t.Context(), w)
	if want := "another program's route takes 10.244.2.0/24 (proto 99, dev up0)"; changed || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("changed %v, %v; want %q", changed, err, want)
	}
	if after := entries(w)(t); after != before {
		t.Error(contract.Difference(before, after))
	}
	if out := contract.Host(t, w, "ip route show 10.244.2.0/24"); !strings.Contains(out, "dev up0") {
		t.Error(out)
	}
}

// Sync makes all peers those of a list, and changes nothing where they are. It leaves what is not its own.
func TestSync(t *testing.T) {
	w := withDevice(t)
	contract.Host(t, w, "ip route add 10.9.0.0/16 dev vx0 proto static")
	var peers []Peer
	for i := range 300 {
		p := peer()
		p.Node = fmt.Sprint("n", i)
		p.MAC, p.Endpoint = MAC("c", p.Node), netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		p.Prefixes = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100 + byte(i>>8), byte(i), 0}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, 6: byte(i >> 8), 7: byte(i)}), 64)}
		peers = append(peers, p)
	}
	sync := func(want int, peers ...Peer) spec.Differences {
		t.Helper()
		found, err := Sync(t.Context(), w, []string{"vx0"}, peers)
		if err != nil || len(found) != want {
			t.Fatalf("%d differences, %v; want %d", len(found), err, want)
		}
		for _, p := range peers {
			if err := p.Verify(t.Context(), w); err != nil {
				t.Fatalf("%v: %v", p, err)
			}
		}
		return found
	}
	before := entries(w)(t)
	sync(4*len(peers), peers...)
	sync(0, peers...)
	contract.Host(t, w, "ip route del 10.100.7.0/24")
	if found := sync(1, peers...); found[0].Object != "n7" || found[0].Got != spec.Absent || found[0].Link != "vx0" {
		t.Errorf("%+v", found[0])
	}
	peers[3].Endpoint = netip.MustParseAddr("192.0.2.250")
	sync(1, peers...)
	peers[4].Prefixes, peers[5].Prefixes = peers[5].Prefixes, peers[4].Prefixes
	sync(4, peers...)
	sync(4, peers[1:]...)

	// One that cannot be programmed does not keep the others from it.
	contract.Host(t, w, "ip route del 10.100.7.0/24")
	contract.Host(t, w, "ip route add 10.100.0.0/24 dev up0")
	if _, err := Sync(t.Context(), w, []string{"vx0"}, peers); err == nil || !strings.Contains(err.Error(), "another program's route takes 10.100.0.0/24") {
		t.Error(err)
	}
	contract.Verify(t, w, peers[7])

	sync(4*len(peers) - 1)
	if after := entries(w)(t); after != before {
		t.Error(contract.Difference(before, after))
	}
}

// Without its routes, a peer that is sealed gets nothing by another one. What is not sealed any more has other routes again.
func TestSealed(t *testing.T) {
	w := node(t)
	contract.IPBatch(t, w.Host.Path, "link add tun0 type veth peer name tun1\nlink set tun0 up\nlink set tun1 up\n"+
		"route add default via 192.0.2.9\nroute add default via 2001:db8::9 dev up0")
	p := peer()
	p.Device, p.Direct, p.Src, p.Sealed = "", []Hop{{Link: "tun0"}}, nil, true
	sync := func(want int, peers ...Peer) {
		t.Helper()
		if found, err := Sync(t.Context(), w, nil, peers); err != nil || len(found) != want {
			t.Fatalf("%v, %v; want %d differences", found, err, want)
		}
		for _, p := range peers {
			contract.Verify(t, w, p)
		}
	}
	leads := func(when, want string) {
		t.Helper()
		for _, dst := range []string{"10.244.2.7", "fd00:2::7"} {
			out, err := nstest.Output(w.Host.Path, exec.Command("ip", "route", "get", dst))
			if text := fmt.Sprint(string(out), err); !strings.Contains(text, want) {
				t.Errorf("%s: %s: %q; want %q", when, dst, text, want)
			}
		}
	}
	sync(4, p)
	sync(0, p)
	leads("at first", "dev tun0")
	contract.Host(t, w, "ip link del tun0")
	leads("without the device", "Permission denied")
	contract.IPBatch(t, w.Host.Path, "link add tun0 type veth peer name tun1\nlink set tun0 up\nlink set tun1 up")
	sync(2, p)
	leads("again", "dev tun0")
	contract.Host(t, w, "ip route del prohibit 10.244.2.0/24 metric 1073741824")
	sync(1, p)
	p.Sealed = false
	sync(2, p)
	contract.Host(t, w, "ip link del tun0")
	leads("not sealed", "dev up0")
	p.Sealed = true
	contract.IPBatch(t, w.Host.Path, "link add tun0 type veth peer name tun1\nlink set tun0 up\nlink set tun1 up")
	sync(4, p)
	p.Direct = nil
	sync(2, p)
	leads("without a way", "Permission denied")
	sync(2)
	leads("gone", "dev up0")
}

// Without the device nothing can be made, and nothing is left to remove.
func TestNoDevice(t *testing.T) {
	w := node(t)
	if _, err := Sync(t.Context(), w, []string{"vx0"}, []Peer{peer()}); err == nil || !strings.Contains(err.Error(), "vx0") {
		t.Error(err)
	}
	contract.Remove(t, w, peer())
	if _, err := peer().Ensure(t.Context(), w); err == nil {
		t.Error("no error")
	}
}

func TestMAC(t *testing.T) {
	if a, again := MAC("c", "a"), MAC("c", "a"); a.String() != again.String() || a[0]&3 != 2 {
		t.Errorf("%v, then %v: want one locally administered address", a, again)
	}
	if MAC("c", "ab").String() == MAC("ca", "b").String() {
		t.Error("two nodes of two clusters have one address")
	}
	mac, _ := net.ParseMAC("02:00:00:00:00:02")
	if got := NextHop(mac).String(); got != "fe80::ff:fe00:2" {
		t.Error(got)
	}
}
