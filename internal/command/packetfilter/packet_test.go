package packetfilter

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// A forwarder is a host between two others, which sends packets of every kind in at one side and sees which of them
// come out at the other: the real kernel's verdict.
type forwarder struct {
	t       testing.TB
	path    string // of the host in the middle
	ns      *kernel.NS
	in, out map[string]*tap // by the links' names in the middle
}

// A tap is a link's other end.
type tap struct {
	fd, index int
	peer      net.HardwareAddr // of the link in the middle
}

// newForwarder has the links in0 and br-in to send to, and out0 (for 10.2.0.0/16 and fd02::/16) and eth9 (for all
// else).
func newForwarder(t testing.TB) *forwarder {
	runtime.LockOSThread() // and on one processor, so that packets keep their order
	t.Cleanup(runtime.UnlockOSThread)
	var old, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		t.Fatal(err)
	}
	for i := range 1024 {
		if old.IsSet(i) {
			one.Set(i)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.SchedSetaffinity(0, &old) })
	f := &forwarder{t: t, path: nstest.NewNS(t), in: map[string]*tap{}, out: map[string]*tap{}}
	side := nstest.NewNS(t)
	nstest.RunIn(t, f.path, "sh", "-ec", `
		ip link add in0 type veth peer name a0 netns `+side+`
		ip link add br-in type veth peer name a1 netns `+side+`
		ip link add out0 type veth peer name b0 netns `+side+`
		ip link add eth9 type veth peer name b1 netns `+side+`
		for l in lo in0 br-in out0 eth9; do ip link set $l up; done
		for l in all in0 br-in out0 eth9; do
			echo 0 > /proc/sys/net/ipv4/conf/$l/rp_filter; echo 1 > /proc/sys/net/ipv4/conf/$l/forwarding; echo 1 > /proc/sys/net/ipv6/conf/$l/forwarding
		done
		ip addr add 10.1.255.1/32 dev in0
		ip route add 10.1.0.0/16 via 10.1.255.2 dev in0 onlink; ip route add 10.2.0.0/16 via 10.1.255.2 dev out0 onlink; ip route add default via 10.1.255.2 dev eth9 onlink
		ip route add fd01::/16 via fe80::2 dev in0 onlink; ip route add fd02::/16 via fe80::2 dev out0 onlink; ip route add default via fe80::2 dev eth9 onlink
		for l in in0 out0 eth9; do for to in 10.1.255.2 fe80::2; do ip neigh replace $to lladdr 02:00:00:00:00:01 dev $l; done; done`)
	nstest.RunIn(t, side, "sh", "-ec", `for l in a0 a1 b0 b1; do echo 1 > /proc/sys/net/ipv6/conf/$l/disable_ipv6; ip link set $l up; done`)
	var err error
	if f.ns, err = kernel.Open(f.path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.ns.Close)
	far, err := kernel.Open(side)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(far.Close)
	for name, end := range map[string]string{"in0": "a0", "br-in": "a1", "out0": "b0", "eth9": "b1"} {
		here, err := rtnl.LinkByName(f.ns, name)
		if err != nil {
			t.Fatal(err)
		}
		there, err := rtnl.LinkByName(far, end)
		if err != nil {
			t.Fatal(err)
		}
		tp := &tap{index: there.Index, peer: here.MAC}
		if err := far.Do(func() (err error) {
			tp.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(swap16(unix.ETH_P_ALL)))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(tp.fd) })
		tv := unix.NsecToTimeval((5 * time.Second).Nanoseconds())
		if err := unix.SetsockoptTimeval(tp.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			t.Fatal(err)
		}
		if err := unix.SetsockoptInt(tp.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20); err != nil {
			unix.SetsockoptInt(tp.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)
		}
		if err := unix.Bind(tp.fd, &unix.SockaddrLinklayer{Protocol: swap16(unix.ETH_P_ALL), Ifindex: tp.index}); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(end, "a") {
			f.in[name] = tp
		} else {
			f.out[name] = tp
		}
	}
	return f
}

func swap16(n uint16) uint16 { return n<<8 | n>>8 }

func (tp *tap) send(t testing.TB, b []byte) {
	t.Helper()
	proto := uint16(unix.ETH_P_IP)
	if b[0]>>4 == 6 {
		proto = unix.ETH_P_IPV6
	}
	to := &unix.SockaddrLinklayer{Protocol: swap16(proto), Ifindex: tp.index, Halen: 6}
	copy(to.Addr[:], tp.peer)
	if err := unix.Sendto(tp.fd, b, 0, to); err != nil {
		t.Fatal(err)
	}
}

// inetSum is the checksum of the internet, as it is written.
func inetSum(parts ...[]byte) uint16 {
	var n uint32
	for _, b := range parts {
		for i := 0; i < len(b); i += 2 {
			n += uint32(b[i]) << 8
			if i+1 < len(b) {
				n += uint32(b[i+1])
			}
		}
	}
	for n > 0xffff {
		n = n>>16 + n&0xffff
	}
	return ^uint16(n)
}

// wire is the packet with a number that it can be known by.
func (p Packet) wire(id uint16) []byte {
	be := binary.BigEndian
	dst := p.Dst
	if i := slices.Index(probeDsts(), dst.String()); p.DNAT {
		dst = netip.AddrFrom4([4]byte{198, 18, 0, byte(i)})
	}
	var body []byte
	at := -1 // of the checksum
	switch p.Proto {
	case kernel.TCP:
		body, at = make([]byte, 20), 16
		body[12], body[13] = 5<<4, 2 // SYN
		if p.Reply {
			body[13] = 0x10 // ACK
		}
	case kernel.UDP:
		body, at = make([]byte, 12), 6
		be.PutUint16(body[4:], 12)
	default:
		body = make([]byte, 8)
	}
	if at > 0 {
		be.PutUint16(body, p.SrcPort)
		be.PutUint16(body[2:], p.DstPort)
		pseudo := be.AppendUint32(append(p.Src.AsSlice(), dst.AsSlice()...), uint32(len(body)))
		be.PutUint16(body[at:], inetSum(pseudo, []byte{0, p.Proto}, body))
	}
	if p.Src.Is6() {
		h := make([]byte, 8, 40)
		h[0] = 0x60
		be.PutUint16(h[2:], id)
		be.PutUint16(h[4:], uint16(len(body)))
		h[6], h[7] = p.Proto, 64
		return append(append(append(h, p.Src.AsSlice()...), p.Dst.AsSlice()...), body...)
	}
	h := make([]byte, 12, 20)
	h[0] = 0x45
	be.PutUint16(h[2:], uint16(20+len(body)))
	be.PutUint16(h[4:], id)
	h[8], h[9] = 64-byte(slices.Index(probeMarks(), p.Mark)), p.Proto
	h = append(append(h, p.Src.AsSlice()...), dst.AsSlice()...)
	be.PutUint16(h[10:], inetSum(h))
	return append(h, body...)
}

// forward sends the packets and tells which of them came through. An echo that is answered afterwards has overtaken
// nobody.
func (f *forwarder) forward(packets []Packet) []bool {
	f.t.Helper()
	if err := f.load("", "conntrack", "-F"); err != nil { // all are the first of their flow
		f.t.Fatal(err)
	}
	for i, p := range packets {
		if p.Reply {
			f.establish(p)
		}
		f.in[p.In].send(f.t, p.wire(uint16(i+1)))
	}
	for name, tp := range f.in {
		id := byte(1)
		if name != "in0" {
			id = 2
		}
		echo := Packet{Src: netip.MustParseAddr("10.1.255.2"), Dst: netip.MustParseAddr("10.1.255.1"), Proto: 1}.wire(0)
		copy(echo[20:], []byte{8, 0, 0, 0, 0x12, id, 0, 0})
		binary.BigEndian.PutUint16(echo[22:], inetSum(echo[20:]))
		tp.send(f.t, echo)
		buf := make([]byte, 256)
		for {
			n, from, err := unix.Recvfrom(f.in["in0"].fd, buf, 0)
			if err != nil {
				f.t.Fatalf("the middle does not answer: %v", err)
			}
			ll, ok := from.(*unix.SockaddrLinklayer)
			if ok && ll.Pkttype != unix.PACKET_OUTGOING && n >= 28 && buf[9] == 1 && buf[20] == 0 && buf[25] == id {
				break
			}
		}
	}
	came := make([]bool, len(packets))
	buf := make([]byte, 256)
	for _, tp := range f.out {
		for {
			n, _, err := unix.Recvfrom(tp.fd, buf, unix.MSG_DONTWAIT)
			if err != nil {
				break
			}
			id := 0
			if n >= 40 && buf[0]>>4 == 6 {
				id = int(binary.BigEndian.Uint16(buf[2:]))
			} else if n >= 20 && buf[0]>>4 == 4 {
				id = int(binary.BigEndian.Uint16(buf[4:]))
			}
			if id >= 1 && id <= len(packets) {
				came[id-1] = true
			}
		}
	}
	return came
}

// Marks and translations come from a table of our own before the routing: the first by the TTL.
func probeMarks() []uint32 { return []uint32{0, 1, 0x4000, 0x4001} }

func probeDsts() []string { return []string{"10.2.0.1", "10.2.3.4", "10.9.0.9", "203.0.113.5"} }

func probe() string {
	s := "flush ruleset\ntable ip probe {\nchain pre { type filter hook prerouting priority -250;\n"
	for i, mark := range probeMarks() {
		s += fmt.Sprintf("ip ttl %d meta mark set %d\n", 64-i, mark)
	}
	s += "}\nchain nat { type nat hook prerouting priority dstnat;\n"
	for i, dst := range probeDsts() {
		s += fmt.Sprintf("ip daddr 198.18.0.%d dnat to %s\n", i, dst)
	}
	return s + "}\n}\n"
}

// establish tells conntrack that the packet's flow has been answered.
func (f *forwarder) establish(p Packet) {
	f.t.Helper()
	args := []string{"conntrack", "-I", "-s", p.Src.String(), "-d", p.Dst.String(), "-p", kernel.ProtoName(p.Proto),
		"--sport", fmt.Sprint(p.SrcPort),
		"--dport", fmt.Sprint(p.DstPort), "-t", "600", "-u", "SEEN_REPLY,ASSURED"}
	if p.Proto == kernel.TCP {
		args = append(args, "--state", "ESTABLISHED")
	}
	if err := f.load("", args...); err != nil && !strings.Contains(err.Error(), "exists") {
		f.t.Fatal(err)
	}
}

// route fills in which way a packet goes out.
func (p Packet) route() Packet {
	p.Out = "eth9"
	for _, near := range []string{"10.2.0.0/16", "fd02::/16"} {
		if netip.MustParsePrefix(near).Contains(p.Dst) {
			p.Out = "out0"
		}
	}
	return p
}

// compare holds the evaluator's verdicts against the kernel's, of whole packets and of ones of which less is known.
// That something stays undecided is allowed if open.
func (f *forwarder) compare(what string, open bool, packets []Packet, skip ...string) (accepted, dropped int) {
	f.t.Helper()
	came := f.forward(packets)
	for i, p := range packets {
		v, err := Forwarded(f.ns, p, skip...)
		if err != nil {
			f.t.Errorf("%s\n%s: %v", what, detail(p), err)
			return
		}
		want := Dropped
		if came[i] {
			want = Accepted
			accepted++
		} else {
			dropped++
		}
		open := open || p.Proto == unix.IPPROTO_ESP && strings.Contains(what, "th ") // nft(8) compares what has no ports, too
		if v.Outcome != want && !(open && v.Outcome == Undecided) {
			f.t.Errorf("%s\n%s:\n%v, but the kernel has %v it", what, detail(p), v, want)
			return
		}
		hide := []func(p *Packet){
			func(p *Packet) { p.Dst = netip.Addr{} }, func(p *Packet) { p.Src = netip.Addr{} }, func(p *Packet) { p.Proto = 0 },
			func(p *Packet) { p.DstPort = 0 }, func(p *Packet) { p.In, p.SrcPort = "", 0 }, func(p *Packet) { p.Out = "" },
			func(p *Packet) { p.Dst, p.Out, p.SrcPort, p.DstPort, p.Proto = netip.Addr{}, "", 0, 0, 0 },
		}
		for _, h := range []int{i % len(hide), (i/7 + i) % len(hide)} {
			less := p
			hide[h](&less)
			if v, err := Forwarded(f.ns, less, skip...); err != nil || v.Outcome != want && v.Outcome != Undecided {
				f.t.Errorf("%s\n%s, of which less is known:\n%v, %v, but the kernel has %v it", what, detail(less), v, err, want)
				return
			}
		}
	}
	return accepted, dropped
}

func detail(p Packet) string {
	type plain Packet
	return fmt.Sprintf("%+v", plain(p))
}

// load gives a text to a program in the middle.
func (f *forwarder) load(input string, command ...string) error {
	cmd := exec.Command("nsenter", append([]string{"--net=" + f.path}, command...)...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%q: %w: %s", command, err, out)
	}
	return nil
}
