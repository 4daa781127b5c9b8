package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// PortVLAN is rtnl.PortVLAN for plugins, which may not import kernel packages.
type PortVLAN = rtnl.PortVLAN

// VLANs are the VLANs of a bridge that a port is in. The zero value means no opinion.
type VLANs struct {
	Native  uint16          // of what has no tag, either way; zero: nothing without a tag passes
	Tagged  []rtnl.PortVLAN // in order, without Native and without overlaps
	Default bool            // leave the port in the VLAN that the kernel put it in when it was made a port
}

func (v VLANs) none() bool { return v.Native == 0 && len(v.Tagged) == 0 }

// String returns the VLANs in the words of bridge(8), such as "vid 100 pvid untagged vid 10-20".
func (v VLANs) String() string {
	if v.none() {
		return ""
	}
	return resource.Line(vlanText(v.want()), resource.Flag("and the default vid", v.Default))
}

// segment returns the VLANs as a Segment has them. VLAN 1 is what a bridge has without VLANs.
func (v VLANs) segment() string {
	switch {
	case len(v.Tagged) > 0:
		return v.String()
	case v.Native > 1:
		return strconv.Itoa(int(v.Native))
	}
	return ""
}

func vlanText(list []rtnl.PortVLAN) string {
	var words []string
	for _, p := range list {
		id := strconv.Itoa(int(p.First))
		if p.Last != p.First {
			id += "-" + strconv.Itoa(int(p.Last))
		}
		words = append(words, resource.Line("vid", id, resource.Flag("pvid", p.PVID),
			resource.Flag("untagged", p.Untagged)))
	}
	return strings.Join(words, " ")
}

func (v VLANs) want() []rtnl.PortVLAN {
	if v.Native == 0 {
		return v.Tagged
	}
	return append([]rtnl.PortVLAN{{First: v.Native, Last: v.Native, PVID: true, Untagged: true}}, v.Tagged...)
}

// each calls f with each VLAN of a list by itself.
func each(list []rtnl.PortVLAN, f func(id uint16, one rtnl.PortVLAN)) {
	for _, p := range list {
		for id := int(p.First); id <= int(p.Last); id++ {
			one := p
			one.First, one.Last = uint16(id), uint16(id)
			f(one.First, one)
		}
	}
}

// diff is what a port is in too much, and what it lacks or is in as it should not be, in ranges.
func (v VLANs) diff(have []rtnl.PortVLAN, pvid uint16) (del, add []rtnl.PortVLAN) {
	is, want := map[uint16]rtnl.PortVLAN{}, map[uint16]bool{}
	each(have, func(id uint16, one rtnl.PortVLAN) { is[id] = one })
	each(v.want(), func(id uint16, one rtnl.PortVLAN) {
		want[id] = true
		if is[id] != one {
			add = extend(add, one)
		}
	})
	each(have, func(id uint16, one rtnl.PortVLAN) {
		if !want[id] && !(v.Default && id == pvid) {
			del = extend(del, rtnl.PortVLAN{First: id, Last: id})
		}
	})
	return del, add
}

// extend appends one VLAN, to the last range where it fits.
func extend(list []rtnl.PortVLAN, one rtnl.PortVLAN) []rtnl.PortVLAN {
	if n := len(list) - 1; n >= 0 && !one.PVID && !list[n].PVID && list[n].Untagged == one.Untagged && list[n].Last+
		1 == one.First {
		list[n].Last = one.Last
		return list
	}
	return append(list, one)
}

// ensure puts a port into its VLANs and into no other: the old ones go first, so that it is never in two at once.
func (v VLANs) ensure(w *kernel.World, link string) (changed bool, err error) {
	if v.none() {
		return false, nil
	}
	l, err := rtnl.LinkByName(w.Host, link)
	if err != nil {
		return false, err
	}
	have, del, add, err := v.look(w, l)
	if err != nil || len(del)+len(add) == 0 {
		return false, err
	}
	if err = rtnl.DelPortVLANs(w.Host, l.Index, del); err == nil {
		err = rtnl.AddPortVLANs(w.Host, l.Index, add)
	}
	if err != nil {
		_ = rtnl.DelPortVLANs(w.Host, l.Index, add) // some of them may not be there
		return false, errors.Join(err, rtnl.AddPortVLANs(w.Host, l.Index, have))
	}
	return true, nil
}

func (v VLANs) look(w *kernel.World, l *rtnl.Link) (have, del, add []rtnl.PortVLAN, err error) {
	br, err := rtnl.LinkByIndex(w.Host, l.Master)
	if err != nil {
		return nil, nil, nil, err
	}
	if have, err = rtnl.PortVLANs(w.Host, l.Index); err != nil {
		return nil, nil, nil, err
	}
	del, add = v.diff(have, br.Data.PVID)
	return have, del, add, nil
}

// wantVLANs compares the VLANs of a port.
func wantVLANs(d *resource.Drift, w *kernel.World, l *rtnl.Link, v VLANs) {
	if v.none() || l.Port == nil {
		return
	}
	have, del, add, err := v.look(w, l)
	d.Add(err)
	if len(del)+len(add) > 0 {
		is := vlanText(have)
		if is == "" {
			is = "none"
		}
		d.Want("VLANs of "+l.Name, v, is)
	}
}

// unfiltered is the error about a bridge that was made without VLANs.
func unfiltered(w *kernel.World, name string) error {
	if err := rtnl.NoBridgeVLANs(w.Host); err != nil {
		return spec.Errorf(spec.CodeConfig,
			"bridge: %q: exists, and cannot keep VLANs apart: %w; leave out access, trunk, vlan and vlanTrunk, or "+
				"use another kernel", name, err)
	}
	return spec.Errorf(spec.CodeConfig,
		"bridge: %q: exists, and does not keep VLANs apart: run `ip link set %s type bridge vlan_filtering 1`, or "+
			"set vlanFiltering to true so that ADD does it, or name another bridge", name, name)
}

// A Filtering requires that a bridge separates VLANs or does not exist yet.
type Filtering struct{ Bridge string }

func (f Filtering) String() string { return "link host/" + f.Bridge + " vlan_filtering on or none" }

// Verify implements plan.Resource.
func (f Filtering) Verify(ctx context.Context, w *kernel.World) error {
	l, err := rtnl.LinkByName(w.Host, f.Bridge)
	if err == nil && l.Kind == "bridge" && !l.Data.Filtering {
		return unfiltered(w, f.Bridge)
	}
	return resource.ExceptNoLink(err)
}

// A VLANGateway is the link through which the host is in a VLAN of a bridge: a veth whose peer is a port of the
// bridge. All attachments of the VLAN share it. It is the same as that of the reference's plugin.
type VLANGateway struct {
	Bridge string
	VLAN   uint16
	MTU    resource.MTU
}

// Name returns the name of the link on the host.
func (g VLANGateway) Name() string { return fmt.Sprintf("%s.%d", g.Bridge, g.VLAN) }

func (g VLANGateway) port() string { return GatewayPort(g.Name()) }

// GatewayPort returns the name of the bridge port that is the peer of a gateway's link.
func GatewayPort(link string) string { return identity.LinkName("vlan", spec.Owner{IfName: link}) }

func (g VLANGateway) vlans() VLANs { return VLANs{Native: g.VLAN} }

func (g VLANGateway) String() string {
	return resource.Line("link host/"+g.Name(), "type veth", resource.Opt("mtu", g.MTU), "peer master", g.Bridge,
		g.vlans().String())
}

// Traits implements resource.Describer.
func (g VLANGateway) Traits() resource.Traits {
	return resource.Traits{
		Ifaces: []resource.Iface{{Where: resource.Host, Name: g.Name(), Kind: "veth"}},
		Fix:    g.Ensure,
	}
}

// Ensure implements plan.Resource. It holds a lock, so that a concurrent call does not find a link that is half made.
func (g VLANGateway) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if g.Verify(ctx, w) == nil {
		return false, nil
	}
	unlock, err := record.Lock(ctx, "vlan-gateway")
	if err != nil {
		return false, err
	}
	defer unlock()
	l, port, err := g.look(w)
	if errors.Is(err, rtnl.ErrNoLink) && l == nil {
		if err := g.add(w); err != nil {
			return false, err
		}
		changed = true
		l, port, err = g.look(w)
	}
	if err == nil {
		var c bool
		c, err = g.finish(w, l, port)
		if !changed || err == nil {
			g.warn(w)
			return changed || c, err
		}
	}
	if changed && l != nil {
		err = errors.Join(err, rtnl.DelLink(w.Host, l.Index))
	}
	return false, err
}

// warn says what br_netfilter does to a VLAN: the packet filter sees its packets on the bridge before the host routes
// them, takes what it should translate then for translated, and what it translates too early does not come in by the
// link.
func (g VLANGateway) warn(w *kernel.World) {
	if v, err := procsys.Get(w.Host, "net/bridge/bridge-nf-call-iptables"); err == nil && v != "0" {
		slog.Warn("br_netfilter passes bridged packets through the packet filter: packets from the VLAN are not "+
			"masqueraded, and published ports may not answer; `sysctl net.bridge.bridge-nf-call-iptables=0 "+
			"net.bridge.bridge-nf-call-ip6tables=0` fixes that", "link", g.Name())
	}
}

func (g VLANGateway) add(w *kernel.World) error {
	br, err := resource.Bridge(w, g.Bridge)
	if err != nil {
		return err
	}
	mtu, err := g.MTU.Resolve(w)
	if err != nil {
		return err
	}
	o := spec.Owner{IfName: g.Name()}
	err = rtnl.AddVeth(w.Host, rtnl.VethPair{Host: g.port(), HostMAC: identity.MAC("port", o), Name: g.Name(),
		MAC: identity.MAC("bridge", o), NS: w.Host, MTU: mtu, Master: br.Index})
	if err != nil {
		return fmt.Errorf("add veth: %w", err)
	}
	return nil
}

// look finds both ends. The first is nil where there is none.
func (g VLANGateway) look(w *kernel.World) (l, port *rtnl.Link, err error) {
	if l, err = rtnl.LinkByName(w.Host, g.Name()); err != nil {
		return nil, nil, err
	}
	if l.Kind != "veth" || l.PeerAway {
		return l, nil, spec.Errorf(spec.CodeConfig,
			"bridge: %q: %s, which would be its gateway's link, is %s of another program: rename or remove it "+
				"(ip link delete %s)", g.Bridge, l.Name, resource.KindOf(l), l.Name)
	}
	if port, err = rtnl.LinkByIndex(w.Host, l.Peer); err != nil {
		return l, nil, err
	}
	if m := masterName(w, port); m != g.Bridge && m != "none" {
		return l, port, spec.Errorf(spec.CodeConfig,
			"bridge: %q: %s, which would be its gateway's link, leads to %s: remove it (ip link delete %s)", g.Bridge,
			l.Name, m, l.Name)
	}
	return l, port, nil
}

func (g VLANGateway) finish(w *kernel.World, l, port *rtnl.Link) (changed bool, err error) {
	if port.Master == 0 || !port.Up {
		br, err := resource.Bridge(w, g.Bridge)
		if err != nil {
			return false, err
		}
		if err := rtnl.SetLink(w.Host, port.Name, rtnl.LinkChange{Master: br.Index, Up: true}); err != nil {
			return false, err
		}
		changed = true
	}
	c, err := g.vlans().ensure(w, port.Name)
	if changed = changed || c; err != nil {
		return changed, err
	}
	for _, name := range []string{port.Name, l.Name} {
		c, err := resource.IgnoreRA(w.Host, name)
		if changed = changed || c; err != nil {
			return changed, err
		}
	}
	if !l.Up {
		changed, err = true, rtnl.SetLink(w.Host, l.Name, rtnl.LinkChange{Up: true})
	}
	return changed, err
}

// Verify implements plan.Resource.
func (g VLANGateway) Verify(ctx context.Context, w *kernel.World) error {
	l, port, err := g.look(w)
	if err != nil {
		return err
	}
	var d resource.Drift
	d.WantUp("state", l)
	d.WantUp("port's state", port)
	d.Want("port's master", g.Bridge, masterName(w, port))
	wantVLANs(&d, w, port, g.vlans())
	d.Add(resource.IgnoresRA(w.Host, l.Name))
	return d.Err()
}

// Ranges sorts VLANs and joins ranges that overlap or are adjacent. It leaves out the native VLAN.
func Ranges(list []rtnl.PortVLAN, native uint16) (joined []rtnl.PortVLAN) {
	var ids []uint16
	each(list, func(id uint16, _ rtnl.PortVLAN) {
		if id != native {
			ids = append(ids, id)
		}
	})
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		joined = extend(joined, rtnl.PortVLAN{First: id, Last: id})
	}
	return joined
}
