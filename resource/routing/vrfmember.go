package routing

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"golang.org/x/sys/unix"
)

// movable are the routes of a link that do not come back by themselves when it goes down and up again: neither those
// of its addresses nor what routers advertise. Those by a router come last, for it has to be reached first.
func movable(ns *kernel.NS, index int) (list []kernel.Route, err error) {
	for _, family := range resource.Families() {
		routes, err := ns.Routes(kernel.RouteFilter{Family: family, Link: index})
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Type == kernel.Unicast && r.Protocol != unix.RTPROT_KERNEL && r.Protocol != kernel.ByRA {
				list = append(list, r)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b kernel.Route) int {
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
func (m *member) join(ctx context.Context, ns *kernel.NS, l, vrf *kernel.Link) error {
	if err := rehome(ctx, ns, l, vrf.Index, m.Table); err != nil {
		return err
	}
	if l.Operational { // it was set down and up
		if err := resource.WaitCarrier(ctx, resource.Container, ns, l.Name, resource.KernelLimit); err != nil {
			return err
		}
	}
	addrs, err := ns.Addrs(l.Index)
	if err != nil {
		return err
	}
	told := false
	for _, r := range m.Was {
		if r.Table == kernel.MainTable {
			r.Table = m.Table
		}
		if r.Table != m.Table && slices.ContainsFunc(addrs, func(a kernel.Addr) bool { return a.Prefix.Addr() == r.Src }) {
			r = withoutSources([]kernel.Route{r})[0]
		}
		if r.Table != m.Table && !told {
			told = true
			slog.Warn("what has a route in the VRF's table does not get to the link's routes in other tables", "link", l.Name,
				"vrf", vrf.Name, "table", r.Table)
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
func beside(ns *kernel.NS, r kernel.Route) (kernel.Route, error) {
	const others = 32
	for range others {
		err := ns.AddRoute(r, r.Dst.Bits() == 0)
		if !errors.Is(err, fs.ErrExist) {
			return r, err
		}
		list, err := ns.Routes(kernel.RouteFilter{Family: familyOf(r.Dst.Addr()), Table: r.Table})
		if err != nil {
			return r, err
		}
		at := func(h kernel.Route) bool { return h.Dst == r.Dst && h.Priority == r.Priority }
		switch {
		case slices.ContainsFunc(list, func(h kernel.Route) bool { return sameRoute(h, r) }):
			return r, nil
		case slices.ContainsFunc(list, func(h kernel.Route) bool { return at(h) && h.Link == r.Link }):
			return r, ns.AddRoute(r, false)
		}
		r.Priority++
	}
	return r, fs.ErrExist
}

// rehome makes a link belong to another one, or to none (-1), whose routes are in a table. The kernel sets the link
// down and up for it, and with that go its routes, and its IPv6 addresses unless it is told to keep them; these it
// would ask the neighbours about again.
func rehome(ctx context.Context, ns *kernel.NS, l *kernel.Link, master, table int) error {
	addrs, err := ns.Addrs(l.Index)
	if err != nil {
		return err
	}
	var had []kernel.Addr
	sure := true
	for _, a := range addrs {
		if a.Prefix.Addr().Is6() && a.Scope == unix.RT_SCOPE_UNIVERSE {
			had = append(had, a)
			sure = sure && !a.Tentative && !a.DADFailed
		}
	}
	if len(had) == 0 {
		return ns.SetLink(l.Name, kernel.LinkChange{Master: master})
	}
	conf := "net/ipv6/conf/" + l.Name + "/"
	settings := []kernel.Setting{{Key: conf + "keep_addr_on_down", Value: "1", Optional: true}}
	if sure {
		settings = append(settings, kernel.Setting{Key: conf + "accept_dad", Value: "0"})
	}
	defer put(ns, settings)()
	if err := ns.SetLink(l.Name, kernel.LinkChange{Master: master}); err != nil {
		return err
	}
	have, err := ns.Addrs(l.Index)
	if err != nil {
		return err
	}
	for _, a := range had {
		if slices.ContainsFunc(have, func(h kernel.Addr) bool { return h.Prefix == a.Prefix }) {
			continue
		}
		if err := ns.AddAddr(l.Index, a); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if !l.Operational { // nothing settles before it is
		return nil
	}
	err = ns.Await(ctx, resource.KernelLimit, []uint{kernel.IPv6AddrEvents, kernel.IPv6RouteEvents, kernel.LinkEvents},
		func() (bool, error) {
			routes, err := ns.Routes(kernel.RouteFilter{Family: kernel.IPv6, Table: table, Link: l.Index})
			for _, a := range had {
				own := func(r kernel.Route) bool {
					return r.Type == kernel.Local && r.Dst.Addr() == a.Prefix.Addr() && r.Dst.IsSingleIP()
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
func put(ns *kernel.NS, settings []kernel.Setting) (back func()) {
	var was []kernel.Setting
	for _, s := range settings {
		if v, err := ns.Sysctl(s.Key); err == nil && !kernel.SameValue(v, s.Value) {
			was = append(was, kernel.Setting{Key: s.Key, Value: v})
		}
	}
	set := func(list []kernel.Setting) {
		if len(list) == 0 {
			return
		}
		if _, err := ns.SetSysctls(list...); err != nil {
			slog.Debug("not written", "error", err)
		}
	}
	if len(was) > 0 {
		set(settings)
	}
	return func() { set(was) }
}

// leave undoes join, or as much of it as was done, and removes the VRF if it is empty and somebody's who made it for a
// member. Of what nobody remembers, the link's routes are as they are now.
func (m member) leave(ctx context.Context, ns *kernel.NS, known bool) error {
	l, err := m.find(ns)
	if resource.ExceptNoLink(err) != nil {
		return err
	}
	left := false
	if err == nil && l.Master != 0 {
		vrf, err := ns.LinkAt(l.Master)
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
	vrf, err := ns.Link(m.VRF)
	if err != nil || vrf.Kind != "vrf" || !resource.OwnVRF(vrf) && (known || !left) {
		return resource.ExceptNoLink(err)
	}
	links, err := ns.Links()
	if err != nil || slices.ContainsFunc(links, func(l *kernel.Link) bool { return l.Master == vrf.Index }) {
		return err
	}
	return ns.DelLink(vrf.Index)
}

// find is the member's link, whatever it is called now.
func (m member) find(ns *kernel.NS) (*kernel.Link, error) {
	if m.Index != 0 {
		return ns.LinkAt(m.Index)
	}
	return ns.Link(m.Link)
}

// back takes the link out of the VRF, and puts its routes where they were.
func (m member) back(ctx context.Context, ns *kernel.NS, l, vrf *kernel.Link, known bool) error {
	if !known {
		list, err := movable(ns, l.Index)
		if err != nil {
			return err
		}
		for _, r := range list {
			if r.Table == int(vrf.Data.Table) {
				r.Table = kernel.MainTable
			}
			m.Was = append(m.Was, r)
		}
	}
	if err := rehome(ctx, ns, l, -1, localTable); err != nil {
		if now, e := ns.LinkAt(l.Index); e != nil || now.Master != 0 {
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

// within runs do in the namespace of a path, if it is still the one that it was.
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
