package overlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// ends are the endpoints of node i, and prefixes those of its containers.
func ends(i byte) []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, i}), netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: i})}
}

func prefixes(i byte) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, i, 0}), 24),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 3: i}), 64)}
}

// portFilter is that of node 1 with these other nodes.
func portFilter(others ...byte) PortFilter {
	f := PortFilter{Network: "pods", ID: vx.ID, Port: vx.Port, Further: []uint16{51820, 8473}, Own: ends(1)}
	for _, i := range others {
		f.Senders = append(f.Senders, Sender{Endpoints: ends(i), Prefixes: prefixes(i)})
	}
	return f
}

func ruleset(w *kernel.World) func(testing.TB) string {
	return func(t testing.TB) string { return contract.Host(t, w, "nft list ruleset") }
}

// The table is as described, nft(8) loads what it prints of it, and a change is one transaction of what differs.
func TestPortFilter(t *testing.T) {
	w := contract.NewWorld(t)
	f := portFilter(2, 4)
	name := f.Table()
	nft := func(line string) func(*testing.T) { return contract.On(w, "nft "+line+" inet "+name) }
	contract.Terms{State: ruleset(w)}.Test(t, w, f,
		contract.Break("deleted", contract.On(w, "nft flush ruleset"), "nft table inet "+name+" is missing"),
		contract.Break("emptied", nft("flush table"), "nft rule inet "+name+" received"),
		contract.Break("a source too much", contract.On(w, "nft add element inet "+name+
			" sources_ip_ip { 192.0.2.9 . 0x0af40900-0x0af409ff }"), "192.0.2.9 . 10.244.9.0-10.244.9.255 } is too much"),
		contract.Break("a source less", contract.On(w, "nft delete element inet "+name+
			" sources_ip6_ip { 2001:db8::2 . 0x0af40200-0x0af402ff }"), "2001:db8::2 . 10.244.2.0-10.244.2.255 } is missing"),
		contract.Break("a node less", contract.On(w, "nft delete element inet "+name+" nodes_ip { 192.0.2.1 }"),
			"nodes_ip { 192.0.2.1 } is missing"),
		contract.Break("open", contract.On(w, "nft insert rule inet "+name+" received accept"), "a rule"),
	)
	contract.Must(t, w, f)
	printed := ruleset(w)(t)
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte("flush ruleset\n"+printed), 0o600); err != nil {
		t.Fatal(err)
	}
	contract.Host(t, w, "nft -f %s", file)
	if again := ruleset(w)(t); again != printed {
		t.Errorf("nft(8) loads another ruleset than it printed: %s", contract.Difference(printed, again))
	}
	contract.Verify(t, w, f)

	for _, wide := range []int{23, 24, 32} { // overlaps the former one each time
		f.Senders[0].Prefixes[0] = netip.PrefixFrom(netip.MustParseAddr("10.244.2.0"), wide)
		contract.Ensure(t, w, f)
		contract.Verify(t, w, f)
	}
	f.Senders[0].Prefixes, f.Senders[1].Prefixes = f.Senders[1].Prefixes, f.Senders[0].Prefixes
	contract.Ensure(t, w, f)
	contract.Verify(t, w, f)
}

// A segment is what connects a node under test, another node, and a stranger. The node has a container.
//
//	container ── node 1 ── 192.0.2.0/24 ── node 2, stranger 3
type segment struct {
	*testing.T
	w                                    *kernel.World
	container, node, other, stranger, on *kernel.NS
	heard                                map[*kernel.NS]net.PacketConn
	forged                               int // packets
}

func newSegment(t *testing.T) *segment {
	s := &segment{T: t, w: node(t), other: contract.OpenNS(t), stranger: contract.OpenNS(t), on: contract.OpenNS(t),
		heard: map[*kernel.NS]net.PacketConn{}}
	s.node, s.container = s.w.Host, s.w.Container
	at := func(ns *kernel.NS) string { return filepath.Base(ns.Path) }
	contract.Host(t, s.w, "ip link set up1 netns %s", at(s.on))
	contract.IPBatch(t, s.on.Path, "link add br0 type bridge\nlink set br0 up\nlink set up1 master br0 up")
	for i, ns := range []*kernel.NS{s.other, s.stranger} {
		contract.IPBatch(t, s.on.Path, fmt.Sprintf("link add p%d type veth peer name up0 netns %s\nlink set p%[1]d master br0 up",
			i, at(ns)))
		contract.IPBatch(t, ns.Path, fmt.Sprintf("link set lo up\nlink set up0 up\naddr add %v/24 dev up0\naddr add %v/64 dev up0 nodad",
			ends(byte(2 + i))[0], ends(byte(2 + i))[1]))
	}
	contract.IPBatch(t, s.node.Path, fmt.Sprintf(`link add pod0 type veth peer name eth0 netns %s
link set pod0 up
addr add 10.244.1.1/32 dev pod0
addr add fd00:1::1/128 dev pod0 nodad
route add 10.244.1.2/32 dev pod0
route add fd00:1::2/128 dev pod0`, at(s.container)))
	contract.IPBatch(t, s.container.Path, `link set eth0 up
addr add 10.244.1.2/24 dev eth0
addr add fd00:1::2/64 dev eth0 nodad
route add default via 10.244.1.1
route add default via fd00:1::1`)
	contract.Host(t, s.w, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
	for j, local := range ends(1) {
		contract.IPBatch(t, s.node.Path, fmt.Sprintf("link add their%d address %v type vxlan id 9 dstport 8472 local %v\nlink set their%[1]d up",
			j, MAC("c", "1"), local))
	}
	for i, ns := range []*kernel.NS{s.node, s.other} {
		w := &kernel.World{Host: ns}
		for j, local := range ends(byte(1 + i)) {
			d := vx
			d.Name, d.Local, d.MAC = fmt.Sprint("vx", j), local, MAC("c", fmt.Sprint(1+i))
			contract.Must(t, w, d)
		}
		contract.IPBatch(t, ns.Path, fmt.Sprintf("addr add 10.244.%d.1/32 dev vx0\naddr add fd00:%[1]d::1/128 dev vx0 nodad", 1+i))
		for _, key := range []string{"all", "default", "vx0", "vx1", "up0"} {
			nstest.RunIn(t, ns.Path, "sysctl", "-qw", "net.ipv4.conf."+key+".rp_filter=0")
		}
		err := ns.Do(func() (err error) {
			s.heard[ns], err = net.ListenPacket("udp", ":9000")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.heard[ns].Close() })
	}
	for _, from := range []*kernel.NS{s.other, s.stranger, s.container} {
		for _, to := range ends(1) {
			s.reach(from, to)
		}
	}
	return s
}

// reach waits until packets from a namespace get to an address: the kernel brings links up in its own time.
func (s *segment) reach(from *kernel.NS, to netip.Addr) {
	s.Helper()
	var err error
	for end := nstest.Deadline(s); time.Now().Before(end); {
		if err = contract.PingWithin(s, from, to.String(), time.Second); err == nil {
			return
		}
	}
	s.Fatal(err)
}

// A forgery is a VXLAN packet as anybody can send it who reaches the port.
type forgery struct {
	from   *kernel.NS
	as     netip.Addr // its source; invalid: that of its namespace
	to     *kernel.NS
	at     netip.Addr // an address of to
	id     uint32
	source netip.Addr // of the packet in it
	size   int        // of the packet in it
	kind   uint16     // of the frame in it; 0 is IP
	pieces bool       // it comes in two fragments, the first of which ends behind the UDP header
}

// frame is the frame in the packet: a datagram to port 9000 of the node's own address among its containers.
func (f forgery) frame(node byte, text string) []byte {
	udp := binary.BigEndian.AppendUint16(nil, 9000)
	udp = binary.BigEndian.AppendUint16(udp, 9000)
	body := append([]byte(text), make([]byte, max(0, f.size-len(text)))...)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(body)))
	udp = append(append(udp, 0, 0), body...)

	target := prefixes(node)[1].Addr().Next()
	ip, ethertype := []byte{0x60, 0, 0, 0, byte(len(udp) >> 8), byte(len(udp)), 17, 64}, uint16(0x86dd)
	if f.source.Is4() {
		target, ethertype = prefixes(node)[0].Addr().Next(), 0x0800
		ip = []byte{0x45, 0, byte((20 + len(udp)) >> 8), byte(20 + len(udp)), 0, 1, 0, 0, 64, 17, 0, 0}
	}
	ip = append(append(ip, f.source.AsSlice()...), target.AsSlice()...)
	if f.source.Is4() {
		binary.BigEndian.PutUint16(ip[10:], sum(ip))
	} else {
		pseudo := slices.Concat(ip[8:40], []byte{0, 0, ip[4], ip[5], 0, 0, 0, 17}, udp, make([]byte, len(udp)%2))
		binary.BigEndian.PutUint16(udp[6:], sum(pseudo))
	}
	if f.kind != 0 {
		ethertype = f.kind
	}
	eth := slices.Concat(MAC("c", fmt.Sprint(node)), MAC("c", "somebody"), binary.BigEndian.AppendUint16(nil, ethertype))
	return slices.Concat(eth, ip, udp)
}

// sum is the Internet checksum (RFC 1071).
func sum(b []byte) uint16 {
	var n uint32
	for i := 0; i+1 < len(b); i += 2 {
		n += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for n > 0xffff {
		n = n>>16 + n&0xffff
	}
	return ^uint16(n)
}

// send sends a datagram from a namespace.
func (s *segment) send(from *kernel.NS, as netip.Addr, to netip.AddrPort, data []byte) {
	s.Helper()
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1) // the address need not be its own
			unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
		})
	}}
	if as.IsValid() {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(as, 0))
	}
	err := from.Do(func() error {
		c, err := d.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(data)
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
}

// sendPieces sends a datagram to the VXLAN port in two fragments of IPv6.
func (s *segment) sendPieces(from *kernel.NS, src, dst netip.Addr, data []byte) {
	s.Helper()
	udp := binary.BigEndian.AppendUint16([]byte{0x23, 0x28}, vx.Port)
	udp = append(binary.BigEndian.AppendUint16(udp, uint16(8+len(data))), 0, 0)
	udp = append(udp, data...)
	addrs := slices.Concat(src.AsSlice(), dst.AsSlice())
	length := []byte{0, 0, udp[4], udp[5]}
	binary.BigEndian.PutUint16(udp[6:], sum(slices.Concat(addrs, length, []byte{0, 0, 0, 17}, udp, make([]byte, len(udp)%2))))

	fd := contract.RawSocket(s, from, unix.AF_INET6, unix.IPPROTO_RAW, nstest.Patience(s))
	for i, piece := range [][]byte{udp[:8], udp[8:]} {
		offset := []byte{0, 1} // and more follow
		if i == 1 {
			offset = []byte{0, 8}
		}
		fragment := slices.Concat([]byte{17, 0}, offset, []byte{0, 0, 0, 1}, piece)
		head := []byte{0x60, 0, 0, 0, byte(len(fragment) >> 8), byte(len(fragment)), unix.IPPROTO_FRAGMENT, 64}
		if err := unix.Sendto(fd, slices.Concat(head, addrs, fragment), 0, &unix.SockaddrInet6{Addr: dst.As16()}); err != nil {
			s.Fatal(err)
		}
	}
}

// arrives waits until a packet is decapsulated and delivered. The datagram that follows it may overtake it, because the
// kernel delivers what it decapsulated later.
func (s *segment) arrives(f forgery) {
	s.Helper()
	s.forge(f, func(heard string) bool { return strings.HasPrefix(heard, "forged") })
}

// passes reports whether a packet is decapsulated and delivered before the datagram that follows it.
func (s *segment) passes(f forgery) bool {
	s.Helper()
	return strings.HasPrefix(s.forge(f, func(string) bool { return true }), "forged")
}

// forge sends a packet and a datagram to the same host after it, again each second, because a busy machine loses some,
// until what is heard of them there is enough. It returns that.
func (s *segment) forge(f forgery, enough func(heard string) bool) string {
	s.Helper()
	s.forged++
	mark := fmt.Sprintf(" %d.", s.forged)
	buf := make([]byte, 4096)
	for end := nstest.Deadline(s); time.Now().Before(end); {
		s.sendForged(f, "forged"+mark)
		s.send(f.from, netip.Addr{}, netip.AddrPortFrom(f.at, 9000), []byte("marker"+mark))
		if err := s.heard[f.to].SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			s.Fatal(err)
		}
		for {
			n, _, err := s.heard[f.to].ReadFrom(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				s.Fatal(err)
			}
			if heard := string(buf[:n]); strings.Contains(heard, mark) && enough(heard) {
				return heard
			}
		}
	}
	s.Fatalf("%+v: nothing is heard of%s", f, mark)
	return ""
}

// sendForged sends a packet with that text.
func (s *segment) sendForged(f forgery, text string) {
	s.Helper()
	number := byte(1)
	if f.to == s.other {
		number = 2
	}
	data := append([]byte{8, 0, 0, 0, byte(f.id >> 16), byte(f.id >> 8), byte(f.id), 0}, f.frame(number, text)...)
	if f.pieces {
		s.sendPieces(f.from, ends(3)[1], f.at, data)
	} else {
		s.send(f.from, f.as, netip.AddrPortFrom(f.at, vx.Port), data)
	}
}

// What a node sends for its containers passes, of both families in both families, also in fragments. All else is
// dropped: of strangers, with sources of others, and what containers send to the port of any node.
func TestPortFilterPackets(t *testing.T) {
	s := newSegment(t)
	contract.Host(t, s.w, "nft add table ip masq")
	contract.Host(t, s.w, "nft add chain ip masq post { type nat hook postrouting priority 100 ; }")
	contract.Host(t, s.w, "nft add rule ip masq post oifname up0 masquerade")

	type row struct {
		name  string
		f     forgery
		guard bool // passes with the filter
	}
	var rows []row
	for i, outer := range []string{"IPv4", "IPv6"} {
		for j, inner := range []string{"IPv4", "IPv6"} {
			source := func(node byte) netip.Addr { return prefixes(node)[j].Addr().Next().Next() }
			own := forgery{from: s.other, to: s.node, at: ends(1)[i], id: vx.ID, source: source(2)}
			add := func(name string, guard bool, change func(f *forgery)) {
				f := own
				change(&f)
				rows = append(rows, row{inner + " in " + outer + ", " + name, f, guard})
			}
			add("a node", true, func(*forgery) {})
			add("a node's host", true, func(f *forgery) { f.source = prefixes(2)[j].Addr().Next() })
			add("a node in fragments", true, func(f *forgery) { f.size = 2000 })
			add("a node with the source of another node", false, func(f *forgery) { f.source = source(4) })
			add("the same in fragments", false, func(f *forgery) { f.source, f.size = source(4), 2000 })
			add("a node with a source of ours", false, func(f *forgery) { f.source = source(1) })
			add("a stranger to another network", true, func(f *forgery) { f.from, f.id = s.stranger, 9 })
			add("a stranger", false, func(f *forgery) { f.from = s.stranger })
			add("a stranger in fragments", false, func(f *forgery) { f.from, f.size = s.stranger, 2000 })
			add("a container", false, func(f *forgery) { f.from = s.container })
			add("a container in fragments", false, func(f *forgery) { f.from, f.size = s.container, 2000 })
			add("a container as a node", false, func(f *forgery) { f.from, f.as = s.container, ends(2)[i] })
			if i == 1 {
				add("a stranger whose first fragment names no network", false, func(f *forgery) { f.from, f.pieces = s.stranger, true })
			}
			if i == 0 { // the masquerade that makes a container the node is IPv4's
				add("a container to another node", false, func(f *forgery) {
					*f = forgery{from: s.container, to: s.other, at: ends(2)[i], id: vx.ID, source: source(1)}
				})
				add("a container to another node in fragments", false, func(f *forgery) {
					*f = forgery{from: s.container, to: s.other, at: ends(2)[i], id: vx.ID, source: source(1), size: 2000}
				})
			}
		}
	}
	for _, r := range rows {
		t.Log(r.name) // a packet that is dropped without the filter shows nothing
		s.arrives(r.f)
	}
	arp := forgery{from: s.other, to: s.node, at: ends(1)[0], id: vx.ID, source: prefixes(2)[0].Addr(), kind: unix.ETH_P_ARP}
	received := func() string {
		s.passes(arp)
		_, packets, _ := strings.Cut(contract.Host(t, s.w, "ip -s -j link show dev vx0"), `"rx":{"bytes":`)
		packets, _, _ = strings.Cut(packets, `"errors"`)
		return packets
	}
	if before, after := received(), received(); before == after {
		t.Error("ARP is dropped without the filter, so the test shows nothing")
	}
	contract.Must(t, s.w, portFilter(2, 4))
	if before, after := received(), received(); before != after {
		t.Errorf("ARP passes: received %s, then %s", before, after)
	}
	for _, r := range rows {
		if r.guard {
			t.Log(r.name)
			s.arrives(r.f)
		} else if s.passes(r.f) {
			t.Errorf("%s: passes", r.name)
		}
	}

	// A node that joins is let in, and one that goes is not any more.
	joined := forgery{from: s.stranger, to: s.node, at: ends(1)[0], id: vx.ID, source: prefixes(3)[0].Addr().Next()}
	contract.Ensure(t, s.w, portFilter(2, 3, 4))
	s.arrives(joined)
	contract.Ensure(t, s.w, portFilter(2, 4))
	if s.passes(joined) {
		t.Error("a node that is gone passes")
	}
}

// No packet of a node is dropped while the table is made, as it is after another program flushed nf_tables.
func TestPortFilterWhileMade(t *testing.T) {
	s := newSegment(t)
	nstest.RunIn(t, s.node.Path, "nft", `table inet seen {
		counter before { }
		counter after { }
		chain before { type filter hook input priority -1; udp dport 8472 counter name before; }
		chain after { type filter hook input priority 1; udp dport 8472 counter name after; }
	}`)
	seen := func(counter string) string {
		_, packets, _ := strings.Cut(contract.Host(t, s.w, "nft list counter inet seen %s", counter), "packets ")
		packets, _, _ = strings.Cut(packets, " ")
		return packets
	}

	var c net.Conn
	if err := s.other.Do(func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(ends(1)[0], vx.Port)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f := forgery{from: s.other, to: s.node, at: ends(1)[0], id: vx.ID, source: prefixes(2)[0].Addr().Next()}
	packet := append([]byte{8, 0, 0, 0, 0, byte(f.id >> 8), byte(f.id), 0}, f.frame(1, "x")...)

	for range 50 {
		contract.Must(t, s.w, portFilter(2))
		if err := portFilter(2).Remove(t.Context(), s.w); err != nil {
			t.Fatal(err)
		}
		made := make(chan error, 1)
		go func() {
			_, err := portFilter(2).Ensure(t.Context(), s.w)
			made <- err
		}()
		for len(made) == 0 {
			if _, err := c.Write(packet); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-made; err != nil {
			t.Fatal(err)
		}
	}
	s.arrives(f)                                  // after all of them
	for before := ""; before != seen("before"); { // another may be on its way from a busy processor
		before = seen("before")
	}
	if before, after := seen("before"), seen("after"); before != after || before == "0" {
		t.Errorf("%s packets reach the filter, and %s pass", before, after)
	}
}
