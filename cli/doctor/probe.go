package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/cli/attached"
	"github.com/fairlead-cni/fairlead/cli/resolv"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/fairlead-cni/fairlead/trace"
)

// answerTime is how long a probe waits for an answer. Each probe is sent twice.
const answerTime = time.Second

// SplitTarget parses ADDRESS or ADDRESS:PORT. Without a port, the port is 0.
func SplitTarget(text string) (netip.Addr, uint16, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return a, 0, nil
	}
	if inner, ok := strings.CutSuffix(text, "]"); ok && strings.HasPrefix(inner, "[") {
		if a, err := netip.ParseAddr(inner[1:]); err == nil && a.Is6() {
			return a, 0, nil
		}
	}
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		return netip.Addr{}, 0, errors.New("want an address, such as 192.0.2.1, 192.0.2.1:443 or [2001:db8::1]:443")
	}
	return at.Addr(), at.Port(), nil
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
	for _, c := range d.Mine {
		if d.gone(c) {
			continue
		}
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			if ctx.Err() != nil {
				d.Blind("what container %s reaches: the time was used up", attached.ShortOwner(c))
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
	if d.to == "" {
		return
	}
	to, port, _ := SplitTarget(d.to)
	if err := reach(ns, to, port); err != nil {
		details, fill := d.bothWays(c, to.Unmap(), port)
		fill = append([]string{"ADDRESS", to.String(), "traceroute", "nsenter --net=" + c.Netns + " traceroute"},
			fill...)
		d.add(AddressUnreachable, d.to, err.Error(), who(c, details...), fill...)
	}
}

// probeGateways probes the gateways of a container's default routes.
func (d *Doctor) probeGateways(ns *kernel.NS, c attach.Cached) {
	for _, family := range []uint8{rtnl.IPv4, rtnl.IPv6} {
		routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: family, Table: rtnl.MainTable})
		if err != nil {
			continue
		}
		for _, r := range routes {
			if r.Dst.Bits() != 0 || !r.Via.IsValid() || r.Via.IsLinkLocalUnicast() {
				continue
			}
			if err := reach(ns, r.Via, 0); err != nil {
				d.add(GatewayUnreachable, r.Via.String(), err.Error(), who(c))
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
			d.add(DNSUnreachable, "name server "+s, err.Error(), who(c),
				"look", fmt.Sprintf("nsenter --net=%s nslookup example.org %s", c.Netns, s))
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
			text, err := os.ReadFile(strings.TrimSuffix(path, "ns/net") + "root" + resolv.EtcResolv)
			if servers, local := resolv.Nameservers(text); err == nil {
				return append(servers, local...)
			}
		}
	}
	if c.Result != nil && len(c.Result.DNS.Nameservers) > 0 {
		return c.Result.DNS.Nameservers
	}
	text, _ := spec.ReadLinked("/etc/netns/"+filepath.Base(c.Netns)+"/resolv.conf", spec.MaxFile)
	servers, _ := resolv.Nameservers(text)
	return servers
}

// reach returns why an address does not answer, or nil. Without a port, any answer counts, also an ICMP error from
// the address or a refusal. With a port, only the TCP connection counts.
func reach(ns *kernel.NS, to netip.Addr, port uint16) error {
	return ns.Do(func() error {
		if port != 0 {
			return dial(to, port)
		}
		if ping(to) == nil {
			return nil
		}
		err := dial(to, 9) // discard: a host that exists refuses it
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		return err
	})
}

func dial(to netip.Addr, port uint16) error {
	dialer := net.Dialer{Timeout: 2 * answerTime}
	conn, err := dialer.Dial("tcp", netip.AddrPortFrom(to, port).String())
	if err == nil {
		conn.Close()
		return nil
	}
	if timeout := (net.Error)(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("no answer from %v: %w", to, os.ErrDeadlineExceeded)
	}
	if number := syscall.Errno(0); errors.As(err, &number) {
		return fmt.Errorf("%v: %w", to, number)
	}
	return err
}

// ping sends an echo request, twice if needed, and waits for the answer.
func ping(to netip.Addr) (err error) {
	for number := range uint16(2) {
		ctx, cancel := context.WithTimeout(context.Background(), answerTime)
		err = trace.Echo(ctx, to, number)
		cancel()
		if err == nil {
			return nil
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
