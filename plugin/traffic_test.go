package plugin_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// echo sends back at port 81 what it is sent.
func (p places) echo(name string) {
	p.Helper()
	err := p.ns[name].Do(func() error {
		l, err := net.Listen("tcp", ":81")
		if err != nil {
			return err
		}
		p.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					_, _ = io.Copy(c, c)
				}()
			}
		}()
		return nil
	})
	if err != nil {
		p.Fatal(err)
	}
}

// by is what a socket that is of one link does before it connects; the empty link is any.
func by(link string) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		if link == "" {
			return nil
		}
		if e := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), link) }); e != nil {
			return e
		}
		return err
	}
}

// stream sends a mebibyte to port 81 of an address, and expects it back as it was.
func (p places) stream(from, link, addr string) {
	p.Helper()
	sent := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%32.32s", from+addr)))).Read(sent)
	got, err := func() ([]byte, error) {
		d := net.Dialer{Deadline: nstest.Deadline(p), Control: by(link)}
		var c net.Conn
		if err := p.ns[from].Do(func() (err error) {
			c,
				err = d.Dial("tcp", net.JoinHostPort(addr, "81"))
			return err
		}); err != nil {
			return nil, err
		}
		defer c.Close()
		if err := c.SetDeadline(nstest.Deadline(p)); err != nil {
			return nil, err
		}
		written := make(chan error, 1)
		go func() {
			_, err := c.Write(sent)
			if err == nil {
				err = c.(*net.TCPConn).CloseWrite()
			}
			written <- err
		}()
		got, err := io.ReadAll(c)
		if err == nil {
			err = <-written
		}
		return got, err
	}()
	if err != nil || !bytes.Equal(got, sent) {
		p.Errorf("a stream from %s to %s: %d bytes of %d came back, as they were: %v; %v", from, addr, len(got), len(sent),
			bytes.HasPrefix(sent, got), err)
	}
}

// frames carries frames between two taps until they are closed.
func frames(a, b *os.File) {
	for _, pair := range [][2]*os.File{{a, b}, {b, a}} {
		go func() {
			for frame := make([]byte, 64<<10); ; {
				n, err := pair[0].Read(frame)
				if err != nil {
					return
				}
				_, _ = pair[1].Write(frame[:n]) // what does not fit is lost, as on any wire
			}
		}()
	}
}

// segment is a host with two cards in one LAN, where a router is:
//
//	host ens1 ══╦══ ens2 host
//	           lan 192.0.2.2 outside ── 198.51.100.2 beyond
func segment(t *testing.T) *site {
	t.Helper()
	s := emptySite(t)
	s.open("outside", nstest.NewNS(t))
	s.open("beyond", nstest.NewNS(t))
	name := func(ns string) string { return strings.TrimPrefix(s.ns[ns].Path, "/run/netns/") }
	s.sh("outside", "ip link set lo up; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; ip link add lan up type bridge; ip link add far type veth peer name eth0 netns "+name("beyond")+
		"; ip addr add 198.51.100.1/24 dev far; ip addr add 2001:db8:1::1/64 dev far nodad; ip link set far up")
	s.sh("beyond", `ip link set lo up; ip addr add 198.51.100.2/24 dev eth0; ip addr add 2001:db8:1::2/64 dev eth0 nodad; ip link set eth0 up
		ip route add default via 198.51.100.1; ip route add default via 2001:db8:1::1`)
	s.sh("host", "ip link set lo up")
	for i := 1; i <= 2; i++ {
		s.sh("host", fmt.Sprintf("ip link add ens%d type veth peer name port%[1]d netns %s; ip link set ens%[1]d up", i,
			name("outside")))
		s.sh("outside", fmt.Sprintf("ip link set port%d up master lan", i))
	}
	s.addr["beyond"] = [2]string{"198.51.100.2", "2001:db8:1::2"}
	s.echo("beyond")
	return s
}

// TestTraffic has every kind of interface carry echoes and streams of both families, between containers, to a host
// beyond a router, and from there.
//
// clause: P20 P24 P26
func TestTraffic(t *testing.T) {
	const (
		neighbour = `,"ipam":{"type":"host-local","ranges":[[{"subnet":"192.0.2.0/24","rangeStart":"192.0.2.100","gateway":"192.0.2.2"}],
			[{"subnet":"2001:db8::/64","rangeStart":"2001:db8::100","gateway":"2001:db8::2"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`
		routed = `,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.81.0.0/24"}],[{"subnet":"fd00:81::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`
		vlan   = "vlan id 7"
	)
	for _, c := range []struct {
		name, need, conf string
		second           string              // the other container's card, where it is not the first's
		host, outside    string              // commands
		more             string              // the next plugin of the chain
		up               string              // the outside's link in the LAN, where it is not lan
		link             string              // by which containers speak, where they have to say so
		plug             func(*site, string) // makes a container's cable
	}{
		{name: "bridge", conf: `"type":"bridge","bridge":"br-a","isGateway":true` + routed},
		{name: "bridge with a card", conf: `"type":"bridge","bridge":"br-a"` + neighbour, host: "ip link add br-a up type bridge; ip link set ens1 master br-a"},
		{name: "ptp", conf: `"type":"ptp"` + routed},
		{name: "macvlan bridge", need: "macvlan", conf: `"type":"macvlan","master":"ens1"` + neighbour},
		{name: "macvlan private", need: "macvlan", conf: `"type":"macvlan","mode":"private","master":"ens1"` + neighbour, second: "ens2"},
		{name: "macvlan vepa", need: "macvlan", conf: `"type":"macvlan","mode":"vepa","master":"ens1"` + neighbour, outside: "ip link set port1 type bridge_slave hairpin on"},
		{name: "macvlan passthru", need: "macvlan", conf: `"type":"macvlan","mode":"passthru","master":"ens1"` + neighbour, second: "ens2"},
		{name: "macvtap bridge", need: "macvtap", conf: `"type":"macvtap","master":"ens1"` + neighbour},
		{name: "macvtap private", need: "macvtap", conf: `"type":"macvtap","mode":"private","master":"ens1"` + neighbour, second: "ens2"},
		{name: "macvtap vepa", need: "macvtap", conf: `"type":"macvtap","mode":"vepa","master":"ens1"` + neighbour, outside: "ip link set port1 type bridge_slave hairpin on"},
		{name: "macvtap passthru", need: "macvtap", conf: `"type":"macvtap","mode":"passthru","master":"ens1"` + neighbour, second: "ens2"},
		{name: "ipvlan l2", need: "ipvlan", conf: `"type":"ipvlan","mode":"l2","master":"ens1"` + neighbour},
		{name: "ipvlan l2 private", need: "ipvlan", conf: `"type":"ipvlan","mode":"l2","flag":"private","master":"ens1"` + neighbour, second: "ens2"},
		{name: "ipvlan l2 vepa", need: "ipvlan", conf: `"type":"ipvlan","mode":"l2","flag":"vepa","master":"ens1"` + neighbour, second: "ens2"},
		{name: "ipvlan l3", need: "ipvlan", conf: `"type":"ipvlan","mode":"l3","master":"ens1"` + routed},
		{name: "ipvlan l3s", need: "ipvlan", conf: `"type":"ipvlan","mode":"l3s","master":"ens1"` + routed},
		{name: "vlan", need: vlan, conf: `"type":"vlan","vlanId":100,"master":"ens1"` + neighbour, second: "ens2",
			outside: "ip link add link lan name lan100 up type vlan id 100", up: "lan100"},
		{name: "QinQ", need: vlan + " protocol 802.1ad", conf: `"type":"vlan","vlanId":100,"master":"ens1q"` + neighbour, second: "ens2q",
			host:    "for i in ens1 ens2; do ip link add link $i name ${i}q up type vlan protocol 802.1ad id 200; done",
			outside: "ip link add link lan name lanq up type vlan protocol 802.1ad id 200; ip link add link lanq name lan100 up type vlan id 100", up: "lan100"},
		{name: "vrf", need: "vrf table 7", conf: `"type":"bridge","bridge":"br-a","isGateway":true` + routed, more: `"type":"vrf","vrfname":"blue"`, link: "blue",
			plug: func(s *site, name string) { s.sh(name, "sysctl -qw net.ipv4.tcp_l3mdev_accept=1") }},
		{name: "tap", conf: `"type":"tap"` + neighbour, plug: (*site).plugTap},
		{name: "host-device", conf: `"type":"host-device","device":"ens1"` + neighbour, second: "ens2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.need != "" {
				need := strings.Fields(c.need)
				nstest.Need(t, need[0], need[1:]...)
			}
			s := segment(t)
			up := c.up
			if up == "" {
				up = "lan"
			}
			s.sh("outside", c.outside+fmt.Sprintf("\nip addr add 192.0.2.2/24 dev %s; ip addr add 2001:db8::2/64 dev %[1]s nodad", up))
			s.sh("host", c.host+"\ntrue")
			if strings.Contains(c.conf, routed) {
				s.sh("outside", "ip route add 10.81.0.0/24 via 192.0.2.1; ip -6 route add fd00:81::/64 via 2001:db8::1")
				s.sh("host", "ip addr add 192.0.2.1/24 dev ens1; ip addr add 2001:db8::1/64 dev ens1 nodad; ip route add default via 192.0.2.2; ip -6 route add default via 2001:db8::2")
			}
			for i, letter := range []string{"a", "b"} {
				plugins := []string{c.conf}
				if i > 0 && c.second != "" {
					plugins[0] = strings.ReplaceAll(c.conf, `"`+strings.Replace(c.second, "2", "1", 1)+`"`, `"`+c.second+`"`)
				}
				if c.more != "" {
					plugins = append(plugins, c.more)
				}
				s.on("host", letter, plugins...)
				s.add(letter + "1")
				s.echo(letter + "1")
				if c.plug != nil {
					c.plug(s, letter+"1")
				}
			}
			for _, way := range []struct{ from, to, link string }{{"a1", "b1", c.link}, {"b1", "a1", c.link},
				{"a1", "beyond", c.link}, {"b1", "beyond", c.link}, {"beyond", "a1", ""}, {"beyond", "b1", ""}} {
				for _, addr := range s.addr[way.to] {
					ping := "busybox ping -q -c 2 -i 0.1 -W 600 "
					if way.link != "" {
						ping += "-I " + way.link + " "
					}
					s.sh(way.from, ping+addr)
					s.stream(way.from, way.link, addr)
				}
			}
			for letter, r := range s.runners {
				r.must("check", r.check(s.containers[letter+"1"]))
			}
		})
	}
}

// plugTap puts a container's tap into the LAN, as a hypervisor would.
func (s *site) plugTap(name string) {
	s.Helper()
	needTap(s.T)
	far := openTap(s.T, side{ns: s.ns["outside"]}, "tap"+name)
	frames(openTap(s.T, side{ns: s.ns[name]}, "eth0"), far)
	s.sh("outside", "ip link set tap"+name+" up master lan")
	s.settled(name, "eth0", s.addr[name][1])
}
