package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/resolv"
	"github.com/fairlead-cni/fairlead/internal/command/trace"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// answerTime is how long a probe waits for an answer. Each probe is sent twice.
const answerTime = time.Second

// Target returns the address and port that text means for packets of a container: ADDRESS or ADDRESS:PORT, or instead
// of the address a container on a network that the sender is on, too; from outside, on any. Without a port, it is 0.
func (d *Doctor) Target(text string, sender attach.Cached) (to netip.AddrPort, err error) {
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return netip.AddrPortFrom(a.Unmap(), 0), nil
	}
	if to, err := netip.ParseAddrPort(text); err == nil {
		return netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), nil
	}
	name, number, given := strings.Cut(text, ":")
	found := attached.Find(name, d.All)
	if len(found) == 0 {
		return to, app.Usage("%q: want an address, such as 192.0.2.1, 192.0.2.1:443 or [2001:db8::1]:443, "+
			"or a container", text)
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if given && (err != nil || port == 0) {
		return to, app.Usage("%q: %s is not a port", text, number)
	}
	for _, c := range found {
		shared := func(o attach.Cached) bool {
			return o.Network == c.Network && attached.SamePath(o.Netns, sender.Netns)
		}
		if d.Gone(c) || c.Network == attached.LoopbackNetwork ||
			sender.Netns != "" && !slices.ContainsFunc(d.All, shared) {
			continue
		}
		if own := attached.OwnAddresses(c); len(own) > 0 {
			return netip.AddrPortFrom(own[0].Addr(), uint16(port)), nil
		}
	}
	return to, app.Fail(app.ExitNotFound, "Give an address.", "container %s has no address on a network of %s", name,
		attached.Name(sender))
}

// How many containers are probed in parallel, and how long all probes may take.
const (
	probers   = 16
	probeTime = 30 * time.Second
)

// ofProbes sends packets from inside the containers.
func (d *Doctor) ofProbes() {
	if !d.named && !d.probe {
		return
	}
	ctx, cancel := context.WithTimeout(d.Ctx, probeTime)
	defer cancel()
	var group sync.WaitGroup
	turns := make(chan struct{}, probers)
	for _, c := range d.Selected {
		if d.Gone(c) {
			continue
		}
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			if ctx.Err() != nil {
				d.Unexamined("what container %s reaches: the time was used up", attached.ShortOwner(c))
				return
			}
			d.Inside(c, func(ns *kernel.NS) { d.probes(ns, c) })
		})
	}
	group.Wait()
	if n := d.nameless.Load(); n > 0 {
		d.remark("the name servers of %s are unknown, and were not probed", plural(int(n), "container"))
	}
}

// probes probes one container.
func (d *Doctor) probes(ns *kernel.NS, c attach.Cached) {
	d.probeGateways(ns, c)
	d.probeServers(ns, c)
	d.probeSegment(ns, c)
	d.probeSize(ns, c)
	to, err := d.Target(d.to, c)
	if err != nil {
		return // there is no --to, or diagnose has said it
	}
	answer, took, err := reach(ns, to.Addr(), to.Port())
	if err == nil {
		d.answers(ns, c, to, answered{Answer: answer, Took: took})
		return
	}
	details, how, closed := d.bothWays(c, to)
	if errors.Is(err, syscall.ECONNREFUSED) && (how.IsZero() || closed != "") {
		d.answers(ns, c, to, answered{Answer: refused, Took: took, Why: cmp.Or(closed, "the port is closed")})
		return
	}
	if how.IsZero() {
		how = look("traceroute " + to.Addr().String()).In(c.Netns)
	}
	d.addWith(AddressUnreachable, shown(to), err.Error(), affects(c, details...), how)
}

// refused is the answer of a host to a connection to a port that no program listens on.
const refused = "connection refused"

// answered is the answer of the address of --to to one container.
type answered struct {
	Container string        `json:"container"`
	To        string        `json:"to"`
	Path      string        `json:"path"` // the route from the container, as ip(8) writes it
	Answer    string        `json:"answer"`
	Why       string        `json:"why,omitempty"` // it is a refusal
	Took      time.Duration `json:"tookNanoseconds"`
}

// answers records that an address answers a container.
func (d *Doctor) answers(ns *kernel.NS, c attach.Cached, to netip.AddrPort, a answered) {
	a.Container, a.To, a.Took = Traced(c).Name, shown(to), a.Took.Round(time.Microsecond)
	if r, err := rtnl.RouteTo(ns, to.Addr()); err == nil {
		a.Path = r.Leads(ns)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Answers = append(d.Answers, a)
}

// shown returns ADDRESS or ADDRESS:PORT.
func shown(to netip.AddrPort) string {
	if to.Port() == 0 {
		return to.Addr().String()
	}
	return to.String()
}

// probeGateways probes the gateways of a container's default routes.
func (d *Doctor) probeGateways(ns *kernel.NS, c attach.Cached) {
	for _, family := range []uint8{rtnl.IPv4, rtnl.IPv6} {
		for _, r := range defaultRoutes(ns, family) {
			if !r.Via.IsValid() || r.Via.IsLinkLocalUnicast() {
				continue
			}
			if _, _, err := reach(ns, r.Via, 0); err != nil {
				d.add(GatewayUnreachable, r.Via.String(), err.Error(), affects(c))
			}
		}
	}
}

// probeServers probes the container's name servers.
func (d *Doctor) probeServers(ns *kernel.NS, c attach.Cached) {
	servers := ContainerServers(ns, c)
	if len(servers) == 0 {
		d.nameless.Add(1)
	}
	for _, s := range servers {
		a, err := netip.ParseAddr(s)
		if err != nil {
			continue
		}
		if err := askName(ns, a); err != nil {
			d.addWith(DNSUnreachable, "name server "+s, err.Error(), affects(c),
				look("nslookup example.org "+s).In(c.Netns))
		}
	}
}

// ContainerServers returns the name servers of a process in the container, else those of its attachment, else those
// of its namespace's name.
func ContainerServers(ns *kernel.NS, c attach.Cached) []string {
	if _, ino, err := ns.Inode(); err == nil {
		want := fmt.Sprintf("net:[%d]", ino)
		all, _ := filepath.Glob("/proc/[0-9]*/ns/net")
		for _, path := range all {
			if to, err := os.Readlink(path); err != nil || to != want {
				continue
			}
			file := strings.TrimSuffix(path, "ns/net") + "root" + resolv.EtcResolv
			text, err := plainfile.ReadLinked(file, plainfile.MaxSize)
			if servers, local := resolv.Nameservers(text); err == nil {
				return append(servers, local...)
			}
		}
	}
	if c.Result != nil && len(c.Result.DNS.Nameservers) > 0 {
		return c.Result.DNS.Nameservers
	}
	text, _ := plainfile.ReadLinked("/etc/netns/"+filepath.Base(c.Netns)+"/resolv.conf", plainfile.MaxSize)
	servers, _ := resolv.Nameservers(text)
	return servers
}

// reach returns what an address answers and after what time, or why it does not answer. Without a port, any answer
// counts, also an ICMP error from the address or a refusal. With a port, only the TCP connection counts.
func reach(ns *kernel.NS, to netip.Addr, port uint16) (answer string, took time.Duration, err error) {
	err = ns.Do(func() error {
		began := time.Now()
		defer func() { took = time.Since(began) }()
		if port != 0 {
			answer = "a TCP connection"
			return dial(to, port)
		}
		answer = "an echo reply"
		if ping(to, 0, answerTime) == nil {
			return nil
		}
		began = time.Now()
		answer = refused
		err := dial(to, 9) // discard: a host that exists refuses it
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		return err
	})
	return answer, took, err
}

func dial(to netip.Addr, port uint16) error {
	dialer := net.Dialer{Timeout: 2 * answerTime}
	conn, err := dialer.Dial("tcp", netip.AddrPortFrom(to, port).String())
	if err == nil {
		conn.Close()
		return nil
	}
	if os.IsTimeout(err) {
		return fmt.Errorf("no answer from %v: %w", to, os.ErrDeadlineExceeded)
	}
	if number := syscall.Errno(0); errors.As(err, &number) {
		return fmt.Errorf("%v: %w", to, number)
	}
	return err
}

// ping sends an echo request, twice if needed, and waits for the answer. A size other than 0 is that of the packet.
func ping(to netip.Addr, size int, wait time.Duration) (err error) {
	for number := range uint16(2) {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		err = trace.Echo(ctx, to, number, size)
		cancel()
		if err == nil || errors.Is(err, syscall.EMSGSIZE) {
			return err
		}
	}
	return err
}

// askName asks a server for the NS records of the root, twice if needed. Any answer counts.
func askName(ns *kernel.NS, server netip.Addr) error {
	return ns.Do(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(server, 53).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		// RFC 1035: an ID, recursion desired, one question: the root, NS, IN.
		question := []byte{0x66, 0x6c, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1}
		for range 2 {
			if _, err = conn.Write(question); err != nil {
				continue
			}
			conn.SetReadDeadline(time.Now().Add(answerTime))
			if _, err = conn.Read(make([]byte, 1500)); err == nil {
				return nil
			}
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("%v does not answer on UDP port 53", server)
		case errors.Is(err, syscall.ECONNREFUSED):
			return fmt.Errorf("%v refuses: no name server listens there", server)
		}
		return err
	})
}
