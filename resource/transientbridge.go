package resource

import (
	"bytes"
	"context"
	"errors"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A TransientBridge is a Bridge that goes with its last port, if it is one that we made. The kernel's list of its ports is
// the count of who uses it: a port is there from the creating message on, and gone when its container's namespace is.
//
// Not seen is what another namespace has on the bridge, but for a macvlan.
type TransientBridge struct {
	Bridge
	Network string     // on whose behalf it goes; its GC takes what DEL could not
	Owner   spec.Owner // who wants it
}

// transientRecord is the Memory of which bridge an attachment wants to go with its last port.
const transientRecord = "transient"

func (t TransientBridge) String() string { return line(t.Bridge.String(), "until empty") }

func (t TransientBridge) tag() string { return kernel.Tag(networkOwner(t.Network, t.Name)) }

// ours reports whether a bridge has the address that we make bridges with, and nobody else's words on it.
func (t TransientBridge) ours(l *kernel.Link) bool {
	_, _, _, tagged := kernel.ParseTag(l.Alias)
	return bytes.Equal(l.MAC, t.mac()) && (tagged || l.Alias == "")
}

// Ensure implements plan.Resource. The tag is for GC, which has no configuration to go by.
func (t TransientBridge) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if err := w.Memory.Remember(transientRecord, t.Owner, t.Name); err != nil {
		return false, err
	}
	unlock, err := kernel.Share(ctx, bridgeLock(t.Name))
	if err != nil {
		return false, err
	}
	changed, err = t.ensure(w)
	unlock()
	if err != nil && changed {
		return false, errors.Join(err, t.Remove(ctx, w))
	}
	return changed, err
}

// ensure leaves on an error what it has changed, and says so.
func (t TransientBridge) ensure(w *kernel.World) (changed bool, err error) {
	if changed, err = t.Bridge.ensure(w); err != nil {
		return changed, err
	}
	l, err := bridge(w, t.Name)
	if err != nil || !t.ours(l) || l.Alias != "" {
		return changed, err
	}
	return true, w.Host.SetLink(t.Name, kernel.LinkChange{Alias: t.tag()})
}

// Verify implements plan.Resource.
func (t TransientBridge) Verify(ctx context.Context, w *kernel.World) error {
	var d drift
	d.add(t.Bridge.Verify(ctx, w))
	if l, err := bridge(w, t.Name); err == nil && t.ours(l) && l.Alias == "" {
		d.want("alias", t.tag(), "none")
	}
	return d.err()
}

// Mend implements Mender.
func (t TransientBridge) Mend(ctx context.Context, w *kernel.World) (bool, error) {
	return t.Ensure(ctx, w)
}

// Remove implements plan.Remover. Of several who remove their ports at once, the one who is last finds it empty.
func (t TransientBridge) Remove(ctx context.Context, w *kernel.World) error {
	if err := t.removeEmpty(ctx, w); err != nil || t.Owner == (spec.Owner{}) {
		return err
	}
	return w.Memory.Forget(transientRecord, t.Owner)
}

func (t TransientBridge) removeEmpty(ctx context.Context, w *kernel.World) error {
	if _, doomed, err := t.empty(w); err != nil || !doomed {
		return err
	}
	unlock, err := kernel.Lock(ctx, bridgeLock(t.Name))
	if err != nil {
		return err
	}
	defer unlock()
	links, doomed, err := t.empty(w)
	if err != nil || !doomed {
		return err
	}
	var errs []error
	for _, l := range links { // while nobody can come who wants the policy
		errs = append(errs, lift(ctx, w, t.Network, l.Name, func([8]byte) bool { return false }))
	}
	for _, l := range links {
		addrs, err := w.Host.Addrs(l.Index)
		if err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, err)
			continue
		}
		if err := gone(w.Host.DelLink(l.Index)); err != nil {
			errs = append(errs, err)
			continue
		}
		for _, a := range addrs {
			errs = append(errs, Gateway{Link: l.Name, Prefix: a.Prefix}.forget(w))
		}
	}
	return errors.Join(append(errs, SweepStages(ctx, w))...)
}

// empty reports whether the bridge is to go, and with it the links by which the host is in its VLANs, which come first.
func (t TransientBridge) empty(w *kernel.World) (links []*kernel.Link, doomed bool, err error) {
	br, err := w.Host.Link(t.Name)
	if err != nil {
		return nil, false, gone(err)
	}
	if br.Kind != "bridge" || !t.ours(br) || br.Master != 0 || br.Watchers() > 0 {
		return nil, false, nil
	}
	ports, err := w.Host.Ports(br.Index)
	if err != nil {
		return nil, false, err
	}
	doomedAt := map[int]bool{br.Index: true}
	for _, p := range ports {
		l, err := t.gateway(w, p)
		if l == nil || l.Master != 0 {
			return nil, false, err
		}
		links, doomedAt[l.Index] = append(links, l), true
	}
	all, err := w.Host.Links()
	for _, l := range all { // that stand on it, and would go too
		if l.Kind != "veth" && !l.PeerAway && doomedAt[l.Peer] {
			return nil, false, err
		}
	}
	if err != nil {
		return nil, false, err
	}
	links = append(links, br)
	for _, l := range links {
		if foreign, err := hasForeignAddr(w, l); err != nil || foreign {
			return nil, false, err
		}
	}
	return links, true, nil
}

// gateway is the host's end of a VLANGateway whose other end is a port, or nil.
func (t TransientBridge) gateway(w *kernel.World, port *kernel.Link) (*kernel.Link, error) {
	if port.Kind != "veth" || port.PeerAway {
		return nil, nil
	}
	l, err := w.Host.LinkAt(port.Peer)
	if err != nil {
		return nil, gone(err)
	}
	if !strings.HasPrefix(l.Name, t.Name+".") || port.Name != gatewayPort(l.Name) {
		return nil, nil
	}
	return l, nil
}

func bridgeLock(name string) string { return "bridge-" + name }

// plug runs do, which makes a port, with a bridge that does not go meanwhile. One that has gone since it was ensured is
// made anew where the caller says how.
func plug(ctx context.Context, w *kernel.World, name string, anew plan.Resource, do func(br *kernel.Link) error) error {
	unlock, err := kernel.Share(ctx, bridgeLock(name))
	if err != nil {
		return err
	}
	defer unlock()
	br, err := bridge(w, name)
	// Not by its Ensure, which has the lock alone while it takes back what failed.
	maker, ok := plan.Unwrap(anew).(interface {
		ensure(*kernel.World) (bool, error)
	})
	if ok && (errors.Is(err, kernel.ErrNoLink) || err == nil && !br.Up) { // or somebody else is just making it
		if _, err := maker.ensure(w); err != nil {
			return err
		}
		br, err = bridge(w, name)
	}
	if err != nil {
		return err
	}
	return do(br)
}
