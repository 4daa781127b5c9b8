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

func (s span) samePolicy(o span) bool { return s.only == o.only && slices.Equal(s.allow, o.allow) }

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
	slices.SortStableFunc(all, func(a, b span) int {
		return cmp.Or(a.at(b), cmp.Compare(a.first, b.first), cmp.Compare(b.last, a.last))
	})
	var out []span
	for _, s := range all {
		if n := len(out) - 1; n >= 0 && out[n].at(s) == 0 && s.first <= out[n].last {
			if before := out[n].to + (s.first - out[n].first); s.to != before {
				return nil, spec.Errorf(spec.CodeConfig, "%s port %d is asked for twice, to lead to %d and to %d",
					kernel.ProtoName(s.proto), s.first, before, s.to)
			}
			if !s.samePolicy(out[n]) {
				return nil, differs(s)
			}
			out[n].last = max(out[n].last, s.last)
			continue
		}
		out = append(out, s)
	}
	return out, onePolicy(out)
}

// onePolicy refuses two lists of who may use one port at different addresses of the host: when they are asked
// for, the packet has the container's address.
func onePolicy(list []span) error {
	if !slices.ContainsFunc(list, func(s span) bool { return s.only }) {
		return nil
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.proto, b.proto), cmp.Compare(a.first, b.first))
	})
	widest := 0
	for i, s := range list {
		w := list[widest]
		switch {
		case i == 0 || w.proto != s.proto || s.first > w.last:
			widest = i
		case !w.samePolicy(s):
			return differs(s)
		case s.last > w.last:
			widest = i
		}
	}
	return nil
}

func differs(s span) error {
	return spec.Errorf(spec.CodeConfig,
		"allowFrom: %s port %d of the host has different lists in several mappings; want one list for a port, or "+
			"different ports", kernel.ProtoName(s.proto), s.first)
}

// portElements are those of some ports, each (protocol, first, last), that may have ports in common, at an address of
// the container: in one set what are single ports, in another what are several. Share makes one, where it is needed.
func portElements(prefix string, share func(name string) *nft.Set, to netip.Addr, comment string,
	ports []span) (all []nft.Elem) {
	slices.SortFunc(ports, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.proto, b.proto), cmp.Compare(a.first, b.first), cmp.Compare(b.last, a.last))
	})
	var out []span
	for _, s := range ports {
		if n := len(out) - 1; n >= 0 && out[n].proto == s.proto && s.first <= out[n].last {
			out[n].last = max(out[n].last, s.last)
			continue
		}
		out = append(out, s)
	}
	sets := map[bool]*nft.Set{}
	for _, s := range out {
		e := nft.Elem{Key: nft.Key(to, s.proto, s.first), Comment: comment}
		name, several := prefix, s.first < s.last
		if several {
			name, e.KeyEnd = prefix+"_range", nft.Key(to, s.proto, s.last)
		}
		if sets[several] == nil {
			sets[several] = share(name)
		}
		e.Set = sets[several]
		all = append(all, e)
	}
	return all
}
