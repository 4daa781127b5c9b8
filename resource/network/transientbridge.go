package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/spec"
)

// TransientBridgeKind returns the Kind of TransientBridge. A bridge that others use stays. GC also removes unused
// bridges that carry the network's mark.
func TransientBridgeKind() plan.Kind {
	remove := func(ctx context.Context, w *kernel.World, t plan.Tag, name string) error {
		return TransientBridge{Bridge: link.Bridge{Name: name}, Network: t.Network}.removeEmpty(ctx, w, t.Hash)
	}
	do := resource.RecordFuncs(transientRecord, func(
		ctx context.Context, w *kernel.World, t plan.Tag,
	) error {
		name, known, err := resource.RecordOf[string](w, transientRecord, t)
		if err != nil || !known {
			return err
		}
		if err := remove(ctx, w, t, name); err != nil {
			return err
		}
		return w.Store.Delete(transientRecord, t.Owner)
	}, remove)
	do.Tidy = tidyBridges
	return resource.NewKind("bridge that goes with its last port", do)
}

func tidyBridges(ctx context.Context, w *kernel.World, network string, _ bool) error {
	links, err := rtnl.Links(w.Host)
	errs := []error{err}
	for _, l := range links {
		_, owner, _, ok := identity.ParseTag(l.Alias)
		if l.Kind == "bridge" && ok && owner == identity.OwnerHash(policy.NetworkOwner(network, l.Name)) {
			errs = append(errs, TransientBridge{Bridge: link.Bridge{Name: l.Name}, Network: network}.Remove(ctx, w))
		}
	}
	return errors.Join(errs...)
}

// A TransientBridge is a Bridge that is removed with its last port, if this program has made it. The kernel's list of
// ports counts the users: a port exists from the message that creates it until its container's namespace ends.
//
// Links that another namespace has on the bridge are not counted, except macvlans.
type TransientBridge struct {
	link.Bridge
	Network string     // on whose behalf it goes; its GC takes what DEL could not
	Owner   spec.Owner // who wants it
}

// transientRecord is the record of which bridge an attachment wants to go with its last port.
const transientRecord = "transient"

func (t TransientBridge) String() string { return resource.Line(t.Bridge.String(), "until empty") }

func (t TransientBridge) tag() string { return identity.Tag(policy.NetworkOwner(t.Network, t.Name)) }

// isOwned reports whether a bridge has the address that this program gives to bridges, and no alias of another program.
func (t TransientBridge) isOwned(l *rtnl.Link) bool {
	_, _, _, tagged := identity.ParseTag(l.Alias)
	return bytes.Equal(l.MAC, t.MAC()) && (tagged || l.Alias == "")
}

// Ensure implements plan.Resource. It marks the bridge with a tag for GC, which has no configuration.
func (t TransientBridge) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if err := w.Store.Put(transientRecord, t.Owner, t.Name); err != nil {
		return false, err
	}
	unlock, err := record.Share(ctx, link.BridgeLock(t.Name))
	if err != nil {
		return false, err
	}
	changed, err = t.EnsureUnlocked(w)
	unlock()
	if err != nil && changed {
		return false, errors.Join(err, t.Remove(ctx, w))
	}
	return changed, err
}

// EnsureUnlocked implements link.BridgeMaker. If it fails halfway, changed says whether it has changed anything.
func (t TransientBridge) EnsureUnlocked(w *kernel.World) (changed bool, err error) {
	if changed, err = t.Bridge.EnsureUnlocked(w); err != nil {
		return changed, err
	}
	l, err := resource.Bridge(w, t.Name)
	if err != nil || !t.isOwned(l) || l.Alias != "" {
		return changed, err
	}
	return true, rtnl.SetLink(w.Host, t.Name, rtnl.LinkChange{Alias: t.tag()})
}

// Verify implements plan.Resource.
func (t TransientBridge) Verify(ctx context.Context, w *kernel.World) error {
	var d resource.Drift
	d.Add(t.Bridge.Verify(ctx, w))
	if l, err := resource.Bridge(w, t.Name); err == nil && t.isOwned(l) && l.Alias == "" {
		d.Want("alias", t.tag(), "none")
	}
	return d.Err()
}

// Traits implements resource.Describer.
func (t TransientBridge) Traits() resource.Traits {
	traits := t.Bridge.Traits()
	traits.Fix = t.Ensure
	return traits
}

// Remove implements plan.Remover. If several calls remove their ports at once, the last call finds the bridge empty.
func (t TransientBridge) Remove(ctx context.Context, w *kernel.World) error {
	if err := t.removeEmpty(ctx, w, identity.OwnerHash(t.Owner)); err != nil || t.Owner == (spec.Owner{}) {
		return err
	}
	return w.Store.Delete(transientRecord, t.Owner)
}

// removeEmpty removes the bridge if it has no port. That the owner still has one is an error: its removal has failed,
// and the DEL that removes it needs the record.
func (t TransientBridge) removeEmpty(ctx context.Context, w *kernel.World, owner [8]byte) error {
	if _, removable, err := t.empty(w, owner); err != nil || !removable {
		return err
	}
	unlock, err := record.Lock(ctx, link.BridgeLock(t.Name))
	if err != nil {
		return err
	}
	defer unlock()
	links, removable, err := t.empty(w, owner)
	if err != nil || !removable {
		return err
	}
	var errs []error
	for _, l := range links { // while no attachment can come that wants the policy
		errs = append(errs, policy.ReleaseBridge(ctx, w, t.Network, l.Name, func([8]byte) bool { return false }))
	}
	for _, l := range links {
		addrs, err := rtnl.Addrs(w.Host, l.Index)
		if resource.ExceptNoLink(err) != nil {
			errs = append(errs, err)
			continue
		}
		if err := resource.ExceptNoLink(rtnl.DelLink(w.Host, l.Index)); err != nil {
			errs = append(errs, err)
			continue
		}
		for _, a := range addrs {
			errs = append(errs, addr.Gateway{Link: l.Name, Prefix: a.Prefix}.Forget(w))
		}
	}
	return errors.Join(append(errs, addr.ForgetGateways(w, t.Network, t.Name), policy.SweepStages(ctx, w))...)
}

// empty reports whether the bridge is to go, and with it the links by which the host is in its VLANs, which come first.
// If a removal was killed, there may be no link any more.
func (t TransientBridge) empty(w *kernel.World, owner [8]byte) (links []*rtnl.Link, removable bool, err error) {
	br, err := rtnl.LinkByName(w.Host, t.Name)
	if err != nil {
		return nil, errors.Is(err, rtnl.ErrNoLink), resource.ExceptNoLink(err)
	}
	if br.Kind != "bridge" || !t.isOwned(br) || br.Master != 0 || br.Watchers() > 0 {
		return nil, false, nil
	}
	ports, err := rtnl.Ports(w.Host, br.Index)
	if err != nil {
		return nil, false, err
	}
	removableAt := map[int]bool{br.Index: true}
	for _, p := range ports {
		if _, of, _, tagged := identity.ParseTag(p.Alias); tagged && of == owner {
			return nil, false, fmt.Errorf("bridge %s still has the port %s", t.Name, p.Name)
		}
	}
	for _, p := range ports {
		l, err := t.gateway(w, p)
		if l == nil || l.Master != 0 {
			return nil, false, err
		}
		links, removableAt[l.Index] = append(links, l), true
	}
	all, err := rtnl.Links(w.Host)
	for _, l := range all { // that stand on it, and would go too
		if l.Kind != "veth" && !l.PeerAway && removableAt[l.Peer] {
			return nil, false, err
		}
	}
	if err != nil {
		return nil, false, err
	}
	links = append(links, br)
	for _, l := range links {
		if foreign, err := addr.HasForeignAddr(w, l); err != nil || foreign {
			return nil, false, err
		}
	}
	return links, true, nil
}

// gateway is the host's end of a VLANGateway whose other end is a port, or nil.
func (t TransientBridge) gateway(w *kernel.World, port *rtnl.Link) (*rtnl.Link, error) {
	if port.Kind != "veth" || port.PeerAway {
		return nil, nil
	}
	l, err := rtnl.LinkByIndex(w.Host, port.Peer)
	if err != nil {
		return nil, resource.ExceptNoLink(err)
	}
	if !strings.HasPrefix(l.Name, t.Name+".") || port.Name != link.GatewayPort(l.Name) {
		return nil, nil
	}
	return l, nil
}
