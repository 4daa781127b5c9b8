package publish

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/conntrack"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/resource/filter"
)

// A portClaim is an owner's request for ports, at one address of the host or at any.
type portClaim struct {
	owner       [8]byte
	comment     string // with the owner's tag
	host, to    netip.Addr
	first, last uint16 // ports of the host
	toPort      uint16 // where the first leads to; that of a range is the first itself
	container   uint32 // a hash of the container's ID: conflicts are between containers
	link        uint32 // index of the host end that was there when the port was published; 0 is unknown
}

// wanted is a claim that is to be made.
type wanted struct {
	slot
	portClaim
}

// A slot holds the claims that compete. All claims of one port are in a slot, numbered from 0 without a gap. All
// claims of ranges are in one list. A slot has one family, one set of conditions and one protocol. A node has few
// ranges, so all of them are compared.
type slot struct {
	filter.PortMaps
	proto byte
	port  uint16 // 0: the list of ranges
}

// slotOf is where the claims of exactly these ports stand.
func slotOf(p filter.PortMaps, proto byte, first, last uint16) slot {
	if first < last {
		return rangesOf(p, proto)
	}
	return slot{p, proto, first}
}

func rangesOf(p filter.PortMaps, proto byte) slot { return slot{p, proto, 0} }

func (s slot) set() *nft.Set {
	if s.port == 0 {
		return s.Ranges
	}
	return s.Claims
}

// key identifies the slot among slotClaims.
func (s slot) key() string { return s.set().Name + " " + string(nft.Key(s.proto, s.port)) }

// elementAt is where the maps have ports of the host; the zero Addr is any.
func elementAt(p filter.PortMaps, proto byte, host netip.Addr, first, last uint16) nft.Elem {
	set, several := p.Exact, p.ExactRange
	key := func(port uint16) []byte { return nft.Key(host, proto, port) }
	if !host.IsValid() || host.IsUnspecified() {
		set, several = p.Any, p.AnyRange
		key = func(port uint16) []byte { return nft.Key(proto, port) }
	}
	if first == last {
		return nft.Elem{Set: set, Key: key(first)}
	}
	return nft.Elem{Set: several, Key: key(first), KeyEnd: key(last)}
}

// mappingOf is the element that leads to a claim's container.
func (s slot) mappingOf(c portClaim) nft.Elem {
	e := elementAt(s.PortMaps, s.proto, c.host, c.first, c.last)
	e.Data, e.Comment = nft.Key(c.to), c.comment
	if c.first == c.last {
		e.Data = nft.Key(c.to, c.toPort)
	}
	return e
}

// leads reports whether the element of the maps that is there now is that of a claim.
func (s slot) leads(now *nft.Elem, c portClaim) bool {
	return now != nil && filter.TaggedBy(now, c.owner) && filter.SameData(*now, s.mappingOf(c))
}

// element is the nth element of a port's claims, or that of a range. The data of a port's claim have the port of the
// container, and those of a range the last port of the range.
func (s slot) element(n int, c portClaim) nft.Elem {
	e := nft.Elem{Set: s.set(), Comment: c.comment}
	if s.port != 0 {
		e.Key = nft.Key(s.proto, s.port, uint32(n))
		e.Data = nft.Key(c.host, c.to, c.toPort, c.container, c.link)
		return e
	}
	e.Data = nft.Key(c.host, c.to, c.last, c.container, c.link)
	hash := identity.PlaceHash(string(c.owner[:]) + string(e.Data))
	e.Key = nft.Key(s.proto, c.first, binary.BigEndian.Uint32(hash[:]))
	return e
}

func (s slot) parse(e *nft.Elem) (c portClaim) {
	_, c.owner, _, _ = identity.ParseTag(e.Comment)
	c.comment = e.Comment
	key, data := nft.Fields(e.Set.Key, e.Key), nft.Fields(e.Set.Data, e.Data)
	if len(key) != 3 || len(data) != 5 {
		return c
	}

	port, _ := data[2].(uint16)
	if s.port == 0 {
		c.first, _ = key[1].(uint16)
		c.last, c.toPort = port, c.first
	} else {
		c.first, c.last, c.toPort = s.port, s.port, port
	}
	c.host, _ = data[0].(netip.Addr)
	c.to, _ = data[1].(netip.Addr)
	c.container, _ = data[3].(uint32)
	c.link, _ = data[4].(uint32)
	return c
}

// placeOfClaim implements filter.PlaceOf. The set owners names a claim by the element of the maps that the claim is
// for. That element may lead to another container.
func placeOfClaim(e nft.Elem) nft.Elem {
	p, ok := filter.PortMapsNamed(e.Set.Table, e.Set.Name)
	f := nft.Fields(e.Set.Key, e.Key)
	if !ok || len(f) < 2 || len(e.Set.Data) != len(p.Claims.Data) {
		return e
	}
	s := slot{PortMaps: p, proto: f[0].(uint8)}
	if e.Set.Name == p.Claims.Name {
		s.port = f[1].(uint16)
	}
	return s.mappingOf(s.parse(&e))
}

// network stands for the network of a claim's owner.
func (c portClaim) network() (hash [6]byte) {
	hash, _, _, _ = identity.ParseTag(c.comment)
	return hash
}

// same reports whether two claims of one owner ask for the same thing.
func (c portClaim) same(d portClaim) bool {
	return c.host == d.host && c.to == d.to && c.toPort == d.toPort && c.first == d.first && c.last == d.last
}

// at reports whether two claims are for the same ports of the same address, so that one can take over from the other.
func (c portClaim) at(d portClaim) bool {
	return c.host == d.host && c.first == d.first && c.last == d.last
}

// overlaps reports whether two claims have a port in common, and meets whether it is at one address, as bind(2)
// sees it.
func (c portClaim) overlaps(d portClaim) bool { return c.first <= d.last && d.first <= c.last }

func (c portClaim) meets(d portClaim) bool {
	return c.overlaps(d) && (c.host == d.host || c.host.IsUnspecified() || d.host.IsUnspecified())
}

// slotClaims are the claims of some slots, as they are and as they shall be.
type slotClaims map[string]*claimedSlot

type claimedSlot struct {
	slot
	before, after []portClaim
}

// claimOf returns the part of a claim that an entry of the set owners contains. Ok is false if the entry does not name
// a published port.
func claimOf(e filter.Entry) (w wanted, ok bool) {
	set := e.Place.Set
	if set == nil {
		return w, false
	}
	p, ok := filter.PortMapsNamed(set.Table, set.Name)
	f := nft.Fields(set.Key, e.Place.Key)
	if !ok || len(f) < 2 {
		return w, false
	}
	w.host = anyAddr(p.V6)
	if len(f) > 2 {
		w.host, _ = f[0].(netip.Addr)
	}
	w.first, _ = f[len(f)-1].(uint16)
	w.last = w.first
	if end := nft.Fields(set.Key, e.Place.KeyEnd); len(end) == len(f) {
		w.last, _ = end[len(end)-1].(uint16)
	}
	proto, _ := f[len(f)-2].(uint8)
	w.slot = slotOf(p, proto, w.first, w.last)
	return w, true
}

// split tells the entries that name a published port, with their slots, from the others.
func split(have []filter.Entry) (mapped, plain []filter.Entry, slots []slot) {
	for _, e := range have {
		if w, ok := claimOf(e); ok {
			mapped, slots = append(mapped, e), append(slots, w.slot)
		} else {
			plain = append(plain, e)
		}
	}
	return mapped, plain, slots
}

// unclaimed returns the entries without a claim, for instance after the claims were flushed.
func (m slotClaims) unclaimed(mapped []filter.Entry) []filter.Entry {
	return slices.DeleteFunc(mapped, func(e filter.Entry) bool {
		w, _ := claimOf(e)
		c := m[w.key()]
		return slices.ContainsFunc(slices.Concat(c.before, c.after), w.at)
	})
}

// remove removes claims. The last claim moves into the gap.
func (c *claimedSlot) remove(which func(portClaim) bool) {
	for i := len(c.after) - 1; i >= 0; i-- {
		if which(c.after[i]) {
			last := len(c.after) - 1
			c.after[i] = c.after[last]
			c.after = c.after[:last]
		}
	}
}

// An activeMapping is the element of the maps for claims of a slot on the same ports and address.
type activeMapping struct {
	*claimedSlot
	portClaim           // the first of them
	now       *nft.Elem // in the kernel; nil: there is none
}

// applyClaims writes into b the changes of the claims, and the container to which the maps then lead. A container
// that has a port keeps it while it claims it. After that, the next claim in the slot gets the port.
func applyClaims(f filter.Tx, b *nft.Batch, m slotClaims,
	owners map[[8]byte]bool) (flows []conntrack.UDPFlow, err error) {
	leads, err := activeMappings(f, m, owners)
	if err != nil {
		return nil, err
	}
	var adds []nft.Elem // after all deletions: a range makes room for others
	for _, k := range slices.Sorted(maps.Keys(m)) {
		c := m[k]
		for n := range max(len(c.before), len(c.after)) {
			if n < len(c.before) && n < len(c.after) && c.before[n] == c.after[n] {
				continue
			}
			if n < len(c.before) {
				b.Delete(c.element(n, c.before[n]))
			}
			if n < len(c.after) {
				adds = append(adds, c.element(n, c.after[n]))
			}
		}
	}
	for _, l := range leads {
		waiting := slices.DeleteFunc(slices.Clone(l.after), func(d portClaim) bool { return !d.at(l.portClaim) })
		if slices.ContainsFunc(waiting, func(d portClaim) bool { return l.leads(l.now, d) }) {
			continue
		}
		flow := func(e nft.Elem, gone bool) {
			to := append(nft.Fields(e.Set.Data, e.Data), uint16(0)) // that of a range has no port
			if l.proto == kernel.UDP && len(to) > 1 {
				flows = append(flows, conntrack.UDPFlow{Host: l.host, Port: l.first, Last: l.last, Gone: gone,
					To: netip.AddrPortFrom(to[0].(netip.Addr), to[1].(uint16))})
			}
		}
		if l.now != nil {
			b.Delete(*l.now)
			flow(*l.now, true)
		}
		if len(waiting) > 0 {
			e := l.mappingOf(waiting[0])
			adds = append(adds, e)
			flow(e, false)
		}
	}
	for _, e := range adds {
		b.Add(e)
	}
	return flows, nil
}

// activeMappings returns the elements of the maps for the claims of owners, in order.
func activeMappings(f filter.Tx, m slotClaims, owners map[[8]byte]bool) (leads []activeMapping, err error) {
	var ask []nft.Elem
	seen := map[string]bool{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		c := m[k]
		for _, d := range slices.Concat(c.before, c.after) {
			if e := elementAt(c.PortMaps, c.proto, d.host, d.first, d.last); owners[d.owner] &&
				!seen[filter.ElementKey(e)] {
				seen[filter.ElementKey(e)] = true
				ask = append(ask, e)
				leads = append(leads, activeMapping{claimedSlot: c, portClaim: d})
			}
		}
	}
	found, err := f.Get(ask...)
	for i, e := range found {
		leads[i].now = e
	}
	return leads, err
}

// FlushFlows deletes conntrack entries of flows. Call it when no rule leads there any more, because the next packet
// would create the entry again. It reports no errors: a stale entry is no reason to fail.
func FlushFlows(w *kernel.World, flows []conntrack.UDPFlow) {
	if len(flows) == 0 {
		return
	}
	if err := errors.Join(w.Finish(), conntrack.ForgetUDP(w.Host, flows)); err != nil {
		slog.Warn("conntrack keeps flows of published UDP ports; their clients may have to change ports", "error", err)
	}
}
