package link

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// VethKind returns the Kind of Veth. Bridge is the bridge of the configuration, or "". A veth pair of the reference's
// plugin carries no mark, so it belongs to the attachment only if it is a port of that bridge.
func VethKind(bridge string) plan.Kind {
	return HostLinkKind("veth pair", "veth", func(ctx context.Context, w *kernel.World, o spec.Owner) error {
		return Veth{Owner: o, Name: o.IfName, Host: identity.LinkName("veth", o), Master: bridge}.Remove(ctx, w)
	})
}

// HostLinkKind returns the Kind of links on the host of one type, as named by ip(8).
func HostLinkKind(name, kind string, remove func(context.Context, *kernel.World, spec.Owner) error) plan.Kind {
	return resource.NewKind(name, resource.KindFuncs{
		Owners: func(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
			return hostLinks(w, network, kind)
		},
		Remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error { return remove(ctx, w, t.Owner) },
		Found:  func(_ context.Context, w *kernel.World, tags []plan.Tag) error { return removeHostLinks(w, tags) },
		Tidy: func(_ context.Context, w *kernel.World, network string, _ bool) error {
			return emptyDeletionGroup(w, network, nil)
		}})
}

// hostLinks returns the owners of the network's links of a type on the host, by the link group, and those whose link is
// gone and its chosen name still recorded. A link whose creator was killed before it set the tag is recognized by its
// name, or by its address if the name was chosen.
//
// Root in a container may set any group and alias on a device of the host that is lent to it. So hostLinks accepts
// only kinds of links that this program makes on the host, and without a tag only names that it gives.
func hostLinks(w *kernel.World, network, kind string) (tags []plan.Tag, err error) {
	links, err := rtnl.Links(w.Host)
	if err != nil {
		return nil, err
	}
	names, err := resource.DecodeRecords[string](w.Store.Records(hostNameRecord, network))
	if err != nil {
		return nil, err
	}
	chosen := slices.Collect(maps.Values(names))
	group, deletion := identity.LinkGroup(network), deletionGroup(network)
	for _, l := range links {
		hash, owner, _, tagged := identity.ParseTag(l.Alias)
		switch {
		case l.Kind != kind || l.Group != group && l.Group != deletion:
		case tagged && hash == identity.NetworkHash(network):
			tags = append(tags, plan.Tag{Network: network, Hash: owner, Found: l})
		case !tagged && (derivedName(l) || slices.Contains(chosen, l.Name)):
			tags = append(tags, plan.Tag{Network: network, Found: l, Could: func(o spec.Owner) bool {
				prefix := max(len(l.Name)-11, 0)
				return identity.LinkName(l.Name[:prefix], o) == l.Name || bytes.Equal(l.MAC, identity.MAC("host", o))
			}})
		}
	}
	if kind != "veth" { // the only one whose name can be chosen
		return tags, nil
	}
	for hash := range names {
		if !slices.ContainsFunc(tags, func(t plan.Tag) bool { return t.Hash == hash }) {
			tags = append(tags, plan.Tag{Network: network, Hash: hash})
		}
	}
	return tags, nil
}

// removeHostLinks removes several links together, because the kernel needs one grace period for a link as for a
// group. It first moves the links into a group of their own.
func removeHostLinks(w *kernel.World, tags []plan.Tag) error {
	deletion := deletionGroup(tags[0].Network)
	if err := emptyDeletionGroup(w, tags[0].Network, tags); err != nil {
		return err
	}
	var errs []error
	for _, t := range tags {
		l, there := t.Found.(*rtnl.Link)
		if there && l.Group != deletion {
			err := rtnl.MoveLink(w.Host, l.Index, rtnl.LinkChange{Group: &deletion})
			errs = append(errs, resource.ExceptNoLink(err))
		}
		if t.Could == nil {
			errs = append(errs, w.Store.DeleteOf(hostNameRecord, t.Network, t.Hash))
		}
	}
	return errors.Join(append(errs, rtnl.DelGroup(w.Host, deletion))...)
}

// emptyDeletionGroup moves links that are not among the tags out of the group for deletion. A killed GC may have left
// them there, or root in a container may have put them there.
func emptyDeletionGroup(w *kernel.World, network string, tags []plan.Tag) error {
	links, err := rtnl.Links(w.Host)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		is := func(t plan.Tag) bool { tl, there := t.Found.(*rtnl.Link); return there && tl.Index == l.Index }
		if l.Group != deletionGroup(network) || slices.ContainsFunc(tags, is) {
			continue
		}
		var to uint32
		if l.Kind == "veth" || l.Kind == "ifb" {
			to = identity.LinkGroup(network)
		}
		errs = append(errs, resource.ExceptNoLink(rtnl.MoveLink(w.Host, l.Index, rtnl.LinkChange{Group: &to})))
	}
	return errors.Join(errs...)
}

// derivedName reports whether a link has such a name as identity.LinkName gives to its kind.
func derivedName(l *rtnl.Link) bool {
	hash, ok := strings.CutPrefix(l.Name, l.Kind)
	return ok && len(hash) == 11 && strings.Trim(hash, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

func deletionGroup(network string) uint32 { return identity.LinkGroup(network) ^ 1<<24 }

// ContainerLink returns the Kind of a link that was made in the container. DEL removes only a link of one type, as
// named by ip(8). GC has one Kind for all types, so that it enters each container only once.
func ContainerLink(kind string) plan.Kind {
	return resource.NewKind("interface in the container", resource.KindFuncs{
		Owners: func(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
			return containerLinks(w, network)
		},
		Remove: func(_ context.Context, w *kernel.World, t plan.Tag) error {
			if t.Known() {
				return removeOwn(w, t.Owner, t.Owner.IfName, kind)
			}
			if err := removeContained(w, t); err != nil {
				return err
			}
			return w.Store.DeleteOf(linkRecord, t.Network, t.Hash)
		}})
}

// containerLinks returns the attachments that may have links in containers. An ADD that was killed may have recorded
// only that it entered the namespace, and no link.
func containerLinks(w *kernel.World, network string) (tags []plan.Tag, err error) {
	made, err := resource.DecodeRecords[resource.Made](w.Store.Records(resource.MadeRecord, network))
	links, lerr := resource.DecodeRecords[madeLink](w.Store.Records(linkRecord, network))
	for hash, m := range made {
		if m.Path != "" {
			tags = append(tags, plan.Tag{Network: network, Hash: hash, Found: m})
		}
	}
	for hash := range links {
		if m, known := made[hash]; !known || m.Path == "" {
			tags = append(tags, plan.Tag{Network: network, Hash: hash})
		}
	}
	return tags, errors.Join(err, lerr)
}

// removeContained removes an attachment's links from its container, if that lives.
func removeContained(w *kernel.World, t plan.Tag) error {
	m, _ := t.Found.(resource.Made)
	if m.Path == "" { // gone with its namespace
		return nil
	}
	ns, err := m.Open()
	if ns == nil || err != nil {
		return err
	}
	defer ns.Close()
	made, err := recallLink(w, m.Owner, ns)
	if err != nil {
		return err
	}
	links, err := ownLinks(w, ns, made, t.Hash, func(l *rtnl.Link) bool {
		return l.Name == m.Owner.IfName && (derived(l, m.Owner) || l.Group == identity.LinkGroup(t.Network))
	}, contained()...)
	return errors.Join(err, deleteAll(ns, links), made.removeMoved(w, ns, links))
}
