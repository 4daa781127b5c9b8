// Package fence cuts containers off whose addresses other nodes may have. The kernel does it by itself when the time in the
// grant is over, so that it needs no agent and no etcd then.
package fence

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/filter"
)

// A Fence is that of a network on this node: a table of nf_tables, which stands while the node has ranges of a pool with a
// fence, or containers that lost their addresses.
//
// The table has the node's ranges, and of each pool an element that ends when the grant says. Packets from and to the ranges
// pass while the element stands. All chains are at hooks of IP: containers of one bridge reach each other behind the fence. A
// packet of other addresses costs two lookups, and one of the node's ranges two more.
type Fence struct {
	Network string
	World   *kernel.World

	mu     sync.Mutex
	isGone bool // the table is known to be removed
}

// Table returns the name of the table.
func (f *Fence) Table() string { return "fairlead-fence-" + f.Network }

// Change changes the grant of the network, and has the fence stand before a container can get an address by it.
func (f *Fence) Change(ctx context.Context, file *grant.File, change func(*grant.Grant)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := grant.Grant{}
	if have, err := grant.OfBoot(f.Network); err == nil {
		next = *have
	}
	change(&next)
	if _, err := f.ensure(ctx, &next); err != nil {
		return err
	}
	return file.Change(change)
}

// Mend makes the fence again what the grant says: another program may have removed it, and the clock of the kernel's elements stands
// still while the machine sleeps.
func (f *Fence) Mend(ctx context.Context) (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, err := grant.OfBoot(f.Network)
	if err != nil {
		return false, nil // without a grant, nothing says that a container may be reached again
	}
	return f.ensure(ctx, g)
}

// ensure makes the fence what a grant says. It looks again after each change: if this process was stopped before it, the
// kernel has counted from a later moment.
func (f *Fence) ensure(ctx context.Context, g *grant.Grant) (changed bool, err error) {
	for isNew := true; isNew && err == nil; changed = changed || isNew {
		w := wantedOf(g)
		if len(w.pools) == 0 && len(w.lost) == 0 {
			return changed, f.ensureGone(ctx)
		}
		f.isGone = false
		isNew, err = f.apply(ctx, w)
	}
	if err != nil {
		return changed, fmt.Errorf("cut off in time what others get (table %s of nf_tables): %w", f.Table(), err)
	}
	return changed, nil
}

// ensureGone removes the fence, and looks for it once: nodes without one are not to wait for those who change other tables.
func (f *Fence) ensureGone(ctx context.Context) error {
	if f.isGone {
		return nil
	}
	err := f.Remove(ctx)
	f.isGone = err == nil
	return err
}

// Remove removes the fence. What is not there is success, also in a kernel without nf_tables.
func (f *Fence) Remove(ctx context.Context) error {
	err := filter.Transact(ctx, f.World, f.table(nil), func(tx filter.Tx) error {
		_, exists, err := tx.Handle(tx.Table)
		if err != nil || !exists {
			return err
		}
		var b nft.Batch
		b.DeleteTable(tx.Table)
		return tx.Write(&b)
	})
	if filter.Unavailable(err) {
		return nil
	}
	return err
}

// wanted is what a grant wants cut off.
type wanted struct {
	pools []grant.Pool           // that have a fence, and ranges of the node
	held  []netip.Prefix         // and lost addresses
	until map[netip.Prefix]int64 // by the pools' prefixes
	lost  []netip.Addr
}

func wantedOf(g *grant.Grant) wanted {
	w := wanted{until: map[netip.Prefix]int64{}}
	for _, p := range g.Pools {
		before := len(w.held)
		for r, end := range g.Until {
			if !p.Fenced || !p.Prefix.Contains(r.Addr()) {
				continue
			}
			w.held = append(w.held, r)
			if was, has := w.until[p.Prefix]; !has || end < was {
				w.until[p.Prefix] = end
			}
		}
		if len(w.held) > before {
			w.pools = append(w.pools, p)
		}
	}
	for _, a := range g.Lost {
		if p, ok := g.Of(a); ok && p.Fenced {
			w.lost = append(w.lost, a)
			w.held = append(w.held, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return w
}

// families are IPv4 and IPv6.
var families = []bool{false, true}

func set(t *nft.Table, name string, v6 bool) *nft.Set {
	s := &nft.Set{Table: t, Name: name + "_" + filter.FamilyName(v6), Key: []nft.Type{nft.Addr}}
	if v6 {
		s.Key = []nft.Type{nft.Addr6}
	}
	return s
}

// heldSet returns the set of the node's ranges and of the addresses that it lost, heardSet that of the pools whose time is not
// over, and lostSet that of the lost addresses alone.
func heldSet(t *nft.Table, v6 bool) *nft.Set {
	s := set(t, "held", v6)
	s.Interval = true
	return s
}

func heardSet(t *nft.Table, v6 bool) *nft.Set {
	s := set(t, "heard", v6)
	s.Times = true
	return s
}

func lostSet(t *nft.Table, v6 bool) *nft.Set { return set(t, "lost", v6) }

// table returns the table without elements. The chains come after destinations were translated, and before sources are, so that
// they see the containers' own addresses, and each packet once.
func (f *Fence) table(pools []grant.Pool) *nft.Table {
	t := &nft.Table{Family: unix.NFPROTO_INET, Name: f.Table()}
	sides := map[nft.Side]string{nft.Src: "from", nft.Dst: "to"}
	for _, v6 := range families {
		t.Sets = append(t.Sets, heldSet(t, v6), heardSet(t, v6), lostSet(t, v6))
	}
	for _, side := range []nft.Side{nft.Src, nft.Dst} {
		t.Chains = append(t.Chains, &nft.Chain{Name: sides[side], Rules: cutRules(t, pools, side, sides[side])})
	}
	const translated = -90
	base := func(name string, hook uint32) {
		c := &nft.Chain{Name: name, Type: "filter", Hook: hook, Priority: translated}
		for _, side := range []nft.Side{nft.Src, nft.Dst} {
			for _, v6 := range families {
				rule := nft.NewRule(sides[side]+" a range of this node").Family(v6).
					FieldsIn(false, heldSet(t, v6), nft.AddressOf(v6, bool(side))).Jump(sides[side])
				c.Rules = append(c.Rules, rule)
			}
		}
		t.Chains = append(t.Chains, c)
	}
	base("prerouting", unix.NF_INET_PRE_ROUTING)
	base("output", unix.NF_INET_LOCAL_OUT)
	return t
}

// cutRules drop what is from or to a lost address, or a pool whose time is over. The pool stands in heard under its first address.
func cutRules(t *nft.Table, pools []grant.Pool, side nft.Side, name string) (rules []*nft.Rule) {
	for _, v6 := range families {
		lost := nft.NewRule(name+" a container that lost its address").Family(v6).
			FieldsIn(false, lostSet(t, v6), nft.AddressOf(v6, bool(side))).Drop()
		rules = append(rules, lost)
	}
	for _, p := range pools {
		v6 := p.Prefix.Addr().Is6()
		rule := nft.NewRule(fmt.Sprintf("%s %v after its time", name, p.Prefix)).Family(v6).Prefix(bool(side), false, p.Prefix).
			SubnetIn(p.Prefix.Bits(), side, true, heardSet(t, v6)).Drop()
		rules = append(rules, rule)
	}
	return rules
}

// apply changes what differs, in one transaction.
func (f *Fence) apply(ctx context.Context, w wanted) (changed bool, err error) {
	err = filter.Transact(ctx, f.World, f.table(w.pools), func(tx filter.Tx) error {
		tx.Table.Ends = false // what is deleted is gone at once
		drift, fix, err := tx.Diff(tx.Table)
		if err != nil {
			return err
		}
		if fix == nil {
			return drift[0]
		}
		var b nft.Batch
		b.Append(fix)
		if err := w.addElements(tx, &b); err != nil {
			return err
		}
		changed = !b.Empty()
		return tx.Write(&b)
	})
	return changed && err == nil, err
}

// addElements adds to a transaction what changes the elements of the sets.
func (w wanted) addElements(tx filter.Tx, b *nft.Batch) error {
	for _, v6 := range families {
		held, heard, lost := heldSet(tx.Table, v6), heardSet(tx.Table, v6), lostSet(tx.Table, v6)
		var ranges []nft.Bounds
		for _, p := range filter.OfFamily(w.held, v6) {
			ranges = append(ranges, held.Prefix(p))
		}
		var pools, gone []nft.Bounds
		for p, end := range w.until {
			if left := (end - disk.Uptime()) / int64(time.Millisecond); p.Addr().Is6() == v6 && left > soon {
				pools = append(pools, nft.Bounds{{Set: heard, Key: nft.Key(p.Addr()), Left: uint64(left)}})
			}
		}
		for _, a := range w.lost {
			if a.Is6() == v6 {
				gone = append(gone, nft.Bounds{{Set: lost, Key: nft.Key(a)}})
			}
		}
		for _, of := range []struct {
			set  *nft.Set
			want []nft.Bounds
		}{{held, ranges}, {heard, pools}, {lost, gone}} {
			have, err := tx.List(of.set)
			if err != nil {
				return err
			}
			replace(b, nft.Intervals(have), of.want)
		}
	}
	return nil
}

// soon is a time in milliseconds. The fence stands so much too early, and the kernel's element need not agree better with the
// grant.
const soon = 1000

// replace changes elements of a set in a transaction.
func replace(b *nft.Batch, have, want []nft.Bounds) {
	lacking := map[string]nft.Bounds{}
	for _, w := range want {
		lacking[w.ID()] = w
	}
	for _, h := range have {
		w, wanted := lacking[h.ID()]
		if wanted && max(w[0].Left, h[0].Left)-min(w[0].Left, h[0].Left) < soon {
			delete(lacking, h.ID())
			continue
		}
		for _, e := range h {
			b.Delete(e)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(lacking)) {
		for _, e := range lacking[id] {
			b.Add(e)
		}
	}
}
