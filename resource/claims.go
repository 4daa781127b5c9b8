package resource

import (
	"log/slog"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
)

// A slot is one port of the host: a family, the conditions, a protocol and a number.
type slot struct {
	portMaps
	proto byte
	port  uint16
}

// A claim is one owner's wish for a slot, at an address of the host or at any.
type claim struct {
	owner     [8]byte
	comment   string // with the owner's tag
	host, to  netip.Addr
	toPort    uint16
	container uint32 // a hash of the container's ID: conflicts are between containers
	link      uint32 // index of the host end that was there when the port was published; 0 is unknown
}

// key is what the claims of a slot are gathered under.
func (s slot) key() string { return s.claims.Name + " " + string(s.place(netip.Addr{}).Key) }

// place is where the maps have the slot for a host address; the zero Addr is any.
func (s slot) place(host netip.Addr) kernel.NFTElem {
	if !host.IsValid() || host.IsUnspecified() {
		return kernel.NFTElem{Set: s.any, Key: kernel.NFTKey(s.proto, s.port)}
	}
	return kernel.NFTElem{Set: s.exact, Key: kernel.NFTKey(host, s.proto, s.port)}
}

// lead is the element that leads to a claim's container.
func (s slot) lead(c claim) kernel.NFTElem {
	e := s.place(c.host)
	e.Data, e.Comment = kernel.NFTKey(c.to, c.toPort), c.comment
	return e
}

// claim is the nth element of the slot's claims.
func (s slot) claim(n int, c claim) kernel.NFTElem {
	return kernel.NFTElem{Set: s.claims, Key: kernel.NFTKey(s.proto, s.port, uint32(n)),
		Data: kernel.NFTKey(c.host, c.to, c.toPort, c.container, c.link), Comment: c.comment}
}

func parseClaim(e *kernel.NFTElem) (c claim) {
	_, c.owner, _, _ = kernel.ParseTag(e.Comment)
	c.comment = e.Comment
	if f := kernel.NFTFields(e.Set.Data, e.Data); len(f) == 5 {
		c.host, _ = f[0].(netip.Addr)
		c.to, _ = f[1].(netip.Addr)
		c.toPort, _ = f[2].(uint16)
		c.container, _ = f[3].(uint32)
		c.link, _ = f[4].(uint32)
	}
	return c
}

// same reports whether two claims of one owner ask for the same thing.
func (c claim) same(d claim) bool {
	return c.host == d.host && c.to == d.to && c.toPort == d.toPort
}

// overlaps reports whether two claims of a slot are for one address, as bind(2) sees it.
func (c claim) overlaps(d claim) bool {
	return c.host == d.host || c.host.IsUnspecified() || d.host.IsUnspecified()
}

// claimants are the claims of some slots, as they are and as they shall be.
type claimants map[string]*claimed

type claimed struct {
	slot
	before, after []claim
}

// slotsOf are the slots that entries of owners lead to.
func slotsOf(t *kernel.NFTTable, mapped []entry) (slots []slot) {
	for _, e := range mapped {
		p, ok := portsNamed(t, e.place.Set.Name)
		f := kernel.NFTFields(e.place.Set.Key, e.place.Key)
		if !ok || len(f) < 2 {
			continue
		}
		f = f[len(f)-2:]
		slots = append(slots, slot{p, f[0].(uint8), f[1].(uint16)})
	}
	return slots
}

// unclaimed are the entries that no claim bears out, as when somebody flushed the claims.
func (m claimants) unclaimed(t *kernel.NFTTable, mapped []entry) (left []entry) {
	for _, e := range mapped {
		s := slotsOf(t, []entry{e})
		if len(s) == 0 || !slices.ContainsFunc(m[s[0].key()].before, func(c claim) bool { return sameKey(s[0].place(c.host), e.place) }) {
			left = append(left, e)
		}
	}
	return left
}

// split tells the entries that name a published port from the others.
func split(have []entry) (mapped, plain []entry) {
	for _, e := range have {
		if e.place.Set != nil {
			if _, ok := portsNamed(e.place.Set.Table, e.place.Set.Name); ok {
				mapped = append(mapped, e)
				continue
			}
		}
		plain = append(plain, e)
	}
	return mapped, plain
}

// claims reads the claims of slots. They stand without a gap, so reading ends at the first that is missing.
func (f filter) claims(slots []slot) (claimants, error) {
	all := claimants{}
	var open []*claimed
	for _, s := range slots {
		if all[s.key()] == nil {
			c := &claimed{slot: s}
			all[s.key()] = c
			open = append(open, c)
		}
	}
	for step := 1; len(open) > 0; step *= 4 { // most slots have one claim or none
		var ask []kernel.NFTElem
		for _, c := range open {
			for i := range step {
				ask = append(ask, c.claim(len(c.before)+i, claim{}))
			}
		}
		found, err := f.Get(ask...)
		if err != nil {
			return nil, err
		}
		var more []*claimed
		for i, c := range open {
			mine := found[i*step : (i+1)*step]
			for _, e := range mine {
				if e == nil {
					break
				}
				c.before = append(c.before, parseClaim(e))
			}
			if mine[step-1] != nil {
				more = append(more, c)
			}
		}
		open = more
	}
	for _, c := range all {
		c.after = slices.Clone(c.before)
	}
	return all, nil
}

// join adds the slots that m lacks.
func (m claimants) join(more claimants) {
	for k, c := range more {
		if m[k] == nil {
			m[k] = c
		}
	}
}

// remove takes an owner's claims away.
func (m claimants) remove(owner [8]byte) {
	for _, c := range m {
		c.remove(func(d claim) bool { return d.owner == owner })
	}
}

// remove takes claims away; the last one moves into the gap.
func (c *claimed) remove(which func(claim) bool) {
	for i := len(c.after) - 1; i >= 0; i-- {
		if which(c.after[i]) {
			last := len(c.after) - 1
			c.after[i] = c.after[last]
			c.after = c.after[:last]
		}
	}
}

// lead writes into b how the claims change, and whom the maps lead to after that: whom they do, as long
// as he claims it; else whoever has waited.
func (f filter) lead(b *kernel.NFTBatch, m claimants) (flows []kernel.UDPFlow, err error) {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	leads, err := f.leads(m, keys)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		c := m[k]
		for n := range max(len(c.before), len(c.after)) {
			if n < len(c.before) && n < len(c.after) && c.before[n] == c.after[n] {
				continue
			}
			if n < len(c.before) {
				b.Delete(c.claim(n, c.before[n]))
			}
			if n < len(c.after) {
				b.Add(c.claim(n, c.after[n]))
			}
		}
		for host, e := range leads[k] {
			waiting := slices.DeleteFunc(slices.Clone(c.after), func(d claim) bool { return d.host != host })
			if e != nil && slices.ContainsFunc(waiting, func(d claim) bool { return taggedBy(e, d.owner) && sameData(*e, c.lead(d)) }) {
				continue
			}
			if e != nil {
				b.Delete(*e)
				if to := kernel.NFTFields(e.Set.Data, e.Data); c.proto == kernel.UDP && len(to) == 2 {
					flows = append(flows, kernel.UDPFlow{Host: host, Port: c.port, To: netip.AddrPortFrom(to[0].(netip.Addr), to[1].(uint16)), Gone: true})
				}
			}
			if len(waiting) > 0 {
				d := waiting[0]
				b.Add(c.lead(d))
				if c.proto == kernel.UDP {
					flows = append(flows, kernel.UDPFlow{Host: host, Port: c.port, To: netip.AddrPortFrom(d.to, d.toPort)})
				}
			}
		}
	}
	return flows, nil
}

// leads are the elements that the maps have now at the addresses of each slot's claims.
func (f filter) leads(m claimants, keys []string) (map[string]map[netip.Addr]*kernel.NFTElem, error) {
	leads := map[string]map[netip.Addr]*kernel.NFTElem{}
	var put []func(*kernel.NFTElem)
	var ask []kernel.NFTElem
	for _, k := range keys {
		at := map[netip.Addr]*kernel.NFTElem{}
		leads[k] = at
		for _, d := range slices.Concat(m[k].before, m[k].after) {
			if _, ok := at[d.host]; !ok {
				at[d.host] = nil
				ask = append(ask, m[k].place(d.host))
				put = append(put, func(e *kernel.NFTElem) { at[d.host] = e })
			}
		}
	}
	found, err := f.Get(ask...)
	for i, e := range found {
		put[i](e)
	}
	return leads, err
}

// flush makes conntrack forget flows. Failing at it is no reason to fail.
func flush(w *kernel.World, flows []kernel.UDPFlow) {
	if err := w.Host.ForgetUDP(flows); err != nil {
		slog.Warn("conntrack keeps flows of published UDP ports; their clients may have to change ports", "error", err)
	}
}
