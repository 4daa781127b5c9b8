package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// ReferenceComment returns the comment of the reference's plugins on rules, cut to the 255 bytes of xt_comment.
func ReferenceComment(what string, o spec.Owner) string {
	s := fmt.Sprintf("%sname: %q id: %q", what, o.Network, o.ContainerID)
	return s[:min(len(s), 255)]
}

// ParseReferenceComment is the reverse of ReferenceComment. Names contain only characters that need no escape.
func ParseReferenceComment(what, comment string) (o spec.Owner, ok bool) {
	n, err := fmt.Sscanf(comment, what+"name: %q id: %q", &o.Network, &o.ContainerID)
	return o, err == nil && n == 2
}

// A Record contains the addresses that an attachment's rules are for.
type Record struct {
	ContainerID, IfName string
	Addrs               []netip.Prefix // each with its subnet's length
	Link                int            // index of the host end; 0 is unknown
}

// Has reports whether the rules are for an address.
func (r Record) Has(a netip.Addr) bool {
	return slices.ContainsFunc(r.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}

func remember(w *kernel.World, kind string, o spec.Owner, addrs []netip.Prefix) error {
	r := Record{ContainerID: o.ContainerID, IfName: o.IfName, Addrs: addrs}
	if l, err := resource.HostEnd(w, o.IfName); err != nil {
		return err
	} else if l != nil {
		r.Link = l.Index
	}
	return w.Store.Put(kind, o, r)
}

// Records returns the records of a network's attachments.
func Records(w *kernel.World, kind, network string) (map[[8]byte]Record, error) {
	return resource.DecodeRecords[Record](w.Store.Records(kind, network))
}

// Survivors returns the addresses of the container that belong to other attachments than o. Rules for them stay after
// DEL of o.
func Survivors(w *kernel.World, kind string, o spec.Owner) (addrs []netip.Addr, err error) {
	records, err := Records(w, kind, o.Network)
	for _, r := range records {
		if r.ContainerID == o.ContainerID && r.IfName != o.IfName {
			for _, p := range r.Addrs {
				addrs = append(addrs, p.Addr())
			}
		}
	}
	if err != nil || w.Container == nil {
		return addrs, err
	}
	links, err := rtnl.Links(w.Container)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.Name == o.IfName || l.Name == "lo" {
			continue
		}
		list, err := rtnl.Addrs(w.Container, l.Index)
		if err != nil {
			return nil, err
		}
		for _, a := range list {
			addrs = append(addrs, a.Prefix.Addr())
		}
	}
	return addrs, nil
}

// OwnersByRecord returns the attachments of a network that have iptables rules by our records. Records contain the
// complete owner.
func OwnersByRecord(record string) resource.OwnersFunc {
	return func(_ context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
		records, err := Records(w, record, network)
		for hash, r := range records {
			if o := (spec.Owner{Network: network, ContainerID: r.ContainerID,
				IfName: r.IfName}); identity.OwnerHash(o) == hash {
				tags = append(tags, plan.TagOf(o))
			}
		}
		return tags, err
	}
}
