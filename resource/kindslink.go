package resource

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// VethKind is the Kind of Veth. Bridge is that of the configuration, if any: a pair that the reference's plugin made, which
// carries no mark, is this attachment's only if it is a port of that.
type VethKind struct{ Bridge string }

// Name implements plan.Kind.
func (VethKind) Name() string { return "veth pair" }

// Owners implements plan.Kind.
func (VethKind) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	return hostLinks(w, network, "veth")
}

// Remove implements plan.Kind.
func (k VethKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	return removeHostLinks(w, tags, func(t plan.Tag) error {
		v := Veth{Owner: t.Owner, Name: t.Owner.IfName, Host: kernel.LinkName("veth", t.Owner), Master: k.Bridge}
		return v.Remove(ctx, w)
	})
}

// Tidy implements plan.Tidier.
func (VethKind) Tidy(_ context.Context, w *kernel.World, network string, _ bool) error {
	return emptyDoomed(w, network, nil)
}

// IFBKind is the Kind of IFB.
type IFBKind struct{}

// Name implements plan.Kind.
func (IFBKind) Name() string { return "ifb" }

// Owners implements plan.Kind.
func (IFBKind) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	return hostLinks(w, network, "ifb")
}

// Remove implements plan.Kind.
func (IFBKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	return removeHostLinks(w, tags, func(t plan.Tag) error {
		return errors.Join(IFB{Owner: t.Owner, Where: Host}.Remove(ctx, w), lives(IFB{Owner: t.Owner}.Remove(ctx, w)))
	})
}

// hostLinks lists whose links of a type the network has on the host, by their group. A link that was made and not yet tagged when
// its maker was killed is known by its name, and where that was chosen by its address.
//
// Whoever is root in a container may put any group and any alias on a device of the host that is lent to it. So nothing
// counts that is not of a kind that we make on the host, and without a tag nothing that has not a name that we give.
func hostLinks(w *kernel.World, network, kind string) (tags []plan.Tag, err error) {
	links, err := w.Host.Links()
	if err != nil {
		return nil, err
	}
	names, err := decoded[string](w.Memory.Records(hostNameRecord, network))
	if err != nil {
		return nil, err
	}
	chosen := slices.Collect(maps.Values(names))
	group, doomed := kernel.LinkGroup(network), doomedGroup(network)
	for _, l := range links {
		hash, owner, _, tagged := kernel.ParseTag(l.Alias)
		switch {
		case l.Kind != kind || l.Group != group && l.Group != doomed:
		case tagged && hash == kernel.NetworkHash(network):
			tags = append(tags, plan.Tag{Network: network, Hash: owner, Found: l})
		case !tagged && (derivedName(l) || slices.Contains(chosen, l.Name)):
			tags = append(tags, plan.Tag{Network: network, Found: l, Could: func(o spec.Owner) bool {
				prefix := max(len(l.Name)-11, 0)
				return kernel.LinkName(l.Name[:prefix], o) == l.Name || bytes.Equal(l.MAC, kernel.MAC("host", o))
			}})
		}
	}
	return tags, nil
}

// removeHostLinks removes one by one what DEL asks for, and all at once what GC has found: deleting a link takes the kernel a
// grace period, and deleting a group takes it one too. So what is to go is moved into a group of its own.
func removeHostLinks(w *kernel.World, tags []plan.Tag, one func(plan.Tag) error) error {
	if len(tags) == 0 || tags[0].Known() {
		return forEach(w, "", tags, one)
	}
	doomed := doomedGroup(tags[0].Network)
	if err := emptyDoomed(w, tags[0].Network, tags); err != nil {
		return err
	}
	var errs []error
	for _, t := range tags {
		l := t.Found.(*kernel.Link)
		if l.Group != doomed {
			errs = append(errs, gone(w.Host.MoveLink(l.Index, kernel.Move{Group: &doomed})))
		}
		if t.Could == nil {
			errs = append(errs, w.Memory.ForgetOf(hostNameRecord, t.Network, t.Hash))
		}
	}
	return errors.Join(append(errs, w.Host.DelGroup(doomed))...)
}

// emptyDoomed takes out of a network's group of links that are to go what is there and not among the tags: what a GC that was killed
// left, and what a container's root put there.
func emptyDoomed(w *kernel.World, network string, tags []plan.Tag) error {
	links, err := w.Host.Links()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		if l.Group != doomedGroup(network) || slices.ContainsFunc(tags, func(t plan.Tag) bool { return t.Found.(*kernel.Link).Index == l.Index }) {
			continue
		}
		var to uint32
		if l.Kind == "veth" || l.Kind == "ifb" {
			to = kernel.LinkGroup(network)
		}
		errs = append(errs, gone(w.Host.MoveLink(l.Index, kernel.Move{Group: &to})))
	}
	return errors.Join(errs...)
}

// derivedName reports whether a link has such a name as kernel.LinkName gives to its kind.
func derivedName(l *kernel.Link) bool {
	hash, ok := strings.CutPrefix(l.Name, l.Kind)
	return ok && len(hash) == 11 && strings.Trim(hash, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

func doomedGroup(network string) uint32 { return kernel.LinkGroup(network) ^ 1<<24 }

// ContainerLink is the Kind of a link that was made in the container, of a type of ip(8): macvlan, ipvlan, vlan, dummy, tun.
type ContainerLink string

// Name implements plan.Kind.
func (k ContainerLink) Name() string { return string(k) + " interface" }

// Owners implements plan.Kind. An ADD that was killed has written no link down, and that the namespace was entered.
func (k ContainerLink) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	made, err := decoded[Made](w.Memory.Records(MadeRecord, network))
	links, lerr := decoded[madeLink](w.Memory.Records(linkRecord, network))
	var tags []plan.Tag
	for hash, m := range made {
		if l, known := links[hash]; m.Path != "" && (!known || l.Kind == string(k)) {
			tags = append(tags, plan.Tag{Network: network, Hash: hash, Found: m})
		}
	}
	for hash, l := range links {
		if m, known := made[hash]; l.Kind == string(k) && (!known || m.Path == "") {
			tags = append(tags, plan.Tag{Network: network, Hash: hash})
		}
	}
	return tags, errors.Join(err, lerr)
}

// Remove implements plan.Kind.
func (k ContainerLink) Remove(_ context.Context, w *kernel.World, tags ...plan.Tag) error {
	return forEach(w, linkRecord, tags, func(t plan.Tag) error {
		if t.Known() {
			return removeOwn(w, t.Owner, t.Owner.IfName, string(k))
		}
		m, _ := t.Found.(Made)
		if m.Path == "" { // gone with its namespace
			return nil
		}
		ns, err := m.open()
		if ns == nil || err != nil {
			return err
		}
		defer ns.Close()
		made, err := recallLink(w, m.Owner, ns)
		if err != nil {
			return err
		}
		links, err := ownLinks(w, ns, made, t.Hash, func(l *kernel.Link) bool {
			return l.Name == m.Owner.IfName && (derived(l, m.Owner) || l.Group == kernel.LinkGroup(t.Network))
		}, string(k))
		return errors.Join(err, deleteAll(ns, links))
	})
}
