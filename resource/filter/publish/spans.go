package publish

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// A span is what a port mapping comes to in one family: a port of the host, or ports that lead to the same ports of
// the container.
type span struct {
	proto       byte
	host        netip.Addr // unspecified: any
	first, last uint16
	to          uint16 // where first leads to; of several ports first itself
	only        bool   // allow has the sources that may use it; if it is empty, none may
	allow       []netip.Prefix
}

// ends are where the span leads to.
func (s span) ends() (first, last uint16) { return s.to, s.to + (s.last - s.first) }

// at is where two spans can be about one port, in order.
func (s span) at(o span) int {
	return cmp.Or(cmp.Compare(s.proto, o.proto), s.host.Compare(o.host))
}

// spans are the spans of a family, in order, none of which has a port of one address in common with another.
func spans(list []Mapping, v6 bool) ([]span, error) {
	var all []span
	for _, m := range list {
		proto, err := m.proto()
		if err != nil {
			return nil, err
		}
		host, ok := m.Host(v6)
		if !ok {
			continue
		}
		s := span{proto: proto, host: host, only: len(m.AllowFrom) > 0,
			allow: filter.Masked(filter.OfFamily(m.AllowFrom, v6))}
		if m.HostPort != m.ContainerPort && m.Len() > MaxShifted {
			return nil, spec.Errorf(spec.CodeConfig, "port mapping %v: want at most %d ports where they lead to others",
				m,
				MaxShifted)
		}
		for _, one := range m.pieces() {
			s.first, s.last, s.to = one.HostPort, one.Last(), one.ContainerPort
			all = append(all, s)
		}
	}
	out, err := merged(all, func(a, s span) error {
		if before := a.to + (s.first - a.first); s.to != before {
			return spec.Errorf(spec.CodeConfig, "%s port %d is asked for twice, to lead to %d and to %d",
				kernel.ProtoName(s.proto), s.first, before, s.to)
		}
		return onePolicy(a, s)
	})
	if err != nil {
		return nil, err
	}
	// At different addresses of the host, too: when allowFrom is asked for, the packet has the container's address.
	_, err = merged(anyHost(out), onePolicy)
	return out, err
}

// merged sorts spans, and makes one of those that have ports in common, unless one says why not.
func merged(list []span, one func(a, b span) error) (out []span, err error) {
	slices.SortStableFunc(list, func(a, b span) int {
		return cmp.Or(a.at(b), cmp.Compare(a.first, b.first), cmp.Compare(b.last, a.last))
	})
	for _, s := range list {
		n := len(out) - 1
		if n < 0 || out[n].at(s) != 0 || s.first > out[n].last {
			out = append(out, s)
			continue
		}
		if err := one(out[n], s); err != nil {
			return nil, err
		}
		out[n].last = max(out[n].last, s.last)
	}
	return out, nil
}

// anyHost are the spans without their addresses of the host.
func anyHost(list []span) []span {
	list = slices.Clone(list)
	for i := range list {
		list[i].host = netip.Addr{}
	}
	return list
}

// onePolicy refuses two lists of who may use one port.
func onePolicy(a, b span) error {
	if a.only == b.only && slices.Equal(a.allow, b.allow) {
		return nil
	}
	return spec.Errorf(spec.CodeConfig,
		"allowFrom: %s port %d of the host has different lists in several mappings; want one list for a port, or "+
			"different ports", kernel.ProtoName(b.proto), b.first)
}

// A portGroup is a chain that those share whose packets to some ports are treated alike.
type portGroup struct {
	from   string // the chain of the static part that leads to it
	prefix string // of its name
	way    func(*nft.Set) *nft.Rule
	rules  []*nft.Rule
}

// elements are those of ports of the container, which may have ports in common: in one set what are single ports, in
// another what are several. Each is made where it is needed.
func (g portGroup) elements(shared *filter.ChainSet, to netip.Addr, comment string, ports []span) (all []nft.Elem) {
	ports, _ = merged(anyHost(ports), func(span, span) error { return nil })
	sets := map[string]*nft.Set{}
	for _, s := range ports {
		e := nft.Elem{Key: nft.Key(to, s.proto, s.first), Comment: comment}
		name := g.prefix + "_" + filter.FamilyName(to.Is6())
		if s.first < s.last {
			name += "_range"
			e.KeyEnd = nft.Key(to, s.proto, s.last)
		}
		if sets[name] == nil {
			sets[name] = shared.Share(g.from, name, g.way, g.rules)
		}
		e.Set = sets[name]
		all = append(all, e)
	}
	return all
}
