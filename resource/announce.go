package resource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
)

// An Announce tells the neighbours of a container's link which addresses it has now, so that none keeps
// sending to the former owner of one of them: gratuitous ARP and unsolicited neighbour advertisements.
type Announce struct {
	Link  string
	Addrs []netip.Prefix
	Port  string // the host's end, waited for until it forwards; empty: none
}

// How long an Announce waits: for a link to carry packets, and for the kernel to make sure that nobody else
// has an IPv6 address, which takes it a second and a random part of another.
const (
	carrierLimit = 2 * time.Second
	dadLimit     = 5 * time.Second
)

func (a Announce) String() string {
	s := make([]string, len(a.Addrs))
	for i, p := range a.Addrs {
		s[i] = p.Addr().String()
	}
	return line("announce", strings.Join(s, ", "), "on cont/"+a.Link, flag("through host/"+a.Port, a.Port != ""))
}

// Ensure implements plan.Resource. It lets the kernel send, for which it changes the link's address to what it
// is: a packet socket of our own would take a grace period to close, 10 ms and more.
func (a Announce) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, l, err := Container.link(w, a.Link)
	if err != nil {
		return false, err
	}
	if err := a.wait(ctx, w); err != nil || len(a.Addrs) == 0 {
		return false, err
	}
	changed, err := ns.SetSysctls(
		kernel.Setting{Key: "net/ipv4/conf/" + a.Link + "/arp_notify", Value: "1", Optional: true},
		kernel.Setting{Key: "net/ipv6/conf/" + a.Link + "/ndisc_notify", Value: "1", Optional: true})
	if err == nil {
		err = ns.SetLink(a.Link, kernel.LinkChange{MAC: l.MAC})
	}
	if err != nil {
		// An ipvlan has its parent's address and no other; a read-only /proc/sys has no say. Neighbours
		// then learn it from the first packet that they get.
		slog.Debug("not announced", "link", a.Link, "error", err)
	}
	return changed, nil
}

// wait waits until both ends carry packets, for until then the kernel drops what the host sends, and until
// the addresses are beyond doubt.
func (a Announce) wait(ctx context.Context, w *kernel.World) error {
	for _, end := range []Iface{{Container, a.Link}, {Host, a.Port}} {
		if end.Name == "" {
			continue
		}
		ns, err := end.Where.ns(w)
		if err != nil {
			return err
		}
		var l *kernel.Link
		err = ns.Await(ctx, carrierLimit, []uint{kernel.LinkEvents}, func() (bool, error) {
			l, err = ns.Link(end.Name)
			if err == nil && !l.Up {
				err = fmt.Errorf("link %s%s is down", end.Where, end.Name)
			}
			return err == nil && l.Operational && (l.Port == nil || l.Port.Forwarding), err
		})
		switch {
		case errors.Is(err, context.DeadlineExceeded) && l.Operational:
			slog.Warn("the bridge does not forward to its new port yet (spanning tree?)", "port", end.Name)
		case err != nil:
			return fmt.Errorf("wait for link %s%s to carry packets: %w", end.Where, end.Name, err)
		}
	}
	for _, p := range a.Addrs {
		if err := usable(ctx, w.Container, a.Link, p.Addr()); err != nil {
			return err
		}
	}
	return nil
}

// usable waits until the kernel takes packets to an IPv6 address of a link for its own. It does not at once, even
// where it asks nobody: a worker of its adds the route.
func usable(ctx context.Context, ns *kernel.NS, link string, addr netip.Addr) error {
	if !addr.Is6() {
		return nil
	}
	err := ns.Await(ctx, dadLimit, []uint{kernel.IPv6AddrEvents, kernel.IPv6RouteEvents}, func() (bool, error) {
		if r, err := ns.RouteTo(addr); err == nil && r.Type == kernel.Local {
			return true, nil
		}
		l, err := ns.Link(link)
		if err != nil {
			return false, err
		}
		list, err := ns.Addrs(l.Index)
		for _, have := range list {
			if have.Prefix.Addr() == addr && have.DADFailed {
				return false, errors.New("somebody else on the link has it")
			}
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("wait for address %v of %s: %w", addr, link, err)
	}
	return nil
}

// Verify implements plan.Resource.
func (a Announce) Verify(ctx context.Context, w *kernel.World) error {
	var d drift
	for _, end := range []Iface{{Container, a.Link}, {Host, a.Port}} {
		if end.Name == "" {
			continue
		}
		if _, l, err := end.Where.link(w, end.Name); err != nil {
			d.add(err)
		} else if !l.Operational {
			d.add(fmt.Errorf("link %s%s is not operational", end.Where, end.Name))
		}
	}
	return d.err()
}
