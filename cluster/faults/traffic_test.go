package faults

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// Sizes of the data of packets: of a number, and of one that is nearly as long as the MTU of a way allows.
const (
	small = 8
	large = 1400
)

// interval is the time between two packets of a stream. A busy machine sends fewer.
const interval = time.Millisecond

// A stream is UDP from one namespace to another, of numbered packets, until it is stopped.
type stream struct {
	t        testing.TB
	from, to *net.UDPConn
	size     int // of the data of a packet in bytes

	mu       sync.Mutex
	sent     []time.Time
	received []bool
	latest   chan struct{} // closed when the next packet is received
	last     int           // number of the newest packet that was received

	quit, ended chan struct{}
}

// newStream begins to send packets with size bytes of data from a namespace to an address in another one.
func newStream(t testing.TB, from, to, address string, size int) *stream {
	t.Helper()
	s := &stream{t: t, size: size, latest: make(chan struct{}), last: -1, quit: make(chan struct{}), ended: make(chan struct{})}
	err := nstest.In(to, func() (err error) {
		s.to, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(address)})
		if err != nil {
			return err
		}
		return waitLong(s.to)
	})
	if err != nil {
		t.Fatal(err)
	}
	err = nstest.In(from, func() (err error) {
		target, _ := s.to.LocalAddr().(*net.UDPAddr)
		s.from, err = net.DialUDP("udp4", nil, target)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.from.Close(); s.to.Close() })
	go s.receive()
	go s.send()
	return s
}

// overloaded returns how many packets this machine has dropped, of all namespaces, because its processors were busy
// (/proc/net/softnet_stat). So many may be lost for no other reason.
func overloaded(t testing.TB) (dropped int) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		n, err := strconv.ParseInt(strings.Fields(line)[1], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		dropped += int(n)
	}
	return dropped
}

// waitLong gives a socket room for the packets of half a minute: what a busy machine receives late is not lost.
func waitLong(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	const room = 64 << 20
	var forced error
	err = raw.Control(func(fd uintptr) {
		forced = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room)
	})
	return errors.Join(err, forced)
}

func (s *stream) send() {
	defer close(s.ended)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		s.mu.Lock()
		n := len(s.sent)
		s.sent, s.received = append(s.sent, time.Now()), append(s.received, false)
		s.mu.Unlock()
		data := make([]byte, s.size)
		binary.BigEndian.PutUint64(data, uint64(n))
		s.from.Write(data) // an error is a packet that is lost
		select {
		case <-tick.C:
		case <-s.quit:
			return
		}
	}
}

func (s *stream) receive() {
	b := make([]byte, 2*s.size)
	for {
		size, err := s.to.Read(b)
		if err != nil {
			return
		}
		if size != s.size {
			continue
		}
		s.mu.Lock()
		n := int(binary.BigEndian.Uint64(b))
		s.received[n] = true
		s.last = max(s.last, n)
		close(s.latest)
		s.latest = make(chan struct{})
		s.mu.Unlock()
	}
}

// flows waits until a packet has arrived that was sent after the call.
func (s *stream) flows(when string) {
	s.t.Helper()
	s.mu.Lock()
	next := len(s.sent)
	s.mu.Unlock()
	for {
		s.mu.Lock()
		arrived, latest := s.last >= next, s.latest
		s.mu.Unlock()
		if arrived {
			return
		}
		select {
		case <-latest:
		case <-nstest.Context(s.t).Done():
			s.t.Fatalf("%s: no packet arrives", when)
		}
	}
}

// stop ends the stream, and returns how many packets were lost and for how long.
func (s *stream) stop() (lost int, outage time.Duration) {
	s.t.Helper()
	s.flows("the end")
	close(s.quit)
	<-s.ended
	s.mu.Lock()
	defer s.mu.Unlock()
	var first, last time.Time
	for n, arrived := range s.received[:s.last] {
		if arrived {
			continue
		}
		if lost++; lost == 1 {
			first = s.sent[n]
		}
		last = s.sent[n+1]
	}
	return lost, last.Sub(first)
}
