package addr

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Gateway is an address that a bridge has as the gateway of its containers. The gateways of one network may be on a
// bridge together. Another address in the place of a Gateway is a conflict: any other IPv4 address, or an IPv6 address
// of an overlapping subnet.
type Gateway struct {
	Owner   spec.Owner // the attachment
	Link    string
	Prefix  netip.Prefix
	Network []netip.Prefix // the gateways in the configuration of the owner's network
	Force   bool           // replace what is in its place
}

func (g Gateway) String() string {
	return resource.Line("addr", "host/"+g.Link, g.Prefix.String(), "as gateway", resource.Flag("force", g.Force))
}

// Ensure implements plan.Resource. It reports whether it has added the address, which Remove undoes.
func (g Gateway) Ensure(_ context.Context, w *kernel.World) (added bool, err error) {
	added, _, err = g.ensure(w)
	return added, err
}

func (g Gateway) fix(_ context.Context, w *kernel.World) (changed bool, err error) {
	added, set, err := g.ensure(w)
	return added || set, err
}

// ensure reports whether it has added the address, and whether it has set a sysctl.
func (g Gateway) ensure(w *kernel.World) (added, set bool, err error) {
	index, on, err := g.look(w)
	if err != nil {
		return false, false, err
	}
	if len(on.conflicts) > 0 && !g.Force && !on.own {
		return false, false, g.conflict(w, on.conflicts[0].Prefix)
	}
	if set, err = g.setSeveral(w, on); err != nil {
		return false, set, err
	}
	if on.own && (len(on.conflicts) == 0 || !g.Force) {
		routed, err := g.restoreRoute(w, index)
		return false, set || routed, err
	}
	added, err = g.place(w, index, on)
	return added, set, err
}

// place adds the address and removes what is in its place.
func (g Gateway) place(w *kernel.World, index int, on linkAddrs) (bool, error) {
	if !on.own {
		if err := errors.Join(spareRouters(w, g.Link, g.Prefix), warnOfOverlap(w, g.Link, g.Prefix)); err != nil {
			return false, err
		}
	}
	// The old one goes first: as the first of its subnet it would take the new one with it.
	for i, c := range on.conflicts {
		if err := rtnl.DelAddr(w.Host, index, c); err != nil {
			return false, errors.Join(err, g.restore(w, index, on.conflicts[:i]))
		}
	}
	if err := g.add(w, index); err != nil {
		return false, errors.Join(err, g.restore(w, index, on.conflicts))
	}
	return true, nil
}

// add gives the link the address, and remembers that.
func (g Gateway) add(w *kernel.World, index int) error {
	if err := g.remember(w, index); err != nil {
		return err
	}
	// Not asking whether another host has it: on a bridge without a port that takes until there is one, and
	// the first container's first packet would find no gateway.
	err := rtnl.AddAddr(w.Host, index, rtnl.Addr{Prefix: g.Prefix, NoDAD: g.Prefix.Addr().Is6()})
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// several returns the settings of a link with several IPv4 gateways. The host leads packets from one of their subnets
// to another out by the link that they came in by, and would tell the containers to send them past the host. If one of
// two addresses of a subnet goes, the other stays. Redirects are sent unless both settings are 0; for other links their
// own setting counts from then on, which is 1 unless it was changed.
func (g Gateway) several() []procsys.Setting {
	return []procsys.Setting{
		{Key: "net/ipv4/conf/" + g.Link + "/promote_secondaries", Value: "1"},
		{Key: "net/ipv4/conf/" + g.Link + "/send_redirects", Value: "0"},
		{Key: "net/ipv4/conf/all/send_redirects", Value: "0"},
	}
}

func (g Gateway) setSeveral(w *kernel.World, on linkAddrs) (changed bool, err error) {
	if !g.Prefix.Addr().Is4() || len(on.siblings) == 0 {
		return false, nil
	}
	return procsys.Set(w.Host, g.several()...)
}

// GatewayRecord is the name of the record of gateway addresses that this program has added. The kernel keeps no mark
// on an address. The record belongs to no network, because networks may share a bridge.
const GatewayRecord = "gateway"

func (g Gateway) record() spec.Owner {
	return spec.Owner{ContainerID: g.Prefix.String(), IfName: g.Link}
}

// counted is the content of the record if each attachment that needs the address has a GatewayUse. Earlier versions
// recorded the link alone. A link that was made anew has another index: an address on it is not ours.
func (g Gateway) counted(index int) string {
	return fmt.Sprintf("%v dev %s index %d", g.Prefix, g.Link, index)
}

// remember comes before the address, so that a kill in between leaves none of ours that is not known.
func (g Gateway) remember(w *kernel.World, index int) error {
	return w.Store.Put(GatewayRecord, g.record(), g.counted(index))
}

// made reports whether a Gateway gave the link with that index the address, and whether it is known who needs it.
func (g Gateway) made(w *kernel.World, index int) (made, counted bool, err error) {
	var content string
	made, err = w.Store.Get(GatewayRecord, g.record(), &content)
	return made, content == g.counted(index), err
}

// Forget deletes the record of an address that is gone.
func (g Gateway) Forget(w *kernel.World) error { return w.Store.Delete(GatewayRecord, g.record()) }

// Remove implements plan.Remover, for an ADD that fails after it has added the address. The address stays if another
// attachment, or the configuration of another network, needs it. One that may have replaced another stays, too.
func (g Gateway) Remove(_ context.Context, w *kernel.World) error {
	if g.Force {
		return nil
	}
	return g.release(w, identity.OwnerHash(g.Owner), identity.OwnerHash(networkOn(g.Owner.Network, g.Link)))
}

// release takes the address from the link unless an owner other than these needs it. Calls that begin to need it
// record that before they look for the address: so it is enough to ask again afterwards.
func (g Gateway) release(w *kernel.World, but ...[8]byte) error {
	if needed, err := g.needed(w, but...); needed || err != nil {
		return err
	}
	index, err := rtnl.IndexOf(w.Host, g.Link)
	if errors.Is(err, rtnl.ErrNoLink) {
		return g.Forget(w)
	}
	if err != nil {
		return err
	}
	if _, counted, err := g.made(w, index); !counted || err != nil {
		return err
	}
	if err := rtnl.DelAddr(w.Host, index, rtnl.Addr{Prefix: g.Prefix}); err != nil {
		return err
	}
	needed, err := g.needed(w, but...)
	if needed {
		return g.add(w, index)
	}
	return errors.Join(err, g.Forget(w))
}

// HasForeignAddr reports whether a link has an address that neither a Gateway nor the kernel has given it.
func HasForeignAddr(w *kernel.World, l *rtnl.Link) (bool, error) {
	addrs, err := rtnl.Addrs(w.Host, l.Index)
	if err != nil {
		return false, resource.ExceptNoLink(err) // another process was faster
	}
	for _, a := range addrs {
		if resource.OwnLinkLocal(w.Host, l, a.Prefix) {
			continue
		}
		if made, _, err := (Gateway{Link: l.Name, Prefix: a.Prefix}).made(w, l.Index); err != nil || !made {
			return true, err
		}
	}
	return false, nil
}

func (g Gateway) restore(w *kernel.World, index int, list []rtnl.Addr) error {
	var errs []error
	for _, a := range list {
		errs = append(errs, rtnl.AddAddr(w.Host, index, a))
	}
	return errors.Join(errs...)
}

// linkAddrs are the addresses of a link, as a Gateway sees them.
type linkAddrs struct {
	own       bool        // its own is among them
	siblings  []rtnl.Addr // other gateways of its network, which would be conflicts if they were another network's
	conflicts []rtnl.Addr // what is in its place
}

// look returns the link's index and its addresses.
func (g Gateway) look(w *kernel.World) (index int, on linkAddrs, err error) {
	if index, err = rtnl.IndexOf(w.Host, g.Link); err != nil {
		return index, on, err
	}
	list, err := rtnl.Addrs(w.Host, index)
	if err != nil {
		return index, on, err
	}
	for _, a := range list {
		if a.Prefix == g.Prefix {
			on.own = true
			continue
		}
		if !g.rivals(a.Prefix) {
			continue
		}
		sibling, err := g.sibling(w, index, a.Prefix)
		if err != nil {
			return index, on, err
		}
		if sibling {
			on.siblings = append(on.siblings, a)
		} else {
			on.conflicts = append(on.conflicts, a)
		}
	}
	return index, on, nil
}

// rivals reports whether an address is in the gateway's place, if it is another network's.
func (g Gateway) rivals(p netip.Prefix) bool {
	a := p.Addr()
	if a.Is4() != g.Prefix.Addr().Is4() || a.Is6() && a.IsLinkLocalUnicast() {
		return false
	}
	return a.Is4() || p.Masked().Overlaps(g.Prefix.Masked())
}

// sibling reports whether an address is a gateway of the same network: of its configuration, of an attachment that was
// made with an earlier one, or of an earlier one alone.
func (g Gateway) sibling(w *kernel.World, index int, p netip.Prefix) (bool, error) {
	if slices.Contains(g.Network, p) || g.Owner.Network == "" {
		return slices.Contains(g.Network, p), nil
	}
	other := Gateway{Owner: g.Owner, Link: g.Link, Prefix: p}
	used, err := other.usedIn(w, g.Owner.Network)
	if used || err != nil {
		return used, err
	}
	return other.outdated(w, index)
}

// conflict is the error for another address in the gateway's place. No advice removes what another network needs.
func (g Gateway) conflict(w *kernel.World, a netip.Prefix) error {
	needed, err := Gateway{Link: g.Link, Prefix: a}.needed(w)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s already has %v, and its gateway is to be %v", g.Link, a, g.Prefix)
	if needed {
		return fmt.Errorf("%s: %v is the gateway of another network, so give this one a bridge or a VLAN of its own",
			text, a.Addr())
	}
	return fmt.Errorf("%s: either configure %v, or, if nothing else needs %v, run `ip addr del %v dev %s` or set "+
		"forceAddress to replace it", text, a.Masked(), a.Addr(), a, g.Link)
}

// restoreRoute adds the route to the gateway's subnet, as the kernel would with the address, if the link lacks it.
func (g Gateway) restoreRoute(w *kernel.World, index int) (added bool, err error) {
	missing, instead, err := rtnl.LacksSubnetRoute(w.Host, index, g.Prefix)
	if err != nil || !missing || instead != nil {
		return false, err
	}
	r := rtnl.Route{Dst: g.Prefix.Masked(), Link: index, Table: rtnl.MainTable, Protocol: rtnl.ByKernel}
	if g.Prefix.Addr().Is4() {
		r.Src, r.Scope = g.Prefix.Addr(), rtnl.ScopeLink
	} else {
		r.Priority = 256
	}
	vrf, err := resource.VRFOf(w.Host, index)
	if err != nil {
		return false, err
	}
	if vrf != nil {
		r.Table = int(vrf.Data.Table)
	}
	err = rtnl.AddRoute(w.Host, r, true)
	if errors.Is(err, fs.ErrExist) { // another call was faster
		return false, nil
	}
	return err == nil, err
}

// free is Free of its Traits.
func (g Gateway) free(w *kernel.World) error {
	_, on, err := g.look(w)
	switch {
	case resource.ExceptNoLink(err) != nil || on.own:
		return resource.ExceptNoLink(err)
	case len(on.conflicts) > 0 && !g.Force:
		return g.conflict(w, on.conflicts[0].Prefix)
	}
	return spareRouters(w, g.Link, g.Prefix)
}

// Verify implements plan.Resource.
func (g Gateway) Verify(ctx context.Context, w *kernel.World) error {
	index, on, err := g.look(w)
	if err != nil {
		return err
	}
	var d resource.Drift
	switch {
	case on.own:
		if err := g.routed(w, index, &d); err != nil {
			return err
		}
	case len(on.conflicts) > 0:
		d.Add(spec.Missing("").Saying(fmt.Errorf("is missing; %s has %v", g.Link, on.conflicts[0].Prefix)))
	default:
		d.Add(spec.Missing(""))
	}
	if g.Prefix.Addr().Is4() && len(on.siblings) > 0 {
		for _, s := range g.several() {
			v, err := procsys.Get(w.Host, s.Key)
			if err != nil {
				return err
			}
			d.Want("sysctl "+s.Key, s.Value, v)
		}
	}
	return d.Err()
}

// routed compares the route to the gateway's subnet. Another one in its place was made by another program, and stays.
func (g Gateway) routed(w *kernel.World, index int, d *resource.Drift) error {
	missing, instead, err := rtnl.LacksSubnetRoute(w.Host, index, g.Prefix)
	if err != nil || !missing {
		return err
	}
	is := spec.Difference{Field: "route", Want: g.Prefix.Masked().String(), Got: spec.Absent}
	is.Text = fmt.Sprintf("route %s dev %s is missing", is.Want, g.Link)
	if instead != nil {
		is.Got, is.Repair = instead.Leads(w.Host), spec.ByHand
		is.Text += ": the route to the subnet leads " + is.Got
	}
	d.Add(is)
	return nil
}

// Traits implements resource.Describer.
func (g Gateway) Traits() resource.Traits {
	return resource.Traits{
		On:       resource.Iface{Where: resource.Host, Name: g.Link},
		Network:  resource.Network{Gateway: true},
		Fix:      g.fix,
		Free:     g.free,
		Overlaps: func(w *kernel.World) error { return warnOfOverlap(w, g.Link, g.Prefix) },
	}
}
