package filtertest

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A Lab is a host with a bridge of containers, and a neighbour on its uplink that routes through it to
// whatever is behind.
//
//	neighbour 192.0.2.2 ── wan 192.0.2.1 host br0 10.1.2.1 ── a 10.1.2.5, b 10.1.2.6
//	                                         wan2 198.51.100.1 ── beyond 198.51.100.2
type Lab struct {
	*testing.T
	W                    *kernel.World // Host, and Container is a
	A, B                 *kernel.NS
	Neighbour, Remote    *kernel.NS
	OwnerA, OwnerB       spec.Owner
	ToA, ToA6, ToB, ToB6 netip.Prefix
}

// NewLab makes a Lab, and returns when all of it can talk.
func NewLab(t *testing.T) *Lab {
	t.Helper()
	l := &Lab{T: t, W: contract.NewWorld(t), B: contract.OpenNS(t), Neighbour: contract.OpenNS(t),
		Remote: contract.OpenNS(t),
		OwnerA: contract.Owner, OwnerB: spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"},
		ToA: contract.Prefix("10.1.2.5/24"), ToA6: contract.Prefix("fd00::5/64"), ToB: contract.Prefix("10.1.2.6/24"),
		ToB6: contract.Prefix("fd00::6/64")}
	l.A = l.W.Container
	for _, ns := range []*kernel.NS{l.W.Host, l.A, l.B, l.Neighbour, l.Remote} {
		l.In(ns, "sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0")
	}
	l.In(l.W.Host, "ip link add br0 type bridge", "ip addr add 10.1.2.1/24 dev br0",
		"ip addr add fd00::1/64 dev br0 nodad", "ip link set br0 up",
		"sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
	l.plug(l.A, "va", "10.1.2.5/24", "fd00::5/64", "10.1.2.1", "fd00::1")
	l.plug(l.B, "vb", "10.1.2.6/24", "fd00::6/64", "10.1.2.1", "fd00::1")
	l.In(l.W.Host, "ip link set va master br0", "ip link set vb master br0")
	l.plug(l.Neighbour, "wan", "192.0.2.2/24", "2001:db8::2/64", "192.0.2.1", "2001:db8::1")
	l.In(l.W.Host, "ip addr add 192.0.2.1/24 dev wan", "ip addr add 192.0.2.9/24 dev wan",
		"ip addr add 2001:db8::1/64 dev wan nodad", "ip addr add 2001:db8::9/128 dev lo")
	l.In(l.Neighbour, "ip route add 2001:db8::9/128 via 2001:db8::1")
	l.plug(l.Remote, "wan2", "198.51.100.2/24", "2001:db8:1::2/64", "198.51.100.1", "2001:db8:1::1")
	l.In(l.W.Host, "ip addr add 198.51.100.1/24 dev wan2", "ip addr add 2001:db8:1::1/64 dev wan2 nodad")
	for _, name := range []string{"va", "vb", "wan", "wan2", "br0"} {
		err := rtnl.Await(l.W.Host, t.Context(), nstest.Patience(t), []uint{rtnl.LinkEvents}, func() (bool, error) {
			k, err := rtnl.LinkByName(l.W.Host, name)
			return err == nil && k.Operational, err
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	// Everybody learns where everybody is, so that what a test loses is lost by the filter.
	for _, from := range []*kernel.NS{l.Neighbour, l.A, l.B} {
		for _, to := range []string{"198.51.100.2", "2001:db8:1::2", "10.1.2.5", "fd00::5", "10.1.2.6", "fd00::6",
			"192.0.2.2", "2001:db8::2"} {
			// The kernel joins the group of an address, and so hears its neighbours ask for it, in its own time.
			var err error
			for end := nstest.Deadline(t); ; {
				err = contract.PingWithin(t, from, to, time.Second)
				if err == nil || time.Now().After(end) {
					break
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return l
}

// In runs commands in a namespace.
func (l *Lab) In(ns *kernel.NS, lines ...string) {
	l.Helper()
	for _, line := range lines {
		f := strings.Fields(line)
		nstest.RunIn(l, ns.Path, f[0], f[1:]...)
	}
}

func (l *Lab) plug(ns *kernel.NS, hostEnd, addr, addr6, gw, gw6 string) {
	l.Helper()
	l.In(l.W.Host, "ip link add "+hostEnd+" type veth peer name eth0 netns "+strings.TrimPrefix(ns.Path, "/run/netns/"),
		"ip link set "+hostEnd+" up")
	l.In(ns, "ip link set lo up", "ip addr add "+addr+" dev eth0", "ip addr add "+addr6+" dev eth0 nodad",
		"ip link set eth0 up",
		"ip route add default via "+gw, "ip route add default via "+gw6)
}

// WorldOf is the host's, with another container in it.
func (l *Lab) WorldOf(ns *kernel.NS) *kernel.World {
	return &kernel.World{Host: l.W.Host, Container: ns, Store: l.W.Store}
}

// Ensure ensures a resource, or ends the test.
func (l *Lab) Ensure(r plan.Resource, w *kernel.World) {
	l.Helper()
	if _, err := r.Ensure(l.Context(), w); err != nil {
		l.Fatal(err)
	}
}

// Serve answers everything that comes to a port in ns with a name and with whom it seems to come from.
func (l *Lab) Serve(ns *kernel.NS, name, network, addr string) {
	l.Helper()
	err := ns.Do(func() error {
		if strings.HasPrefix(network, "udp") {
			c, err := net.ListenPacket(network, addr)
			if err != nil {
				return err
			}
			l.Cleanup(func() { c.Close() })
			go func() {
				buf := make([]byte, 64)
				for {
					_, from, err := c.ReadFrom(buf)
					if err != nil {
						return
					}
					c.WriteTo([]byte(name+" "+HostOf(from)), from)
				}
			}()
			return nil
		}
		s, err := net.Listen(network, addr)
		if err != nil {
			return err
		}
		l.Cleanup(func() { s.Close() })
		go func() {
			for {
				c, err := s.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, name+" "+HostOf(c.RemoteAddr()))
				c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		l.Fatal(err)
	}
}

// HostOf is the address in a net.Addr, without the port.
func HostOf(a net.Addr) string {
	host, _, _ := net.SplitHostPort(a.String())
	return host
}

// Ask connects from ns and returns the answer; a refusal or silence comes as the error. An empty from is any address.
func (l *Lab) Ask(ns *kernel.NS, network, from, addr string, limit time.Duration) (answer string, err error) {
	d := net.Dialer{Timeout: limit}
	if from != "" {
		if d.LocalAddr, err = net.ResolveUDPAddr("udp", from); err != nil {
			l.Fatal(err)
		}
	}
	var c net.Conn
	if err := ns.Do(func() (err error) { c, err = d.Dial(network, addr); return err }); err != nil {
		return "", err
	}
	defer c.Close()
	buf := make([]byte, 64)
	end := time.Now().Add(limit)
	if !strings.HasPrefix(network, "udp") {
		c.SetDeadline(end)
		n, err := c.Read(buf)
		return string(buf[:n]), err
	}
	for { // a datagram is lost where the kernel does not find a neighbour in time: it is sent again, like a resolver's
		if _, err := c.Write([]byte("?")); err != nil {
			return "", err
		}
		c.SetReadDeadline(time.Now().Add(min(time.Until(end), 5*time.Second)))
		n, err := c.Read(buf)
		if !os.IsTimeout(err) || time.Now().After(end) {
			return string(buf[:n]), err
		}
	}
}

// Expect asks and compares; want is empty where no answer may come.
func (l *Lab) Expect(ns *kernel.NS, network, addr, want string) {
	l.Helper()
	limit := nstest.Patience(l)
	if want == "" {
		limit = contract.Silence
	}
	got, err := l.Ask(ns, network, "", addr, limit)
	if got != want || err != nil && want != "" {
		l.Errorf("%s %s from %s: %q (%v), want %q", network, addr, l.NameOf(ns), got, err, want)
	}
}

// NameOf is what a namespace is called in the drawing.
func (l *Lab) NameOf(ns *kernel.NS) string {
	for n, x := range map[string]*kernel.NS{"host": l.W.Host, "a": l.A, "b": l.B, "neighbour": l.Neighbour,
		"beyond": l.Remote} {
		if x == ns {
			return n
		}
	}
	return "?"
}

// SctpInit sends the first packet of an SCTP association from one namespace and waits for it in another. It
// needs no kernel that speaks SCTP, only one that can tell its ports and translate them.
func (l *Lab) SctpInit(from, at *kernel.NS, dst netip.AddrPort, arrives uint16) error {
	family := unix.AF_INET
	if dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	open := func(ns *kernel.NS) (fd int) {
		if err := ns.Do(func() (err error) {
			fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
			return err
		}); err != nil {
			l.Fatal(err)
		}
		return fd
	}
	in := open(at)
	defer unix.Close(in)
	out := open(from)
	defer unix.Close(out)

	p := binary.BigEndian.AppendUint16(nil, 4000)
	p = binary.BigEndian.AppendUint16(p, dst.Port())
	p = append(p, make([]byte, 8)...)  // verification tag and checksum
	p = append(p, 1, 0, 0, 20)         // INIT
	p = append(p, 0, 0, 0, 1, 0, 0, 4) // initiate tag, window
	p = append(p, 0, 0, 1, 0, 1, 0, 0, 0, 1)
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: dst.Addr().As16()}
	if family == unix.AF_INET {
		to = &unix.SockaddrInet4{Addr: dst.Addr().As4()}
	}
	if err := unix.Sendto(out, p, 0, to); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	if err := unix.SetsockoptTimeval(in, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return err
	}
	buf := make([]byte, 256)
	n, _, err := unix.Recvfrom(in, buf, 0)
	if err != nil {
		return os.NewSyscallError("recvfrom", err)
	}
	b := buf[:n]
	if family == unix.AF_INET {
		b = b[int(b[0]&15)*4:] // a raw socket of IPv4 shows the header
	}
	if got := binary.BigEndian.Uint16(b[2:]); got != arrives {
		return fmt.Errorf("arrived at port %d, want %d", got, arrives)
	}
	return nil
}
