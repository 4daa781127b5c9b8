package policy

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/conntrack"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/filter"
)

// A portEdit is the change that an isolated port needs: its own elements, and those of the container's other
// attachments.
//
// A pair of a port and an address belongs to the attachment that has the address. So the address goes with all its
// pairs. A pair that outlives its port allows nothing, because the name of a port belongs to one container.
type portEdit struct {
	port IsolatedPort
	have []filter.Entry
	want []nft.Elem
	at   filter.State
	more []sibling
}

// A sibling is another attachment of the same container.
type sibling struct {
	owner [8]byte
	have  []filter.Entry
	lacks []nft.Elem // pairs of its addresses with the port of the new attachment
}

// edit reads what the port and the container's other attachments have.
func (p IsolatedPort) edit(f filter.Tx, l *rtnl.Link, dropsAll bool) (e portEdit, err error) {
	e = portEdit{port: p}
	me := identity.OwnerHash(p.Owner)
	if e.have, err = f.Entries(me, filter.KindIsolatedPort); err != nil || l == nil {
		return e, err
	}
	sets := filter.PortAddressSetsOf(f.Table)
	elem := func(set *nft.Set, key ...any) { e.want = append(e.want, filter.Owned(p.Owner, set, key...)) }
	elem(sets.Guarded, l.Name)
	if dropsAll {
		elem(filter.IsolatedPorts(f.Table), l.Name)
	}
	elem(sets.Containers, identity.ContainerHash(p.Owner.ContainerID))
	container := e.want[len(e.want)-1]
	for _, a := range p.Addrs {
		elem(sets.Addresses(a.Is6()), a)
		elem(sets.Pairs(a.Is6()), l.Name, a)
	}
	if e.at, err = f.Current(e.have, e.want); err != nil {
		return e, err
	}
	for _, tag := range e.at.Tags(container) {
		_, owner, _, _ := identity.ParseTag(tag)
		if owner == me {
			continue
		}
		s := sibling{owner: owner}
		if s.have, err = f.Entries(owner, filter.KindIsolatedPort); err != nil {
			return e, err
		}
		ports, addrs := portsAndAddresses(s.have, sets)
		for _, port := range ports {
			for _, a := range p.Addrs {
				elem(sets.Pairs(a.Is6()), port, a)
			}
		}
		for _, a := range addrs {
			pair := nft.Elem{Set: sets.Pairs(a.Is6()), Key: nft.Key(l.Name, a), Comment: tag}
			if !filter.Has(filter.Places(s.have), pair) {
				s.lacks = append(s.lacks, pair)
			}
		}
		e.more = append(e.more, s)
	}
	if len(e.more) > 0 {
		e.at, err = f.Current(e.have, e.allWanted())
	}
	return e, err
}

// allWanted are the elements that the change adds to, of all attachments.
func (e portEdit) allWanted() []nft.Elem {
	all := slices.Clone(e.want)
	for _, s := range e.more {
		all = append(all, s.lacks...)
	}
	return all
}

// portsAndAddresses are those of an attachment, by its entries.
func portsAndAddresses(have []filter.Entry, sets filter.PortAddressSets) (ports []string, addrs []netip.Addr) {
	for _, e := range filter.Places(have) {
		field := nft.Fields(e.Set.Key, e.Key)[0]
		switch e.Set.Name {
		case sets.Guarded.Name:
			ports = append(ports, field.(string))
		case sets.Addresses(false).Name, sets.Addresses(true).Name:
			addrs = append(addrs, field.(netip.Addr))
		}
	}
	return ports, addrs
}

// freshAddresses are the addresses that no attachment had so far, so that any container could use them.
func (e portEdit) freshAddresses(sets filter.PortAddressSets) (list []netip.Addr) {
	for _, a := range e.port.Addrs {
		place := nft.Elem{Set: sets.Addresses(a.Is6()), Key: nft.Key(a)}
		if e.at.At(place) == nil {
			list = append(list, a)
		}
	}
	return list
}

// forgetNew deletes conntrack entries that other containers may have made with the addresses of a new one. A repair is
// about containers that have connections, of which only those that are not translated can be deleted.
func forgetNew(ctx context.Context, w *kernel.World, addrs []netip.Addr) {
	if filter.IsTogether(ctx) {
		var single []netip.Prefix
		for _, a := range addrs {
			single = append(single, filter.Single(a))
		}
		forgetForged(w, single)
		return
	}
	if err := conntrack.ForgetAddresses(w.Host, addrs); err != nil {
		slog.Warn("conntrack keeps connections that were begun with the container's address before the container had "+
			"it, and their replies pass the policy until they end", "error", err)
	}
}

// batch is the transaction of the change.
func (e portEdit) batch(f filter.Tx) *nft.Batch {
	var b nft.Batch
	me := identity.OwnerHash(e.port.Owner)
	f.Replace(&b, me, e.have, e.want, e.at)
	f.Relist(&b, me, filter.KindIsolatedPort, e.have, e.want)
	for _, s := range e.more {
		f.AddFor(&b, s.owner, filter.KindIsolatedPort, s.have, s.lacks, e.at)
	}
	return &b
}

// wantWithStale is want, with recorded pairs whose port is gone: that of another attachment which was detached.
func (e portEdit) wantWithStale() []nft.Elem {
	want := slices.Clone(e.want)
	for _, pair := range filter.Places(e.have) {
		if len(pair.Set.Key) != 2 {
			continue
		}
		a, _ := nft.Fields(pair.Set.Key, pair.Key)[1].(netip.Addr)
		if slices.Contains(e.port.Addrs, a) && !filter.Has(want, pair) {
			pair.Comment = filter.CommentOf(e.port.Owner)
			want = append(want, pair)
		}
	}
	return want
}
