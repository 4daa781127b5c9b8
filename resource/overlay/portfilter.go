package overlay

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A PortFilter lets in at the VXLAN port only what other nodes send for their own containers, and lets only the node
// itself send to that port of other nodes. VXLAN has no authentication: without the filter, a host that reaches the
// port puts packets with any source into the containers' network. A container reaches it, too, masqueraded as its node.
//
// It also lets only the node itself send to further ports of other nodes: to that of their agents, and of WireGuard. A
// container's packet there would have the address of its node, and would keep the node's own from leaving with that
// address and port.
//
// It is a table of nf_tables of its own, and has no chain at the hook forward: what forwards look at the chains there.
// It concerns one network identifier. Another device may have the same port.
type PortFilter struct {
	Network string   // for people
	ID      uint32   // network identifier
	Port    uint16   // UDP
	Further []uint16 // UDP ports to which only nodes send
	Own     []netip.Addr
	Senders []Sender // no two of which have overlapping prefixes
}

// A Sender is another node: its addresses, by any of which its packets come, and the prefixes of its containers.
type Sender struct {
	Endpoints []netip.Addr
	Prefixes  []netip.Prefix
}

func (f PortFilter) String() string {
	return resource.Line("vxlan-port", "network "+f.Network, fmt.Sprintf("id %d dstport %d", f.ID, f.Port),
		resource.Addrs("from", f.Own), fmt.Sprintf("senders %d", len(f.Senders)))
}

// Traits implements resource.Describer.
func (f PortFilter) Traits() resource.Traits { return resource.Traits{Object: f.Network} }

// Table returns the name of the table: a port and network identifier has one, whatever the network is called.
func (f PortFilter) Table() string { return fmt.Sprintf("fairlead-vxlan-%d-%d", f.Port, f.ID) }

// Bytes between the begin of the UDP header and what is in a VXLAN packet: 8 bytes of UDP, 8 of VXLAN, 14 of Ethernet.
const (
	atID        = 8 + 4
	atEtherType = 8 + 8 + 12
	atInner     = 8 + 8 + 14
)

// table returns the table without elements. Base chains are before and after those that translate addresses, so that
// they see a container's own address, and the node that a translated packet really goes to.
func (f PortFilter) table() *nft.Table {
	t := &nft.Table{Family: unix.NFPROTO_INET, Name: f.Table()}
	toPort := func(comment, chain string) []*nft.Rule {
		id := []byte{byte(f.ID >> 16), byte(f.ID >> 8), byte(f.ID)}
		return []*nft.Rule{nft.NewRule(comment).Proto(false, kernel.UDP).Port(true, false, f.Port, f.Port).
			Is(nft.Behind(atID, 3), id).Jump(chain)}
	}

	arrived := &nft.Chain{Name: "arrived"}
	// A link of containers is one of these kinds. So may be an uplink, but the route to the sender leads there.
	for _, kind := range []string{"veth", "bridge"} {
		forged := nft.NewRule("a container, in the name of a node").Iifkind(kind).Misrouted().Drop()
		arrived.Rules = append(arrived.Rules, forged)
	}
	// The first fragment of a packet may end before the network identifier. Where a rule asks conntrack, it puts the
	// fragments of both families together before these chains see them.
	whole := nft.NewRule("conntrack puts fragments together").New()
	received := &nft.Chain{Name: "received", Rules: []*nft.Rule{whole}}
	sent := &nft.Chain{Name: "sent"}
	for _, v6 := range []bool{false, true} {
		nodes := nodesSet(t, v6)
		t.Sets = append(t.Sets, nodes)
		sent.Rules = append(sent.Rules, nft.NewRule("to a node, by no node").Toward(nodes).
			FieldsIn(true, nodes, nft.AddressOf(v6, false)).Drop())
		for _, inner6 := range []bool{false, true} {
			sources := sourcesSet(t, v6, inner6)
			t.Sets = append(t.Sets, sources)
			received.Rules = append(received.Rules, nft.NewRule("a node, for its containers").Family(v6).
				Is(nft.Behind(atEtherType, 2), nft.Key(etherType(inner6))).
				FieldsIn(false, sources, sources.Of...).Return())
		}
	}
	received.Rules = append(received.Rules, nft.NewRule("all else").Drop())

	toNodes := toPort("leaves for the VXLAN port", "sent")
	for _, port := range f.Further {
		toNodes = append(toNodes, nft.NewRule("leaves for a port that is for nodes").Proto(false, kernel.UDP).
			Port(true, false, port, port).Jump("sent"))
	}
	base := func(name string, hook uint32, priority int32, rules []*nft.Rule) *nft.Chain {
		return &nft.Chain{Name: name, Type: "filter", Hook: hook, Priority: priority, Rules: rules}
	}
	t.Chains = []*nft.Chain{arrived, received, sent,
		base("prerouting", unix.NF_INET_PRE_ROUTING, -97, toPort("arrives at the VXLAN port", "arrived")),
		base("input", unix.NF_INET_LOCAL_IN, 0, toPort("is received at the VXLAN port", "received")),
		base("postrouting", unix.NF_INET_POST_ROUTING, 99, toNodes),
	}
	return t
}

func etherType(v6 bool) uint16 {
	if v6 {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_IP
}

func addressType(v6 bool) nft.Type {
	if v6 {
		return nft.Addr6
	}
	return nft.Addr
}

// nodesSet returns the set of the endpoints of all nodes.
func nodesSet(t *nft.Table, v6 bool) *nft.Set {
	return &nft.Set{Table: t, Name: "nodes_" + filter.FamilyName(v6), Key: []nft.Type{addressType(v6)}}
}

// sourcesSet returns the set of pairs of a node's endpoint and the sources that packets in its packets may have. It
// needs ranges in concatenations, which Linux has from 5.6 on.
func sourcesSet(t *nft.Table, v6, inner6 bool) *nft.Set {
	offset, size := nft.AddressField(inner6, false)
	name := "sources_" + filter.FamilyName(v6) + "_" + filter.FamilyName(inner6)
	return &nft.Set{Table: t, Name: name, Interval: true,
		Key: []nft.Type{addressType(v6), addressType(inner6)},
		Of:  []nft.Field{nft.AddressOf(v6, false), nft.Behind(atInner+offset, size)}}
}

// elements returns what is to be in the sets of the table.
func (f PortFilter) elements(t *nft.Table) (all []nft.Elem) {
	node := func(a netip.Addr) {
		all = append(all, nft.Elem{Set: nodesSet(t, a.Is6()), Key: nft.Key(a)})
	}
	for _, a := range f.Own {
		node(a)
	}
	for _, s := range f.Senders {
		for _, a := range s.Endpoints {
			node(a)
			for _, p := range s.Prefixes {
				all = append(all, sourcesSet(t, a.Is6(), p.Addr().Is6()).Within(a, p))
			}
		}
	}
	return all
}

// compare returns what the table lacks and has too much, and the transaction that changes that. Missing rules do not
// come before the elements that they ask for, so no packet of a node is lost while they are restored.
func (f PortFilter) compare(tx filter.Tx) (drift resource.Drift, fix *nft.Batch, err error) {
	tx.Table.Ends = false // what is deleted is gone at once
	drift, fix, err = tx.Diff(tx.Table)
	if err != nil || fix == nil {
		return drift, fix, err
	}
	whole := drift.All()
	missing, surplus, err := f.compareElements(tx)
	for _, e := range surplus { // first, because a new prefix may overlap a former one
		fix.Delete(e)
		drift.Add(spec.TooMuch("nft element " + e.String()))
	}
	for _, e := range missing {
		fix.Add(e)
		if !whole {
			drift.Add(spec.Missing("nft element " + e.String()))
		}
	}
	return drift, fix, err
}

// compareElements returns the elements that the sets lack, and those that they should not have, set by set.
func (f PortFilter) compareElements(tx filter.Tx) (missing, surplus []nft.Elem, err error) {
	lacking := map[string]nft.Elem{}
	for _, e := range f.elements(tx.Table) {
		lacking[filter.ElementKey(e)] = e
	}
	for _, set := range tx.Table.Sets {
		have, err := tx.List(set)
		if err != nil {
			return nil, nil, err
		}
		for _, e := range have {
			if _, wanted := lacking[filter.ElementKey(e)]; !wanted {
				surplus = append(surplus, e)
			}
			delete(lacking, filter.ElementKey(e))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(lacking)) { // so that those of a set go in one message
		missing = append(missing, lacking[key])
	}
	return missing, surplus, nil
}

// Ensure implements plan.Resource. It changes in one transaction what differs, and nothing else. A table that is
// missing takes two: Linux follows the rules of a transaction shortly before their sets have its ranges, so that what a
// node sends meanwhile would be dropped.
func (f PortFilter) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	err = filter.Transact(ctx, w, f.table(), func(tx filter.Tx) error {
		_, exists, err := tx.Handle(tx.Table)
		if err != nil {
			return err
		}
		if !exists {
			sets := *tx.Table
			sets.Chains = nil
			first := tx
			first.Table = &sets
			if _, err := f.change(first); err != nil {
				return err
			}
		}
		changed, err = f.change(tx)
		return err
	})
	return changed && err == nil, err
}

// change writes what the table lacks and has too much.
func (f PortFilter) change(tx filter.Tx) (changed bool, err error) {
	drift, fix, err := f.compare(tx)
	if err != nil {
		return false, err
	}
	if fix == nil {
		return false, drift.Err()
	}
	return !fix.Empty(), tx.Write(fix)
}

// Verify implements plan.Resource.
func (f PortFilter) Verify(ctx context.Context, w *kernel.World) error {
	return filter.Transact(ctx, w, f.table(), func(tx filter.Tx) error {
		drift, _, err := f.compare(tx)
		if err != nil {
			return err
		}
		return drift.Err()
	})
}

// Admits reports whether the table lets in what the senders send. It may let in others, too.
func (f PortFilter) Admits(ctx context.Context, w *kernel.World) (admits bool, err error) {
	err = filter.Transact(ctx, w, f.table(), func(tx filter.Tx) error {
		missing, _, err := f.compareElements(tx)
		admits = len(missing) == 0
		return err
	})
	return admits, err
}

// Remove implements plan.Remover.
func (f PortFilter) Remove(ctx context.Context, w *kernel.World) error {
	return filter.Transact(ctx, w, f.table(), func(tx filter.Tx) error {
		_, exists, err := tx.Handle(tx.Table)
		if err != nil || !exists {
			return err
		}
		var b nft.Batch
		b.DeleteTable(tx.Table)
		return tx.Write(&b)
	})
}

var _ plan.Remover = PortFilter{}
