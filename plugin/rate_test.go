package plugin_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// What the tests of this file ask of the plugin, in bits a second. Both are so low that a busy machine reaches them.
const (
	toRate   = 24_000_000
	fromRate = 16_000_000
	shaping  = `"type":"bandwidth","ingressRate":24000000,"egressRate":16000000`
)

// A side is an end of a connection.
type side struct {
	ns   *kernel.NS
	addr netip.Addr
}

func openSide(t *testing.T, path, addr string) side {
	t.Helper()
	ns, err := kernel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	return side{ns, netip.MustParseAddr(addr)}
}

// stream sends from one side to the other, without end, and returns the receiving end.
func stream(t *testing.T, from, to side) *net.TCPConn {
	t.Helper()
	var l net.Listener
	if err := to.ns.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(to.addr, 0).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var out net.Conn
	if err := from.ns.Do(func() (err error) {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from.addr, 0)), Deadline: nstest.Deadline(t)}
		out, err = d.Dial("tcp", l.Addr().String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan bool)
	go func() {
		for b := make([]byte, 64<<10); ; {
			if _, err := out.Write(b); err != nil {
				close(done)
				return
			}
		}
	}()
	t.Cleanup(func() { out.Close(); in.Close(); <-done })
	return in.(*net.TCPConn)
}

// arrived is how much the kernel has received on a connection, in bits as they were on the wire, and that it was
// not earlier than one time and not later than the other.
func arrived(t *testing.T, c *net.TCPConn, v6 bool) (bits float64, since, until time.Time) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	since = time.Now()
	if cerr := raw.Control(func(fd uintptr) {
		info,
			err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	until = time.Now()
	payload := 1448.0 // of a frame of 1514 bytes, beside the headers
	if v6 {
		payload = 1428
	}
	return 8 * float64(info.Bytes_received) * 1514 / payload, since, until
}

// wantRate measures what comes through, for a second and a half at a time. It must never be more than 10 % above the
// rate. A machine that is busy with other things may be slow for a while, but not for ever.
func wantRate(t *testing.T, what string, from, to side, rate float64) {
	t.Helper()
	c := stream(t, from, to)
	defer c.Close()
	v6 := to.addr.Is6()
	take := func(seconds float64) {
		if _, err := io.CopyN(io.Discard, c, int64(rate/8*seconds)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.SetDeadline(nstest.Deadline(t)); err != nil {
		t.Fatal(err)
	}
	take(0.7) // the burst is spent, and TCP has found the rate and sent again what it lost on the way
	// What arrived out of order counts when the gap before it is closed, so a while may seem too fast. A longer one
	// does not.
	over := 0
	b0, s0, u0 := arrived(t, c, v6)
	for range 10 {
		take(1.5)
		b1, s1, u1 := arrived(t, c, v6)
		least, most := (b1-b0)/u1.Sub(s0).Seconds(), (b1-b0)/s1.Sub(u0).Seconds()
		t.Logf("%s: %.1f Mbit/s where %.1f are allowed", what, most/1e6, rate/1e6)
		if least > rate*1.1 {
			if over++; over == 4 {
				t.Fatalf("%s: %.1f Mbit/s where %.1f are allowed", what, least/1e6, rate/1e6)
			}
			continue
		}
		if most > rate*0.9 {
			return
		}
		over, b0, s0, u0 = 0, b1, s1, u1
	}
	t.Errorf("%s: never as fast as %.1f Mbit/s", what, rate/1e6)
}

// wantFree measures that what comes through is not limited.
func wantFree(t *testing.T, what string, from, to side, rate float64) {
	t.Helper()
	c := stream(t, from, to)
	defer c.Close()
	if err := c.SetDeadline(nstest.Deadline(t)); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		begin := time.Now()
		if _, err := io.CopyN(io.Discard, c, int64(rate)); err != nil { // 8 seconds' worth, if it were limited
			t.Fatal(err)
		}
		got := 8 * rate / time.Since(begin).Seconds()
		t.Logf("%s: %.0f Mbit/s", what, got/1e6)
		if got > 3*rate {
			return
		}
	}
	t.Errorf("%s: never faster than %.0f Mbit/s, which is not its limit", what, 3*rate/1e6)
}

// TestRateVeth measures both directions on a container's cable, in both families.
//
// clause: K3 P18
func TestRateVeth(t *testing.T) {
	r := newRunner(t, chain{name: "rate", plugins: []string{`"type":"bridge","bridge":"br-rate","isGateway":true,` + hostLocal, shaping}})
	a := &attachment{id: "r", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	res, err := spec.DecodeResult(a.prev, spec.V110)
	r.must("decode", err)
	last := res.Interfaces[len(res.Interfaces)-1]
	if !strings.HasPrefix(last.Name, "ifb") || last.Sandbox != "" || last.MAC == "" ||
		!strings.Contains(nstest.Run(t, "ip", "-br", "link", "show", last.Name), last.MAC) {
		t.Errorf("the ifb in the result: %+v", last)
	}
	for _, fam := range [][2]string{{"10.77.0.1", "IP4"}, {"fd00:77::1", "IP6"}} {
		h, c := openSide(t, "", fam[0]), openSide(t, a.netns, a.text(fam[1]))
		wantRate(t, "to "+fam[1], h, c, toRate)
		wantRate(t, "from "+fam[1], c, h, fromRate)
	}
	// tc(8) has seen it too.
	for _, dev := range []string{res.Interfaces[1].Name, last.Name} {
		var list []struct {
			Kind, Handle string
			Bytes        int
			Options      struct{ Rate, Burst, Limit, Lat int }
		}
		out := nstest.Run(t, "tc", "-s", "-j", "qdisc", "show", "dev", dev)
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatal(err)
		}
		want := map[string]int{res.Interfaces[1].Name: toRate / 8, last.Name: fromRate / 8}[dev]
		if len(list) == 0 || list[0].Kind != "tbf" || list[0].Options.Rate != want || want/20-list[0].Options.Burst > 32 ||
			list[0].Bytes < want {
			t.Errorf("tc -s qdisc show dev %s: %s", dev, out)
		}
	}
	r.must("check", r.check(a))
	r.must("del", r.del(a))
}

// TestRateSubnets measures what is limited and what is not where some subnets are told apart.
//
// clause: K3
func TestRateSubnets(t *testing.T) {
	for _, key := range []string{"shapedSubnets", "unshapedSubnets"} {
		t.Run(key, func(t *testing.T) {
			r := newRunner(t, chain{name: "rate" + key, plugins: []string{`"type":"bridge","bridge":"br-rate","isGateway":true,` + hostLocal,
				shaping + `,"` + key + `":["10.99.0.0/16","fd00:99::/32"]`}})
			a := &attachment{id: "r", netns: nstest.NewNS(t)}
			r.must("add", r.add(a))
			nstest.Run(t, "ip", "addr", "add", "10.99.0.1/32", "dev", "br-rate")
			nstest.Run(t, "ip", "addr", "add", "fd00:99::1/128", "dev", "br-rate", "nodad")
			for _, fam := range [][3]string{{"10.99.0.1", "10.77.0.1", "IP4"}, {"fd00:99::1", "fd00:77::1", "IP6"}} {
				listed, other, c := openSide(t, "", fam[0]), openSide(t, "", fam[1]), openSide(t, a.netns, a.text(fam[2]))
				if key == "unshapedSubnets" {
					listed, other = other, listed
				}
				if other.addr.Is4() == (key == "shapedSubnets") { // the other direction is measured in the other family
					wantRate(t, "to "+fam[2], listed, c, toRate)
				} else {
					wantRate(t, "from "+fam[2], c, listed, fromRate)
				}
				wantFree(t, "to "+fam[2]+" from elsewhere", other, c, toRate)
				wantFree(t, "from "+fam[2]+" to elsewhere", c, other, fromRate)
			}
			r.must("check", r.check(a))
			r.must("del", r.del(a))
			nstest.Run(t, "ip", "link", "del", "br-rate")
		})
	}
}

// TestRateMacvlan measures where nothing on the host leads to the container alone: it is limited inside.
//
// clause: K3 P12
func TestRateMacvlan(t *testing.T) {
	other, cont := nstest.NewNS(t), nstest.NewNS(t)
	base := func(ns string) string { return strings.TrimPrefix(ns, "/run/netns/") }
	nstest.Run(t, "sh", "-ec", `ip link add rate0 type veth peer name wire netns `+base(other)+`; ip link set rate0 up
		ip link add link rate0 name eth0 netns `+base(cont)+` type macvlan mode bridge`)
	t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "rate0") })
	for ns, n := range map[string]string{other: "1", cont: "2"} {
		nstest.RunIn(t, ns, "sh", "-ec", `dev=$(ip -br link | sed -n 's/^\(wire\|eth0\).*/\1/p')
			ip addr add 10.80.0.`+n+`/24 dev $dev; ip addr add fd00:80::`+n+`/64 dev $dev nodad; ip link set $dev up`)
	}
	r := newRunner(t, chain{name: "ratemac", plugins: []string{shaping}})
	before := state(t)
	a := &attachment{id: "m", netns: cont, prev: fmt.Appendf(nil, `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%q}]}`, cont)}
	out, err := r.run(0, "ADD", a, "")
	r.must("add", err)
	if strings.Contains(string(out), `"ifb`) {
		t.Errorf("the result lists what is in the container's namespace: %s", out)
	}
	a.prev = out
	same(t, "an ADD that limits inside of the container", before)
	for _, ip := range [][2]string{{"10.80.0.1", "10.80.0.2"}, {"fd00:80::1", "fd00:80::2"}} {
		h, c := openSide(t, other, ip[0]), openSide(t, cont, ip[1])
		wantRate(t, "to "+ip[1], h, c, toRate)
		wantRate(t, "from "+ip[1], c, h, fromRate)
	}
	r.must("check", r.check(a))
	nstest.RunIn(t, cont, "tc", "qdisc", "del", "dev", "eth0", "root")
	if err := r.check(a); err == nil || !strings.Contains(err.Error(), "cont/eth0") {
		t.Errorf("check of a limit that the container's root has lifted: %v", err)
	}
	r.must("del", r.del(&attachment{id: a.id, netns: cont}))
	if s := nstest.RunIn(t, cont, "sh", "-c", "tc qdisc show dev eth0; ip -br link"); strings.Contains(s, "fa1d:") ||
		strings.Contains(s, "ingress") || strings.Contains(s, "ifb") {
		t.Errorf("after DEL: %s", s)
	}
}

// TestRateTap measures on a hypervisor's tap on the host. The machine behind it is a namespace with a tap of its
// own, and the hypervisor carries frames from one to the other.
//
// clause: K3 P12 P23
func TestRateTap(t *testing.T) {
	vm := nstest.NewNS(t)
	h, c := openSide(t, "", "10.81.0.1"), openSide(t, vm, "10.81.0.2")
	near, far := openTap(t, h, "ratetap"), openTap(t, c, "eth0")
	for _, pair := range [][2]*os.File{{near, far}, {far, near}} {
		go func() {
			for b := make([]byte, 64<<10); ; {
				n, err := pair[0].Read(b)
				if err != nil {
					return
				}
				_, _ = pair[1].Write(b[:n]) // what does not fit is lost, as on any wire
			}
		}()
	}
	nstest.Run(t, "sh", "-ec",
		"ip addr add 10.81.0.1/24 dev ratetap; ip addr add fd00:81::1/64 dev ratetap nodad; ip link set ratetap up")
	nstest.RunIn(t, vm, "sh", "-ec",
		"ip addr add 10.81.0.2/24 dev eth0; ip addr add fd00:81::2/64 dev eth0 nodad; ip link set eth0 up")
	r := newRunner(t, chain{name: "ratetap", plugins: []string{shaping}})
	qdiscs := func() string { return state(t) + nstest.Run(t, "tc", "qdisc", "show") }
	before := qdiscs()
	prev := `{"cniVersion":"1.1.0","interfaces":[{"name":"ratetap"}]}`
	a := &attachment{id: "t", netns: nstest.NewNS(t), prev: []byte(prev)}
	out, err := r.run(0, "ADD", a, "")
	r.must("add", err)
	a.prev = out
	for _, ip := range [][2]string{{"10.81.0.1", "10.81.0.2"}, {"fd00:81::1", "fd00:81::2"}} {
		h, c := openSide(t, "", ip[0]), openSide(t, vm, ip[1])
		wantRate(t, "to "+ip[1], h, c, toRate)
		wantRate(t, "from "+ip[1], c, h, fromRate)
	}
	r.must("check", r.check(a))
	// The tap stays when the attachment goes, and is as it was: whatever DEL is told.
	for _, del := range []*attachment{a, {id: "t"}} {
		r.must("del", r.del(del))
		if after := qdiscs(); after != before {
			t.Errorf("after DEL:\n%s\nbefore it was\n%s", after, before)
		}
		again := &attachment{id: "t", netns: a.netns, prev: []byte(prev)}
		_, err := r.run(0, "ADD", again, "")
		r.must("add again", err)
	}
	r.must("gc", r.gc())
	if after := qdiscs(); after != before {
		t.Errorf("after GC:\n%s\nbefore it was\n%s", after, before)
	}
}

func openTap(t *testing.T, s side, name string) *os.File {
	t.Helper()
	var fd int
	err := s.ns.Do(func() (err error) {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
			nstest.Skip(t, "/dev/net/tun: ", err) // some distributions let only root open it
		}
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	})
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { f.Close() })
	return f
}
