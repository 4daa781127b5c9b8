package repair_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// neighbour plugs a neighbour on the LAN into the host, who sends what is for 127.0.0.0/8 to it.
//
//	neighbour 192.0.2.2 ── wan 192.0.2.1 host ── bridges ── containers
func (s *site) neighbour() (netns string) {
	s.Helper()
	netns = nstest.NewNS(s)
	name := strings.TrimPrefix(netns, "/run/netns/")
	nstest.Run(s, "sh", "-ec", `
		ip link add wan type veth peer name eth0 netns `+name+`
		ip addr add 192.0.2.1/24 dev wan; ip link set wan up`)
	nstest.RunIn(s, netns, "sh", "-ec", `
		ip link set lo up; ip addr flush dev lo
		ip addr add 192.0.2.2/24 dev eth0; ip link set eth0 up; ip route add default via 192.0.2.1
		sysctl -qw net.ipv4.conf.all.route_localnet=1
		ip rule add pref 0 lookup 99; ip route add 127.0.0.0/8 via 192.0.2.1 table 99`)
	return netns
}

// inside runs fn in a namespace, for the sockets that it opens.
func (s *site) inside(netns string, fn func() error) {
	s.Helper()
	ns, err := kernel.Open(netns)
	if err != nil {
		s.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(fn); err != nil {
		s.Fatal(err)
	}
}

// A stream is datagrams that are sent all the while, from one place to another. Each is a new flow to the
// host, as long as none arrives, so that each asks the packet filter anew.
type stream struct {
	sent, arrived atomic.Int64
	come          chan struct{} // one token when some arrived
}

// stream sends datagrams from a namespace to an address, a thousand a second, and counts those that arrive at a
// port in another namespace.
func (s *site) stream(from, to, at string, port int) *stream {
	s.Helper()
	st := &stream{come: make(chan struct{}, 1)}
	var in, out net.PacketConn
	s.inside(at, func() (err error) {
		in, err = net.ListenPacket("udp4", fmt.Sprint(":", port))
		return err
	})
	s.inside(from, func() (err error) {
		out, err = net.ListenPacket("udp4", ":0")
		return err
	})
	addr, err := net.ResolveUDPAddr("udp4", to)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	s.Cleanup(func() { cancel(); in.Close(); out.Close(); group.Wait() })
	group.Go(func() {
		buf := make([]byte, 16)
		for {
			if _, _, err := in.ReadFrom(buf); err != nil {
				return
			}
			st.arrived.Add(1)
			select {
			case st.come <- struct{}{}:
			default:
			}
		}
	})
	group.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				// What the host refuses comes back as an error of the socket, and is what we hope for.
				if _, err := out.WriteTo([]byte("probe"), addr); err == nil {
					st.sent.Add(1)
				}
			}
		}
	})
	return st
}

// opens waits for a datagram to arrive.
func (st *stream) opens(t testing.TB, what string) {
	t.Helper()
	select {
	case <-st.come: // maybe of before
	default:
	}
	select {
	case <-st.come:
	case <-nstest.Context(t).Done():
		t.Errorf("%s: nothing comes through, so this test would not see it open", what)
	}
}

// settles sends until nothing has been on its way since before: many datagrams later.
func (st *stream) settles(t testing.TB) (arrived int64) {
	t.Helper()
	st.beats(t, 50)
	return st.arrived.Load()
}

// beats waits for n more datagrams to be sent.
func (st *stream) beats(t testing.TB, n int64) {
	t.Helper()
	ctx := bounded(t)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for until := st.sent.Load() + n; st.sent.Load() < until; {
		select {
		case <-ctx.Done():
			t.Fatal("the prober does not send")
		case <-tick.C:
		}
	}
}

// A visitor connects to a published port, again and again, and keeps the longest time that it was in vain.
type visitor struct {
	mu      sync.Mutex
	last    time.Time
	longest time.Duration
	visits  int
	came    chan struct{}
}

// visit answers at a port in a namespace and has a visitor come to an address from another one.
func (s *site) visit(from, to, at string, port int) *visitor {
	s.Helper()
	var listener net.Listener
	s.inside(at, func() (err error) {
		listener, err = net.Listen("tcp4", fmt.Sprint(":", port))
		return err
	})
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "hello")
			c.Close()
		}
	}()
	v := &visitor{last: time.Now(), came: make(chan struct{}, 1)}
	ns, err := kernel.Open(from)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	s.Cleanup(func() { cancel(); listener.Close(); group.Wait(); ns.Close() })
	group.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			err := ns.Do(func() error { // its dialler opens sockets on this thread for addresses that need no resolving
				c, err := net.DialTimeout("tcp4", to, 20*time.Millisecond)
				if err != nil {
					return err
				}
				defer c.Close()
				c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				_, err = io.ReadFull(c, make([]byte, 5))
				return err
			})
			if err == nil {
				v.saw()
			}
			<-tick.C
		}
	})
	return v
}

func (v *visitor) saw() {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	v.longest, v.last = max(v.longest, now.Sub(v.last)), now
	v.visits++
	select {
	case v.came <- struct{}{}:
	default:
	}
}

// gap waits for a visit that began after now, and is the longest time between two visits since the last call.
func (v *visitor) gap(t testing.TB, what string) time.Duration {
	t.Helper()
	for range 3 { // one may be over already, and one may have begun before
		select {
		case <-v.came:
		case <-nstest.Context(t).Done():
			t.Errorf("%s: the published port answers no more", what)
			return 0
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.longest
	v.longest = 0
	return d
}
