package routing

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"golang.org/x/sys/unix"
)

// movable returns the routes of a link that do not come back when the link goes down and up: not those of its
// addresses and not those from router advertisements. Routes through a gateway come last, because the gateway has to
// be reachable first.
func movable(ns *kernel.NS, index int) (list []rtnl.Route, err error) {
	for _, family := range resource.Families() {
		routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: family, Link: index})
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Type == rtnl.Unicast && r.Protocol != unix.RTPROT_KERNEL && r.Protocol != rtnl.ByRA {
				list = append(list, r)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b rtnl.Route) int {
		switch {
		case a.Via.IsValid() == b.Via.IsValid():
			return 0
		case b.Via.IsValid():
			return -1
		}
		return 1
	})
	return list, nil
}

// join makes a link a member, and brings its routes of the main table into the VRF's. Those of other tables, which
// rules lead to, stay where they are, but do not name the link's addresses any more: the kernel does not find these
// there (see withoutSources).
func (m *member) join(ctx context.Context, ns *kernel.NS, l, vrf *rtnl.Link) error {
	if err := rehome(ctx, ns, l, vrf.Index, m.Table); err != nil {
		return err
	}
	if l.Operational { // it was set down and up
		if err := resource.WaitCarrier(ctx, resource.Container, ns, l.Name, resource.KernelLimit); err != nil {
			return err
		}
	}
	addrs, err := rtnl.Addrs(ns, l.Index)
	if err != nil {
		return err
	}
	warned := false
	for _, r := range m.Was {
		if r.Table == rtnl.MainTable {
			r.Table = m.Table
		}
		if r.Table != m.Table && rtnl.HasAddr(addrs, r.Src) {
			r = withoutSources([]rtnl.Route{r})[0]
		}
		if r.Table != m.Table && !warned {
			warned = true
			slog.Warn("the kernel looks in the VRF's table first: the link's routes in other tables apply only to "+
				"destinations without a route there", "link", l.Name, "vrf", vrf.Name, "table", r.Table)
		}
		r, err := beside(ns, r)
		if err != nil {
			return fmt.Errorf("%s: %w", said(ns, r), err)
		}
		m.Made = append(m.Made, r)
	}
	return nil
}

// beside adds a route. Where another link has a default route of the same metric, that comes first (P25).
func beside(ns *kernel.NS, r rtnl.Route) (rtnl.Route, error) {
	const others = 32
	for range others {
		err := rtnl.AddRoute(ns, r, r.Dst.Bits() == 0)
		if !errors.Is(err, fs.ErrExist) {
			return r, err
		}
		list, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: rtnl.Family(r.Dst.Addr()), Table: r.Table})
		if err != nil {
			return r, err
		}
		at := func(h rtnl.Route) bool { return h.Dst == r.Dst && h.Priority == r.Priority }
		switch {
		case slices.ContainsFunc(list, func(h rtnl.Route) bool { return sameRoute(h, r) }):
			return r, nil
		case slices.ContainsFunc(list, func(h rtnl.Route) bool { return at(h) && h.Link == r.Link }):
			return r, rtnl.AddRoute(ns, r, false)
		}
		r.Priority++
	}
	return r, fs.ErrExist
}

// rehome makes a link a member of another VRF, or of none (-1). The kernel sets the link down and up for this. The
// link loses its routes, and its IPv6 addresses unless a setting keeps them; the kernel would repeat duplicate
// address detection for new ones.
func rehome(ctx context.Context, ns *kernel.NS, l *rtnl.Link, master, table int) error {
	addrs, err := rtnl.Addrs(ns, l.Index)
	if err != nil {
		return err
	}
	var had []rtnl.Addr
	sure := true
	for _, a := range addrs {
		if a.Prefix.Addr().Is6() && a.Scope == unix.RT_SCOPE_UNIVERSE {
			had = append(had, a)
			sure = sure && !a.Tentative && !a.DADFailed
		}
	}
	if len(had) == 0 {
		return rtnl.SetLink(ns, l.Name, rtnl.LinkChange{Master: master})
	}
	conf := "net/ipv6/conf/" + l.Name + "/"
	settings := []procsys.Setting{{Key: conf + "keep_addr_on_down", Value: "1", Optional: true}}
	if sure {
		settings = append(settings, procsys.Setting{Key: conf + "accept_dad", Value: "0"})
	}
	defer put(ns, settings)()
	if err := rtnl.SetLink(ns, l.Name, rtnl.LinkChange{Master: master}); err != nil {
		return err
	}
	have, err := rtnl.Addrs(ns, l.Index)
	if err != nil {
		return err
	}
	for _, a := range had {
		if slices.ContainsFunc(have, func(h rtnl.Addr) bool { return h.Prefix == a.Prefix }) {
			continue
		}
		if err := rtnl.AddAddr(ns, l.Index, a); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if !l.Operational { // nothing settles before it is
		return nil
	}
	err = rtnl.Await(ns, ctx, resource.KernelLimit, []uint{rtnl.IPv6AddrEvents, rtnl.IPv6RouteEvents, rtnl.LinkEvents},
		func() (bool, error) {
			routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: rtnl.IPv6, Table: table, Link: l.Index})
			for _, a := range had {
				own := func(r rtnl.Route) bool {
					return r.Type == rtnl.Local && r.Dst.Addr() == a.Prefix.Addr() && r.Dst.IsSingleIP()
				}
				if !slices.ContainsFunc(routes, own) {
					return false, err
				}
			}
			return true, err
		})
	if err != nil {
		return fmt.Errorf("wait for the IPv6 addresses of %s: %w", l.Name, err)
	}
	return nil
}

// put writes settings, where they can be written, and returns what puts back what they were.
func put(ns *kernel.NS, settings []procsys.Setting) (back func()) {
	var was []procsys.Setting
	for _, s := range settings {
		if v, err := procsys.Get(ns, s.Key); err == nil && !procsys.SameValue(v, s.Value) {
			was = append(was, procsys.Setting{Key: s.Key, Value: v})
		}
	}
	set := func(list []procsys.Setting) {
		if len(list) == 0 {
			return
		}
		if _, err := procsys.Set(ns, list...); err != nil {
			slog.Debug("not written", "error", err)
		}
	}
	if len(was) > 0 {
		set(settings)
	}
	return func() { set(was) }
}

// leave undoes join, as far as it was applied. It removes the VRF if it is empty and was made for a member. Without a
// record, the link keeps its present routes.
func (m member) leave(ctx context.Context, ns *kernel.NS, known bool) error {
	l, err := m.find(ns)
	if resource.ExceptNoLink(err) != nil {
		return err
	}
	left := false
	if err == nil && l.Master != 0 {
		vrf, err := rtnl.LinkByIndex(ns, l.Master)
		if resource.ExceptNoLink(err) != nil {
			return err
		}
		if err == nil && vrf.Kind == "vrf" && (m.VRF == "" || m.VRF == vrf.Name) {
			m.VRF, left = vrf.Name, true
			if err := m.back(ctx, ns, l, vrf, known); err != nil {
				return err
			}
		}
	} else if err == nil && known { // an ADD that was killed while the link was down
		if err := m.giveBack(ns); err != nil {
			return err
		}
	}
	if m.VRF == "" || m.Found {
		return nil
	}
	vrf, err := rtnl.LinkByName(ns, m.VRF)
	if err != nil || vrf.Kind != "vrf" || !resource.OwnVRF(vrf) && (known || !left) {
		return resource.ExceptNoLink(err)
	}
	links, err := rtnl.Links(ns)
	if err != nil || slices.ContainsFunc(links, func(l *rtnl.Link) bool { return l.Master == vrf.Index }) {
		return err
	}
	return rtnl.DelLink(ns, vrf.Index)
}

// find returns the member's link, whatever its present name is.
func (m member) find(ns *kernel.NS) (*rtnl.Link, error) {
	if m.Index != 0 {
		return rtnl.LinkByIndex(ns, m.Index)
	}
	return rtnl.LinkByName(ns, m.Link)
}

// back takes the link out of the VRF, and puts its routes where they were.
func (m member) back(ctx context.Context, ns *kernel.NS, l, vrf *rtnl.Link, known bool) error {
	if !known {
		list, err := movable(ns, l.Index)
		if err != nil {
			return err
		}
		for _, r := range list {
			if r.Table == int(vrf.Data.Table) {
				r.Table = rtnl.MainTable
			}
			m.Was = append(m.Was, r)
		}
	}
	if err := rehome(ctx, ns, l, -1, localTable); err != nil {
		if now, e := rtnl.LinkByIndex(ns, l.Index); e != nil || now.Master != 0 {
			return errors.Join(err, e)
		}
		slog.Info("out of the VRF", "link", l.Name, "error", err)
	}
	return m.giveBack(ns)
}

const localTable = unix.RT_TABLE_LOCAL

// giveBack puts the routes where they were. One that cannot be there any more is no reason for DEL to fail.
func (m member) giveBack(ns *kernel.NS) error {
	for _, r := range m.Was {
		if err := giveBack(ns, r); kernel.Unanswered(err) {
			return err
		} else if err != nil {
			slog.Info("a route is not put back", "route", said(ns, r), "error", err)
		}
	}
	return nil
}

// within runs do in the namespace at a path, if it is still the recorded namespace.
func within(ctx context.Context, path string, was kernel.Identity, do func(*kernel.NS) error) error {
	ns, err := kernel.Reopen(path, was)
	if err != nil || ns == nil {
		return err
	}
	defer ns.Close()
	unlock, err := lockSources(ctx, ns)
	if err != nil {
		return err
	}
	defer unlock()
	return do(ns)
}
