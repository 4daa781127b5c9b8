package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// marker is in the packets of containers, and must not be in those between nodes.
const marker = "5ecre75ecre75ecre75ecre7"

// A tunneled is a host with a container, on a switch in the namespace of the test.
type tunneled struct {
	*host
	i         byte
	pod       string // its namespace
	published chan directory.Tunnel
	node      directory.Node
}

// newTunneled is the machine of node i, with an address of the underlay's family, without an agent.
func newTunneled(t *testing.T, i byte, underlay string) *tunneled {
	h := &tunneled{host: &host{t: t, w: contract.NewWorld(t), updates: make(chan []directory.Node)}, i: i,
		pod: nstest.NewNS(t), node: node(i)}
	h.node.Endpoints = []netip.Addr{netip.MustParseAddr(underlay)}
	bits := h.node.Endpoints[0].BitLen() / 4 * 3 // a /24 or a /96
	h.shell(h.w.Host.Path, `ip link add up0 type veth peer name port%[1]d netns %[2]d; ip link set up0 up
ip addr add %[3]s/%[4]d dev up0 %[5]s
ip link add pod0 type veth peer name eth0 netns %[6]s; ip link set pod0 addrgenmode none up; ip addr add fe80::1/64 dev pod0 nodad
ip route add 10.244.%[1]d.2 dev pod0; ip route add fd00:%[1]d::2 dev pod0
sysctl -qw net.ipv4.conf.all.rp_filter=1`, i, os.Getpid(), underlay, bits, map[bool]string{true: "nodad"}[bits > 32], h.pod)
	h.shell(h.pod, `ip link set lo up; ip link set eth0 up; ip addr add 10.244.%[1]d.2/32 dev eth0; ip addr add fd00:%[1]d::2/128 dev eth0 nodad
ip -4 route add default via inet6 fe80::1 dev eth0; ip -6 route add default via fe80::1 dev eth0`, i)
	nstest.Run(t, "ip", "link", "set", fmt.Sprint("port", i), "master", "br0", "up")
	h.agent = h.newTunnelAgent(filepath.Join(t.TempDir(), "key"))
	return h
}

func (h *tunneled) shell(ns, format string, args ...any) string {
	h.t.Helper()
	return nstest.RunIn(h.t, ns, "sh", "-ec", fmt.Sprintf(format, args...))
}

func (h *tunneled) newTunnelAgent(keyFile string) *Agent {
	a := h.newAgent(h.i)
	a.Mode, a.Tunnel = WireGuard, Tunnel{Device: "wg0", Port: 51820, KeyFile: keyFile}
	return a
}

// begin starts the agent, and takes what it publishes.
func (h *tunneled) begin() {
	h.t.Helper()
	if _, err := h.agent.LoadKey(); err != nil {
		h.t.Fatal(err)
	}
	h.published = make(chan directory.Tunnel, 100) // the former agent may have said the same again
	said := h.published
	h.agent.Publish = func(_ context.Context, t directory.Tunnel) error {
		said <- t
		return nil
	}
	h.start()
	if h.agent.Mode == WireGuard { // and the node has published nothing yet
		h.node.Tunnel = directory.Tunnel{}
	}
	h.tell(h.node)
	select {
	case h.node.Tunnel = <-h.published:
	case <-nstest.Context(h.t).Done():
		h.t.Fatalf("nothing was published: %v\n%s", h.agent.Status().Problems, h.state())
	}
}

// settle tells nodes, and waits until the agent has compared them.
func (h *tunneled) settle(nodes ...directory.Node) {
	h.tell(nodes...)
	h.tell(nodes...)
}

// reaches reports whether a container's packet of a size comes to an address and back.
func (h *tunneled) reaches(size int, to string) (string, bool) {
	header := 28
	if strings.Contains(to, ":") {
		header = 48
	}
	pattern := fmt.Sprintf("%x", marker[:15])
	line := []string{"-c", "1", "-W", "1", "-M", "do", "-p", pattern, "-s", fmt.Sprint(size - header), to}
	out, err := nstest.Output(h.pod, exec.Command("ping", line...))
	return string(out), err == nil
}

// must waits until a packet comes through.
func (h *tunneled) must(what string, size int, to ...string) {
	h.t.Helper()
	ctx := nstest.Context(h.t)
	for _, addr := range to {
		for {
			out, ok := h.reaches(size, addr)
			if ok {
				break
			}
			if ctx.Err() != nil {
				h.t.Fatalf("%s: %d bytes from n%d to %s: %s\n%s", what, size, h.i, addr, out, h.state())
			}
		}
	}
}

func (h *tunneled) state() string {
	d, err := h.device()
	return h.shell(h.w.Host.Path, "ip -d addr; ip route; ip -6 route; nft list ruleset") + fmt.Sprintf("%+v, %v", d, err)
}

// device is the WireGuard device as the kernel has it.
func (h *tunneled) device() (d *wgtypes.Device, err error) {
	err = h.wireguard(func(c *wgctrl.Client) (err error) {
		d, err = c.Device("wg0")
		return err
	})
	return d, err
}

func (h *tunneled) wireguard(do func(*wgctrl.Client) error) error {
	return nstest.In(h.w.Host.Path, func() error {
		c, err := wgctrl.New()
		if err != nil {
			return err
		}
		return errors.Join(do(c), c.Close())
	})
}

// addresses are those of a host's container.
func (h *tunneled) addresses() []string {
	return []string{fmt.Sprintf("10.244.%d.2", h.i), fmt.Sprintf("fd00:%d::2", h.i)}
}

// newTunnels are two machines on a switch, whose agents know each other.
func newTunnels(t *testing.T, underlay1, underlay2 string) (a, b *tunneled) {
	nstest.Need(t, "wireguard")
	nstest.Run(t, "sh", "-ec", "ip link add br0 type bridge; ip link set br0 up")
	t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "br0") })
	a, b = newTunneled(t, 1, underlay1), newTunneled(t, 2, underlay2)
	a.begin()
	b.begin()
	a.settle(a.node, b.node)
	b.settle(a.node, b.node)
	return a, b
}

// A capture has what passes a link.
type capture struct {
	mu      sync.Mutex
	packets [][]byte // with Ethernet headers
	file    *os.File
}

// listen begins to capture on a link in the namespace of the test.
func listen(t *testing.T, link string) *capture {
	all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.InterfaceByName(link)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Index}); err != nil {
		t.Fatal(err)
	}
	c := &capture{file: os.NewFile(uintptr(fd), "capture")}
	t.Cleanup(func() { c.file.Close() })
	go func() {
		for buf := make([]byte, 1<<16); ; {
			n, err := c.file.Read(buf)
			if err != nil {
				return
			}
			c.mu.Lock()
			c.packets = append(c.packets, bytes.Clone(buf[:n]))
			c.mu.Unlock()
		}
	}()
	return c
}

// verdict says what was captured that is neither WireGuard nor what finds neighbours, and how many packets were WireGuard.
func (c *capture) verdict() (foreign []string, tunneled int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.packets {
		switch binary.BigEndian.Uint16(p[12:]) {
		case unix.ETH_P_ARP:
			continue
		case unix.ETH_P_IP:
			isWhole := binary.BigEndian.Uint16(p[20:])&0x3fff == 0
			if p[23] == unix.IPPROTO_UDP && isWhole && isTunnel(p[34:]) && !bytes.Contains(p, []byte(marker[:15])) {
				tunneled++
				continue
			}
		case unix.ETH_P_IPV6:
			if p[20] == unix.IPPROTO_ICMPV6 && p[54] >= 130 || p[20] == 0 { // neighbours, routers, and multicast groups
				continue
			}
			if p[20] == unix.IPPROTO_UDP && isTunnel(p[54:]) && !bytes.Contains(p, []byte(marker[:15])) {
				tunneled++
				continue
			}
		}
		foreign = append(foreign, fmt.Sprintf("%x", p))
	}
	return foreign, tunneled
}

// isTunnel reports whether UDP is from and to the port of WireGuard.
func isTunnel(udp []byte) bool {
	return binary.BigEndian.Uint16(udp) == 51820 && binary.BigEndian.Uint16(udp[2:]) == 51820
}

// Containers of two nodes reach each other over IPv4 and IPv6, by packets of any length up to the MTU, and nothing but WireGuard
// is on the wire.
func TestTunnel(t *testing.T) {
	for _, underlay := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
		t.Run(underlay[0], func(t *testing.T) {
			a, b := newTunnels(t, underlay[0], underlay[1])
			wire := listen(t, "port2")
			a.must("at first", 100, b.addresses()...)
			b.must("at first", 100, a.addresses()...)
			l, err := rtnl.LinkByName(a.w.Host, "wg0")
			if err != nil || l.MTU != 1420 {
				t.Errorf("%+v, %v: want an MTU of 1420", l, err)
			}
			for size := 1420; size > 1400; size-- { // the kernel pads to a multiple of 16
				a.must("padded", size, b.addresses()...)
			}
			for _, to := range b.addresses() {
				if out, ok := a.reaches(1421, to); ok || !strings.Contains(out, "1420") {
					t.Errorf("1,421 bytes to %s: %v, %s", to, ok, out)
				}
			}
			foreign, tunneled := wire.verdict()
			if len(foreign) > 0 || tunneled < 40 {
				t.Errorf("%d packets of WireGuard, and these: %q", tunneled, foreign)
			}

			s := a.agent.Status()
			if len(s.Problems) > 0 || len(s.Devices) != 1 || s.Devices[0].Kind != "wireguard" || s.Devices[0].MTU != 1420 ||
				s.Devices[0].PublicKey != a.node.Tunnel.Key || s.Nodes[1].Way != agentstatus.WireGuard || s.Nodes[1].MTU != 1420 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The device, its peers and the routes are as the nodes say, whatever other programs do, and packets pass afterwards.
func TestTunnelDrift(t *testing.T) {
	a, b := newTunnels(t, "192.0.2.1", "192.0.2.2")
	want, err := a.device()
	if err != nil {
		t.Fatal(err)
	}
	peer, err := wgtypes.ParseKey(b.node.Tunnel.Key)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	port := 4711
	configure := func(c wgtypes.Config) func() {
		return func() {
			if err := a.wireguard(func(client *wgctrl.Client) error { return client.ConfigureDevice("wg0", c) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	host := func(line string) func() { return func() { a.shell(a.w.Host.Path, "%s", line) } }
	// While no agent runs, nothing leaves that is not encrypted.
	a.shell(a.w.Host.Path, "ip route add default via 192.0.2.2; ip -6 addr add 2001:db8::1/64 dev up0 nodad; ip -6 route add default via 2001:db8::2")
	a.must("before the agent ends", 100, b.addresses()...)
	a.stop()
	a.shell(a.w.Host.Path, "ip link del wg0")
	wire := listen(t, "port2")
	for _, to := range b.addresses() {
		if out, ok := a.reaches(100, to); ok || !strings.Contains(out, "prohibited") && !strings.Contains(out, "filtered") {
			t.Errorf("without the device, a packet to %s was not refused: %s", to, out)
		}
	}
	if foreign, _ := wire.verdict(); len(foreign) > 0 {
		t.Errorf("without the device, these left: %q", foreign)
	}
	a.agent = a.newTunnelAgent(a.agent.Tunnel.KeyFile)
	a.begin()
	a.settle(a.node, b.node)

	for _, damage := range []struct {
		name   string
		do     func()
		silent bool // the kernel tells of no event
	}{
		{"device deleted", host("ip link del wg0"), false},
		{"device down", host("ip link set wg0 down"), false},
		{"another MTU", host("ip link set wg0 mtu 1300"), false},
		{"address deleted", host("ip addr del 10.244.1.1/32 dev wg0"), false},
		{"route deleted", host("ip route del 10.244.2.0/24"), false},
		{"IPv6 route deleted", host("ip -6 route del fd00:2::/64"), false},
		{"route elsewhere", host("ip route replace 10.244.2.0/24 via 192.0.2.9 dev up0 proto 118"), false},
		{"another key", configure(wgtypes.Config{PrivateKey: &stranger}), true},
		{"another port", configure(wgtypes.Config{ListenPort: &port}), true},
		{"peer removed", configure(wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: peer, Remove: true}}}), true},
		{"peer elsewhere", configure(wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: peer,
			Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, 9), Port: 51820}}}}), true},
		{"peer with a preshared key", configure(wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: peer, PresharedKey: &stranger}}}), true},
		{"a peer that is no node", configure(wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: stranger.PublicKey(),
			AllowedIPs: []net.IPNet{*all}}}}), true},
		{"peer without prefixes", configure(wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: peer, ReplaceAllowedIPs: true}}}), true},
	} {
		a.must("before: "+damage.name, 100, b.addresses()...)
		damage.do()
		if damage.silent {
			a.settle(a.node, b.node)
		}
		a.must(damage.name, 1420, b.addresses()...)
		b.must(damage.name, 1420, a.addresses()...)
		a.settle(a.node, b.node)
		have, err := a.device()
		if err != nil || have.PublicKey != want.PublicKey || have.ListenPort != want.ListenPort || len(have.Peers) != 1 ||
			have.Peers[0].PublicKey != peer || fmt.Sprint(have.Peers[0].AllowedIPs) != fmt.Sprint(want.Peers[0].AllowedIPs) ||
			have.Peers[0].PresharedKey != (wgtypes.Key{}) {
			t.Errorf("%s: %+v, %v; want %+v", damage.name, have, err, want)
		}
		if l, err := rtnl.LinkByName(a.w.Host, "wg0"); err != nil || l.MTU != 1420 {
			t.Errorf("%s: %+v, %v", damage.name, l, err)
		}
	}

	// What is as it should be is not touched: no key is agreed upon anew.
	before, err := a.device()
	if err != nil {
		t.Fatal(err)
	}
	a.settle(a.node, b.node)
	if after, err := a.device(); err != nil || after.Peers[0].LastHandshakeTime != before.Peers[0].LastHandshakeTime {
		t.Errorf("%+v, %v; want the handshake of %v", after, err, before.Peers[0].LastHandshakeTime)
	}
}

// A node keeps its key over a restart of the agent. Another one is followed. A key that is not the node's lets nothing
// through, and a node that has gone leaves nothing.
func TestTunnelKeys(t *testing.T) {
	a, b := newTunnels(t, "192.0.2.1", "192.0.2.2")
	a.must("at first", 100, b.addresses()...)

	former := b.node.Tunnel.Key
	b.stop()
	a.must("without an agent", 100, b.addresses()...)
	b.agent = b.newTunnelAgent(b.agent.Tunnel.KeyFile)
	b.begin()
	if b.node.Tunnel.Key != former {
		t.Errorf("a restart changed the key %s to %s", former, b.node.Tunnel.Key)
	}
	b.settle(a.node, b.node)
	a.must("restarted", 100, b.addresses()...)

	// Another node's key: neither what goes there nor what comes from there passes.
	impostor, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	false2 := b.node
	false2.Tunnel.Key = impostor.PublicKey().String()
	a.settle(a.node, false2)
	for range 3 {
		if out, ok := a.reaches(100, b.addresses()[0]); ok {
			t.Fatalf("a packet was answered by a node without the key: %s", out)
		}
		if out, ok := b.reaches(100, a.addresses()[1]); ok {
			t.Fatalf("a node with another key was answered: %s", out)
		}
	}
	a.settle(a.node, b.node)
	a.must("the right key", 100, b.addresses()...)
	b.must("the right key", 100, a.addresses()...)

	// A new key.
	b.stop()
	if err := os.Remove(b.agent.Tunnel.KeyFile); err != nil {
		t.Fatal(err)
	}
	b.agent = b.newTunnelAgent(b.agent.Tunnel.KeyFile)
	b.begin()
	if b.node.Tunnel.Key == former {
		t.Error("the key is the former one")
	}
	b.settle(a.node, b.node)
	a.settle(a.node, b.node)
	a.must("a new key", 100, b.addresses()...)
	if d, err := a.device(); err != nil || len(d.Peers) != 1 || d.Peers[0].PublicKey.String() != b.node.Tunnel.Key {
		t.Errorf("%+v, %v; want one peer with the key %s", d, err, b.node.Tunnel.Key)
	}

	// A source that is not the node's own is dropped.
	b.shell(b.pod, "ip addr add 10.244.3.2/32 dev eth0")
	b.shell(b.w.Host.Path, "ip route add 10.244.3.2 dev pod0")
	if out, err := nstest.Output(b.pod, exec.Command("ping", "-c", "2", "-W", "1", "-I", "10.244.3.2", a.addresses()[0])); err == nil {
		t.Errorf("a packet from a range that node n2 does not have was answered: %s", out)
	}

	a.settle(a.node)
	if d, err := a.device(); err != nil || len(d.Peers) > 0 {
		t.Errorf("the node has gone, and there is %+v, %v", d, err)
	}
	if out := a.shell(a.w.Host.Path, "ip route show proto 118; ip -6 route show proto 118"); out != "" {
		t.Errorf("the node has gone, and there is %q", out)
	}
}
