package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// The reference has two ways to publish a port.
const (
	pathIptables = "reference, iptables"
	pathNftables = "reference, nftables"
)

// A dataPath is what is measured through a port that a container publishes, from another host, beside others' ports.
type dataPath struct {
	Mappings int
	Backend  string // of the reference's portmap
	Stream   time.Duration
}

// A pathCost is what came out.
type pathCost struct {
	Connect, RoundTrip time.Duration // medians
	Gigabits           float64       // a second
}

// A pathLine is one number of mappings on all sides.
type pathLine struct {
	Mappings int
	By       map[string]pathCost
}

// outside is a host in front of this one.
const outside = `ip link add wan type veth peer name wan netns outside; ip addr add 192.0.2.1/24 dev wan; ip link set wan up
ip -n outside addr add 192.0.2.2/24 dev wan; ip -n outside link set wan up`

// pathCase is the chain whose ports are asked.
func pathCase(backend string, ports ...map[string]any) benchCase {
	portmap := map[string]any{"type": "portmap"}
	if backend != "" {
		portmap["backend"] = backend
	}
	if len(ports) > 0 {
		portmap["runtimeConfig"] = map[string]any{"portMappings": ports}
	}
	return benchCase{Subnet: "10.41", Ports: len(ports) == 0, Plugins: []map[string]any{
		{"type": "bridge", "bridge": "bench0", "isGateway": true,
			"ipam": map[string]any{"type": "host-local", "ranges": [][]map[string]string{{{"subnet": "10.41.0.0/16"}}},
				"routes": []map[string]string{{"dst": "0.0.0.0/0"}}}}, portmap}}
}

// path has others publish all ports but one, a container the last, and measures through that.
func (h host) path(p dataPath) (c pathCost, err error) {
	if err := allCalm(); err != nil {
		return c, err
	}
	for _, name := range []string{"outside", "inside", "p0"} {
		if err := nstest.MakeNS("/run/netns/" + name); err != nil {
			return c, err
		}
	}
	if out, err := exec.Command("sh", "-ec", outside).CombinedOutput(); err != nil {
		return c, fmt.Errorf("%w: %s", err, out)
	}
	if err := h.publishOthers(p); err != nil {
		return c, err
	}
	h.c = pathCase(p.Backend, map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"})
	measured := attachment{1, "measured", "/run/netns/inside", "eth0"}
	if _, err := h.add(measured, &answer{Took: map[string]cost{}}); err != nil {
		return c, err
	}
	var l net.Listener
	if err := nstest.In(measured.netns, func() (err error) {
		l,
			err = net.Listen("tcp4", ":80")
		return err
	}); err != nil {
		return c, err
	}
	defer l.Close()
	go serve(l)
	return through("192.0.2.1:8080", p.Stream)
}

// allCalm takes all threads from real-time scheduling: both ends of the path and the kernel between them share the
// processors, and one that waits for none would starve the others.
func allCalm() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}
		if err := unix.SchedSetAttr(id, attr, 0); err != nil && err != unix.ESRCH {
			return fmt.Errorf("schedule thread %d: %w", id, err)
		}
	}
	return nil
}

// publishOthers publishes all but one. With us one container does; with the reference each two.
func (h host) publishOthers(p dataPath) error {
	other := attachment{1000, "present-0", "/run/netns/p0", "eth0"}
	if h.side == ours {
		var ports []map[string]any
		for i := range p.Mappings - 1 {
			ports = append(ports, map[string]any{"hostPort": 20000 + i, "containerPort": 80, "protocol": "tcp"})
		}
		h.c = pathCase("", ports...)
		_, err := h.add(other, &answer{Took: map[string]cost{}})
		return err
	}
	h.c = pathCase(p.Backend)
	if _, err := h.add(other, &answer{Took: map[string]cost{}}); err != nil {
		return err
	}
	pattern, err := h.learn(attachment{1001, "present-1", other.netns, "eth1"})
	if err != nil {
		return err
	}
	if pattern.rules[0].program == "nft" != (p.Backend == "nftables") {
		return errBackend
	}
	for n := 2; n < p.Mappings/2; n++ {
		a := attachment{number: 1000 + n, id: fmt.Sprintf("present-%d", n)}
		pattern.clone(a, fmt.Sprintf("10.41.%d.%d", 100+n>>8, n&0xff))
	}
	return pattern.restore()
}

// errBackend says that the reference is older than its nf_tables backend.
var errBackend = errors.New("this reference does not know the backend")

// serve answers each byte with itself, until the byte 's' begins a stream, whose bytes it counts.
func serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			one := make([]byte, 1)
			for {
				if _, err := c.Read(one); err != nil {
					return
				}
				if one[0] == 's' {
					break
				}
				if _, err := c.Write(one); err != nil {
					return
				}
			}
			n, _ := io.Copy(io.Discard, struct{ io.Reader }{c}) // until the client has ended: what came is what counts
			_, _ = c.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
		}()
	}
}

// through measures at an address, from outside.
func through(addr string, stream time.Duration) (r pathCost, err error) {
	dial := func() (c *net.TCPConn, err error) {
		err = nstest.In("/run/netns/outside", func() error {
			conn, err := net.DialTimeout("tcp4", addr, 5*time.Second)
			if err == nil {
				c = conn.(*net.TCPConn)
			}
			return err
		})
		return c, err
	}
	r.Connect, err = median(200, func() (took time.Duration, err error) {
		// The dial's own time: entering the namespace is not of it.
		err = nstest.In("/run/netns/outside", func() error {
			start := time.Now()
			c, err := net.DialTimeout("tcp4", addr, 5*time.Second)
			if took = time.Since(start); err == nil {
				err = c.Close()
			}
			return err
		})
		return took, err
	})
	if err != nil {
		return r, fmt.Errorf("connect: %w", err)
	}
	c, err := dial()
	if err != nil {
		return r, err
	}
	defer c.Close()
	one := []byte{'e'}
	r.RoundTrip, err = median(2000, func() (time.Duration, error) {
		start := time.Now()
		if _, err := c.Write(one); err != nil {
			return 0, err
		}
		_, err := c.Read(one)
		return time.Since(start), err
	})
	if err != nil {
		return r, fmt.Errorf("round trip: %w", err)
	}
	r.Gigabits, err = flood(c, stream)
	return r, err
}

// flood writes for a while, and returns how much came, in gigabits a second.
func flood(c *net.TCPConn, stream time.Duration) (float64, error) {
	if _, err := c.Write([]byte{'s'}); err != nil {
		return 0, err
	}
	start, buf := time.Now(), make([]byte, 1<<17)
	for time.Since(start) < stream {
		if _, err := c.Write(buf); err != nil {
			return 0, err
		}
	}
	if err := c.CloseWrite(); err != nil {
		return 0, err
	}
	count := make([]byte, 8)
	if _, err := io.ReadFull(c, count); err != nil {
		return 0, fmt.Errorf("stream: %w", err)
	}
	return float64(binary.BigEndian.Uint64(count)) * 8 / time.Since(start).Seconds() / 1e9, nil
}

func median(n int, do func() (time.Duration, error)) (time.Duration, error) {
	var all []time.Duration
	for range n {
		d, err := do()
		if err != nil {
			return 0, err
		}
		all = append(all, d)
	}
	slices.Sort(all)
	return all[n/2], nil
}

// measurePaths measures the data path at each number of mappings. A backend that this reference does not know is left
// out.
func measurePaths(o options) (lines []pathLine, err error) {
	for _, n := range o.mappings {
		l := pathLine{n, map[string]pathCost{}}
		for _, s := range []struct{ name, side, backend string }{
			{ours, ours, ""}, {pathIptables, reference, "iptables"}, {pathNftables, reference, "nftables"},
		} {
			a, err := o.onOwnHost(s.side, order{Path: &dataPath{n, s.backend, o.stream}})
			if err != nil && s.backend == "nftables" && strings.HasSuffix(err.Error(), errBackend.Error()) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("%d mappings, %s: %w", n, s.name, err)
			}
			l.By[s.name] = *a.Path
			fmt.Fprintf(os.Stderr, "%d mappings, %s: %+v\n", n, s.name, *a.Path)
		}
		lines = append(lines, l)
	}
	return lines, nil
}

func (r report) pathRows() (head []string, rows [][]string) {
	head = []string{"mappings", "side", "connect, µs", "round trip, µs", "throughput, Gbit/s"}
	for _, l := range r.Paths {
		for _, name := range inOrder(keys(l.By)) {
			c := l.By[name]
			rows = append(rows, []string{fmt.Sprint(l.Mappings), name, micro(c.Connect), micro(c.RoundTrip),
				fmt.Sprintf("%.1f", c.Gigabits)})
		}
	}
	return head, rows
}

func micro(d time.Duration) string { return fmt.Sprintf("%.0f", float64(d)/1e3) }
