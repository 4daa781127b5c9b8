package publish

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

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

// paths are the ways of packets to the published ports, and of their answers, on this host.
type paths struct {
	Ports
	w     *kernel.World
	back  bool // packets are masqueraded on their way to the container
	local bool // 127.0.0.1 is to work

	// Each asks once. The host end of the container's veth pair is nil if there is none.
	hostEnd func() (*rtnl.Link, error)
	own     func() (ownLink, error)
}

func (p Ports) paths(w *kernel.World) paths {
	x := paths{Ports: p, w: w, local: p.masquerades(false)}
	x.back = x.local || p.masquerades(true)
	x.hostEnd = sync.OnceValues(func() (*rtnl.Link, error) { return resource.HostEnd(w, p.Owner.IfName) })
	x.own = sync.OnceValues(x.findOwn)
	return x
}

// masquerades reports whether packets to ports of a family may be masqueraded.
func (p Ports) masquerades(v6 bool) bool {
	to, _ := p.Family(v6)
	return (p.SNAT || p.MasqAll) && to.IsValid() &&
		slices.ContainsFunc(p.Mappings, func(m Mapping) bool { _, ok := m.Host(v6); return ok })
}

// open opens what is closed.
func (x paths) open() (changed bool, err error) {
	for _, path := range x.closed() {
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

// drift returns what is closed, and that the route leads elsewhere, as an error.
func (x paths) drift() error {
	var d resource.Drift
	for _, path := range x.closed() {
		d.Add(path.err)
	}
	d.Add(x.strayed())
	return d.Err()
}

func (x paths) closed() []closedPath {
	if !x.back {
		return nil
	}
	all := []closedPath{x.localnet(), x.hairpinPort()}
	return slices.DeleteFunc(all, func(c closedPath) bool { return c.err == nil })
}

// localnet lets packets from 127.0.0.1 out by the attachment's own link on the host, and their answers in. A route may
// lead to the container by another link, such as the uplink. That one gets no route_localnet: its neighbours are not
// containers of this host (CVE-2020-8558).
func (x paths) localnet() (c closedPath) {
	if !x.local {
		return c
	}
	own, err := x.own()
	if own.link == nil || err != nil {
		c.err = err
		return c
	}
	if own.misrouted != nil {
		if gateway, err := x.gatewayAt(own.link); err != nil || !gateway {
			return c // the host is not to reach the container by this link
		}
	}
	key := "net/ipv4/conf/" + own.link.Name + "/route_localnet"
	v, err := procsys.Get(x.w.Host, key)
	switch {
	case err != nil:
		c.err = err
	case v != "1":
		c.err = spec.Differs("sysctl "+key, "1", v)
		c.open = func() error {
			_, err := procsys.Set(x.w.Host, procsys.Setting{Key: key, Value: "1"})
			return err
		}
	}
	return c
}

// strayed says that the host's route to the container does not lead to the attachment's own link, where the host has
// an address for it. Only the administrator fixes that.
func (x paths) strayed() error {
	if !x.local {
		return nil
	}
	own, err := x.own()
	if own.misrouted == nil || err != nil {
		return err
	}
	if gateway, err := x.gatewayAt(own.link); err != nil || !gateway {
		return err
	}
	return resource.Drift{own.misrouted}.Lasting().Err()
}

// ensured is how Ensure ends. A route that leads elsewhere is an error in a repair, and ADD only warns of it.
func (x paths) ensured(ctx context.Context) error {
	err := x.strayed()
	if err != nil && !filter.IsTogether(ctx) {
		slog.Warn("the host does not reach the container of a published port", "reason", err, "attachment",
			x.Owner.String())
		return nil
	}
	return err
}

// An ownLink is the link by which the host is to reach the container: the host end of its veth pair, or that end's
// bridge, or the link by which the host is on this bridge. It is nil where the attachment has none, as macvlan has.
type ownLink struct {
	link      *rtnl.Link
	misrouted error // where the host's route leads if that is not to this link
}

func (x paths) findOwn() (own ownLink, err error) {
	to := x.To4.Addr()
	l, err := x.hostEnd()
	if err != nil || l == nil {
		return own, err
	}
	r, rerr := rtnl.RouteTo(x.w.Host, to)
	var by *rtnl.Link
	if rerr == nil && r.Type == rtnl.Unicast {
		if by, err = rtnl.LinkByIndex(x.w.Host, r.Link); err != nil {
			return own, resource.ExceptNoLink(err)
		}
	}
	switch {
	case l.Master == 0:
	case by != nil && by.Index == l.Master && by.Kind == "bridge": // as most are
		l = by
	default:
		if l, err = hostOn(x.w, l, by, to); l == nil || err != nil {
			return own, err
		}
	}
	own.link = l
	var is spec.Difference
	switch {
	case by == nil:
		is = spec.DiffersBy("route", "route to %v leads nowhere, want host/%s", to, l.Name)
	case by.Index != l.Index || r.Via.IsValid():
		is = spec.DiffersBy("route", "route to %v leads elsewhere: %s, want host/%s", to,
			resource.Line("host/"+by.Name, resource.Opt("via", r.Via)), l.Name)
	default:
		return own, nil
	}
	is.Want = to.String()
	own.misrouted = is
	return own, nil
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
func (x paths) gatewayAt(l *rtnl.Link) (bool, error) {
	addrs, err := rtnl.Addrs(x.w.Host, l.Index)
	return slices.ContainsFunc(addrs, func(a rtnl.Addr) bool { return a.Prefix.Overlaps(x.To4.Masked()) }), err
}

// hairpinPort lets the container's own packets back in by the port that they came from. Where frames on a
// bridge pass iptables, which br_netfilter sees to on most nodes of Kubernetes, a translated frame stays on
// the bridge and is not routed, and a bridge sends nothing back where it came from.
func (x paths) hairpinPort() (c closedPath) {
	filtered := func(of string) bool {
		v, err := procsys.Get(x.w.Host, "net/bridge/bridge-nf-call-"+of)
		return err == nil && v != "0"
	}
	if !(x.To4.IsValid() && filtered("iptables") || x.To6.IsValid() && filtered("ip6tables")) {
		return c
	}
	l, err := x.hostEnd()
	if err != nil || l == nil || l.Port == nil || l.Port.Hairpin {
		c.err = err
		return c
	}
	port := *l.Port
	port.Hairpin = true
	c.err = spec.DiffersBy("hairpin", "link host/%s has hairpin off, want on", l.Name)
	c.open = func() error { return rtnl.SetLink(x.w.Host, l.Name, rtnl.LinkChange{Port: &port}) }
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
