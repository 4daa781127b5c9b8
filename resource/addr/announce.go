package addr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/spec"
)

// An Announce tells the neighbours of a container interface which addresses it has now, by gratuitous ARP and
// unsolicited neighbour advertisements. Otherwise a neighbour may send packets to the former owner of an address.
type Announce struct {
	Link  string
	Addrs []netip.Prefix
	Port  string // the host's end, waited for until it forwards; empty: none

	// Where the ledger of this number proves that no other owner has had the addresses on the bridge, nothing is said:
	// the flood reaches each port, and no host there can know another owner. Empty: all is said.
	Bridge string
	Ledger int64
}

func (a Announce) String() string {
	return resource.Line(cmp.Or(resource.Addrs("announce", resource.AddrsOf(a.Addrs)), "announce"), "on cont/"+a.Link,
		resource.Flag("through host/"+a.Port, a.Port != ""))
}

// Ensure implements plan.Resource. It sets the link's MAC address to the value it has, which makes the kernel send
// the announcements. A packet socket would take a grace period of 10 ms and more to close.
func (a Announce) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, l, err := resource.Container.Link(w, a.Link)
	if err != nil {
		return false, err
	}
	if err := a.wait(ctx, w, l); err != nil || len(a.Addrs) == 0 {
		return false, err
	}
	if a.first(w) {
		return false, nil
	}
	changed, err := a.Notify(ns, l)
	if err == nil {
		err = rtnl.SetLink(ns, a.Link, rtnl.LinkChange{MAC: l.MAC})
	}
	if err != nil {
		// An ipvlan has its parent's address and no other; a read-only /proc/sys has no say. Neighbours
		// then learn it from the first packet that they get.
		slog.Debug("not announced", "link", a.Link, "error", err)
	}
	return changed, nil
}

// first reports whether it is certain that no host on the bridge knows another owner of the addresses.
func (a Announce) first(w *kernel.World) bool {
	if a.Bridge == "" || a.Ledger == 0 {
		return false
	}
	addrs := resource.AddrsOf(a.Addrs)
	return w.Store.History(a.Bridge).First(a.Ledger, addrs...) && onlyOurPorts(w, a.Bridge)
}

// Notify makes the kernel announce each address of the link when the link's MAC address changes.
func (a Announce) Notify(ns *kernel.NS, l *rtnl.Link) (changed bool, err error) {
	has6, has4 := false, false
	for _, p := range a.Addrs {
		has6, has4 = has6 || p.Addr().Is6(), has4 || p.Addr().Is4()
	}
	if has4 && !l.ARPNotify {
		if err := rtnl.SetLink(ns, a.Link, rtnl.LinkChange{ARPNotify: true}); err != nil {
			return false, err
		}
		changed = true
	}
	if has6 {
		c, err := procsys.Set(ns, procsys.Setting{Key: "net/ipv6/conf/" + a.Link + "/ndisc_notify", Value: "1",
			Optional: true})
		return changed || c, err
	}
	return changed, nil
}

// wait waits until both ends have a carrier, because until then the kernel drops the host's packets. It also waits
// until the addresses have passed duplicate address detection.
func (a Announce) wait(ctx context.Context, w *kernel.World, l *rtnl.Link) error {
	if carries, err := connected(ctx, w, l, a.Port); !carries || err != nil {
		return err // no address gets any further without
	}
	for _, p := range a.Addrs {
		if err := usable(ctx, w.Container, a.Link, p.Addr(), resource.KernelLimit); err != nil {
			return err
		}
	}
	return nil
}

// connected waits until a link of the container, and the host's port that it leads to, have a carrier. A link that
// leads elsewhere may have none: its cable, or that of its master, is out, which this attachment cannot repair.
func connected(ctx context.Context, w *kernel.World, l *rtnl.Link, port string) (carries bool, err error) {
	if !l.Up {
		return false, fmt.Errorf("link %v%s is down", resource.Container, l.Name)
	}
	// The host's end first: as a rule the other one has been dealt with when it is.
	limit := resource.CarrierLimit
	if port != "" {
		limit = resource.KernelLimit
		if err := resource.WaitCarrier(ctx, resource.Host, w.Host, port, limit); err != nil {
			return false, err
		}
	}
	if l.Operational {
		return true, nil
	}
	// which is said already
	if _, under, err := link.MasterBelow(w, l); err != nil || port == "" && under != nil && !under.Up {
		return false, err
	}
	err = resource.WaitCarrier(ctx, resource.Container, w.Container, l.Name, limit)
	if port == "" && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		slog.Warn("the link has no carrier yet", "link", l.Name)
		return false, nil
	}
	return err == nil, err
}

// AwaitDAD waits until an IPv6 address of a link has passed duplicate address detection, unless detection is off for
// it.
func AwaitDAD(ctx context.Context, ns *kernel.NS, link string, addr netip.Addr, limit time.Duration) error {
	return await(ctx, ns, link, addr, limit, func(int) (bool, error) { return true, nil })
}

// usable waits until the kernel accepts packets to an IPv6 address. A kernel worker adds the route a little later
// than the address. A time-out is no error, because the route will come.
func usable(ctx context.Context, ns *kernel.NS, link string, addr netip.Addr, limit time.Duration) error {
	sure := false
	err := await(ctx, ns, link, addr, limit, func(index int) (bool, error) {
		sure = true
		if r, err := rtnl.RouteTo(ns, addr); err == nil && r.Type == rtnl.Local {
			return true, nil
		}
		routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: rtnl.IPv6, Link: index})
		return slices.ContainsFunc(routes, func(r rtnl.Route) bool { // in a VRF's table, where no packet from here goes
			return r.Type == rtnl.Local && r.Dst.IsSingleIP() && r.Dst.Addr() == addr
		}), err
	})
	if sure && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		slog.Warn("the kernel takes no packets to the address yet; it is busy with other links", "link", link,
			"address", addr)
		return nil
	}
	return err
}

func await(ctx context.Context, ns *kernel.NS, link string, addr netip.Addr, limit time.Duration,
	done func(index int) (bool, error)) error {
	if !addr.Is6() {
		return nil
	}
	err := rtnl.Await(ns, ctx, limit, []uint{rtnl.IPv6AddrEvents, rtnl.IPv6RouteEvents}, func() (bool, error) {
		index, err := rtnl.IndexOf(ns, link)
		if err != nil {
			return false, err
		}
		list, err := rtnl.Addrs(ns, index)
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(list, func(a rtnl.Addr) bool { return a.Prefix.Addr() == addr })
		switch {
		case i < 0:
			return false, errors.New("is missing")
		case list[i].DADFailed:
			return false, askHolder(ctx, ns, index, addr)
		case list[i].Tentative:
			return false, nil
		}
		return done(index)
	})
	if err != nil {
		return fmt.Errorf("wait for address %v of %s: %w", addr, link, err)
	}
	return nil
}

// Verify implements plan.Resource. A link without a carrier that does not lead to the host is no difference, as it is
// no error of Ensure.
func (a Announce) Verify(ctx context.Context, w *kernel.World) error {
	var d resource.Drift
	for _, end := range []resource.Iface{{Where: resource.Container, Name: a.Link},
		{Where: resource.Host, Name: a.Port}} {
		if end.Name == "" {
			continue
		}
		if _, l, err := end.Where.Link(w, end.Name); err != nil {
			d.Add(err)
		} else if !l.Operational && a.Port == "" && l.Up {
			slog.Warn("the link has no carrier", "link", end.Name)
		} else if !l.Operational {
			off := spec.Difference{Field: "operational", Got: "down",
				Text: fmt.Sprintf("link %s%s is not operational", end.Where, end.Name)}
			d = append(d, resource.Drift{off}.On(end.Where, end.Name)...)
		}
	}
	return d.Err()
}

// Traits implements resource.Describer. An interface that is not operational becomes operational once repair sets its
// links up.
func (a Announce) Traits() resource.Traits {
	return resource.Traits{Follows: true, On: resource.Iface{Name: a.Link}}
}
