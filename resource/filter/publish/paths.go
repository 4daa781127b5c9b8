package publish

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// A closedPath is a setting without which some packets to a published port get lost, and what opens it.
// What is opened stays open: others may be behind the same link, and a veth pair dies with its container.
type closedPath struct {
	err  error
	open func() error
}

// openPaths opens what is closed.
func (p Ports) openPaths(w *kernel.World, pub *published) (changed bool, err error) {
	for _, path := range p.paths(w, pub) {
		if path.open == nil {
			return changed, path.err
		}
		if err := path.open(); err != nil {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}

// pathDrift returns what is closed, and that the route leads elsewhere, as an error.
func (p Ports) pathDrift(w *kernel.World, pub *published) error {
	var d resource.Drift
	for _, path := range p.paths(w, pub) {
		d.Add(path.err)
	}
	d.Add(p.strayed(w, pub))
	return d.Err()
}

func (p Ports) paths(w *kernel.World, pub *published) (closed []closedPath) {
	if !pub.back {
		return nil
	}
	if c := p.localnet(w, pub); c.err != nil {
		closed = append(closed, c)
	}
	if c := p.hairpinPort(w, pub); c.err != nil {
		closed = append(closed, c)
	}
	return closed
}

// localnet lets packets from 127.0.0.1 out by the attachment's own link on the host, and their answers in. A route may
// lead to the container by another link, such as the uplink. That one gets no route_localnet: its neighbours are not
// containers of this host (CVE-2020-8558).
func (p Ports) localnet(w *kernel.World, pub *published) (c closedPath) {
	if !pub.local {
		return c
	}
	l, misrouted, err := pub.ownLink(w, p)
	if l == nil || err != nil {
		c.err = err
		return c
	}
	if misrouted != nil {
		if gateway, err := p.gatewayAt(w, l); err != nil || !gateway {
			return c // the host is not to reach the container by this link
		}
	}
	key := "net/ipv4/conf/" + l.Name + "/route_localnet"
	v, err := procsys.Get(w.Host, key)
	switch {
	case err != nil:
		c.err = err
	case v != "1":
		c.err = spec.Differs("sysctl "+key, "1", v)
		c.open = func() error {
			_, err := procsys.Set(w.Host, procsys.Setting{Key: key, Value: "1"})
			return err
		}
	}
	return c
}

// strayed says that the host's route to the container does not lead to the attachment's own link, where the host has
// an address for it. Only the administrator fixes that.
func (p Ports) strayed(w *kernel.World, pub *published) error {
	if !pub.local {
		return nil
	}
	l, misrouted, err := pub.ownLink(w, p)
	if misrouted == nil || l == nil || err != nil {
		return err
	}
	if gateway, err := p.gatewayAt(w, l); err != nil || !gateway {
		return err
	}
	return resource.Drift{misrouted}.Lasting().Err()
}

// ensured is how Ensure ends. A route that leads elsewhere is an error in a repair, and ADD only warns of it.
func (p Ports) ensured(ctx context.Context, w *kernel.World, pub *published) error {
	err := p.strayed(w, pub)
	if err != nil && !filter.IsTogether(ctx) {
		slog.Warn("the host does not reach the container of a published port", "reason", err, "attachment",
			p.Owner.String())
		return nil
	}
	return err
}

// ownLink is the link by which the host is to reach the container: the host end of its veth pair, or that end's
// bridge, or the link by which the host is on this bridge. It is nil where the attachment has none, as macvlan has.
// Astray says where the host's route leads if that is not to this link.
func (p Ports) ownLink(w *kernel.World, pub *published) (l *rtnl.Link, misrouted, err error) {
	to := p.To4.Addr()
	if l, err = pub.hostEnd(w, p.Owner); err != nil || l == nil {
		return nil, nil, err
	}
	r, rerr := rtnl.RouteTo(w.Host, to)
	var by *rtnl.Link
	if rerr == nil && r.Type == rtnl.Unicast {
		if by, err = rtnl.LinkByIndex(w.Host, r.Link); err != nil {
			return nil, nil, resource.ExceptNoLink(err)
		}
	}
	switch {
	case l.Master == 0:
	case by != nil && by.Index == l.Master && by.Kind == "bridge": // as most are
		l = by
	default:
		if l, err = hostOn(w, l, by, to); l == nil || err != nil {
			return nil, nil, err
		}
	}
	switch {
	case by == nil:
		misrouted = spec.DiffersBy("route", "route to %v leads nowhere, want host/%s", to, l.Name)
	case by.Index != l.Index || r.Via.IsValid():
		misrouted = spec.DiffersBy("route", "route to %v leads elsewhere: %s, want host/%s", to,
			resource.Line("host/"+by.Name, resource.Opt("via", r.Via)), l.Name)
	}
	return l, misrouted, nil
}

// hostEnd is the host end of the container's veth pair, nil if there is none. It asks once.
func (pub *published) hostEnd(w *kernel.World, o spec.Owner) (l *rtnl.Link, err error) {
	if !pub.ended {
		pub.end, err = resource.HostEnd(w, o.IfName)
		pub.ended = err == nil
	}
	return pub.end, err
}

// ownLink asks once.
func (pub *published) ownLink(w *kernel.World, p Ports) (l *rtnl.Link, misrouted, err error) {
	if !pub.asked {
		pub.own, pub.misrouted, err = p.ownLink(w, pub)
		pub.asked = err == nil
	}
	return pub.own, pub.misrouted, err
}

// hostOn is the link by which the host is on the bridge or the switch that a port is of, or else the port. By is the
// link that the host's route leads to. It is nil where the host is not on the switch.
func hostOn(w *kernel.World, port, by *rtnl.Link, to netip.Addr) (*rtnl.Link, error) {
	master, err := rtnl.LinkByIndex(w.Host, port.Master)
	switch {
	case err != nil:
		return nil, resource.ExceptNoLink(err)
	case master.Kind == "bridge":
		return filter.RoutedBy(w, master, []netip.Addr{to})
	case master.Kind != "openvswitch": // a VRF
		return port, nil
	case by != nil && by.Kind == "openvswitch": // an internal port
		return by, nil
	}
	return nil, nil
}

// gatewayAt reports whether the host has an address of the container's subnet at l.
func (p Ports) gatewayAt(w *kernel.World, l *rtnl.Link) (bool, error) {
	addrs, err := rtnl.Addrs(w.Host, l.Index)
	return slices.ContainsFunc(addrs, func(a rtnl.Addr) bool { return a.Prefix.Overlaps(p.To4.Masked()) }), err
}

// hairpinPort lets the container's own packets back in by the port that they came from. Where frames on a
// bridge pass iptables, which br_netfilter sees to on most nodes of Kubernetes, a translated frame stays on
// the bridge and is not routed, and a bridge sends nothing back where it came from.
func (p Ports) hairpinPort(w *kernel.World, pub *published) (c closedPath) {
	filtered := func(of string) bool {
		v, err := procsys.Get(w.Host, "net/bridge/bridge-nf-call-"+of)
		return err == nil && v != "0"
	}
	if !(p.To4.IsValid() && filtered("iptables") || p.To6.IsValid() && filtered("ip6tables")) {
		return c
	}
	l, err := pub.hostEnd(w, p.Owner)
	if err != nil || l == nil || l.Port == nil || l.Port.Hairpin {
		c.err = err
		return c
	}
	port := *l.Port
	port.Hairpin = true
	c.err = spec.DiffersBy("hairpin", "link host/%s has hairpin off, want on", l.Name)
	c.open = func() error { return rtnl.SetLink(w.Host, l.Name, rtnl.LinkChange{Port: &port}) }
	return c
}

// vanished reports whether the host end of a veth pair that was there is no more. A veth dies with its
// namespace, and indexes are not used again, so what was published from behind it has no owner.
func vanished(w *kernel.World, link uint32) bool {
	if link == 0 {
		return false
	}
	_, err := rtnl.LinkByIndex(w.Host, int(link))
	return errors.Is(err, rtnl.ErrNoLink)
}
