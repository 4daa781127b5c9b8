package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/spec"
)

// A Reservation keeps addresses back. Who asks for just any address does not get them. Where For names a sticky key
// only who has that key gets them; otherwise to who asks for one of them by name.
type Reservation struct {
	Prefix netip.Prefix `json:"prefix"`
	For    string       `json:"for,omitempty"`
	Note   string       `json:"note,omitempty"` // for people
	Since  time.Time    `json:"since"`
}

// ParseReserved reads what is to be reserved: an address or a subnet.
func ParseReserved(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if a, aerr := netip.ParseAddr(s); err != nil && aerr == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil {
		return p, spec.Errorf(spec.CodeConfig, "%q: want an address or a subnet, such as 10.1.0.5 or 2001:db8::/120", s)
	}
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	if p.Masked() != p {
		return p, spec.Errorf(spec.CodeConfig, "%s has host bits set; write %s, or %s", p, p.Addr(), p.Masked())
	}
	return p, nil
}

// Slip is why a reservation of p in sets can hardly be meant: it is of none of them (ErrOutside), or all of one, or is
// a gateway, that is given to none anyway.
func Slip(sets []Set, p netip.Prefix) error {
	inside := len(sets) == 0
	for _, set := range sets {
		if r, ok := set.Find(p.Addr()); ok && p.IsSingleIP() && p.Addr() == r.Gateway {
			return fmt.Errorf("%s is the gateway of %s, which is never allocated", p.Addr(), r.Subnet)
		}
		left := len(Clip(set.After(netip.Addr{}), p)) > 0
		inside = inside || left
		if left && Union([]netip.Prefix{p}).Size(set).IsZero() {
			return fmt.Errorf("%s is the whole pool %s", p, set)
		}
	}
	if !inside {
		return ErrOutside
	}
	return nil
}

// Reserved is a number of subnets as runs of addresses, in order and apart from each other.
type Reserved []Span

// Union is the addresses of all prefixes, which may overlap.
func Union(prefixes []netip.Prefix) Reserved {
	spans := make(Reserved, len(prefixes))
	for i, p := range prefixes {
		spans[i] = Span{First: p.Masked().Addr(), Last: last(p)}
	}
	slices.SortFunc(spans, func(a, b Span) int { return a.First.Compare(b.First) })
	var out Reserved
	for _, s := range spans {
		if n := len(out) - 1; n >= 0 && out[n].First.Is4() == s.First.Is4() && !out[n].Last.Less(s.First) {
			if out[n].Last.Less(s.Last) {
				out[n].Last = s.Last
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// from is the index of the first run that does not end before a.
func (r Reserved) from(a netip.Addr) int {
	i, _ := slices.BinarySearchFunc(r, a, func(s Span, a netip.Addr) int { return s.Last.Compare(a) })
	return i
}

// Contains reports whether a is one of r.
func (r Reserved) Contains(a netip.Addr) bool {
	i := r.from(a)
	return i < len(r) && !a.Less(r[i].First)
}

// Cut is order without what is reserved.
func (r Reserved) Cut(order []Span) []Span {
	if len(r) == 0 {
		return order
	}
	var out []Span
	for _, s := range order {
		i := r.from(s.First)
		for ; i < len(r) && !s.Last.Less(r[i].First) && s.First.IsValid(); i++ {
			if s.First.Less(r[i].First) {
				out = append(out, Span{s.First, r[i].First.Prev(), s.Gateway})
			}
			s.First = r[i].Last.Next() // none after the last address of all
		}
		if s.First.IsValid() && !s.Last.Less(s.First) {
			out = append(out, s)
		}
	}
	return out
}

// Clip is what of order is in p.
func Clip(order []Span, p netip.Prefix) []Span {
	first, end := p.Masked().Addr(), last(p)
	var out []Span
	for _, s := range order {
		if s.First.Is4() != first.Is4() || s.Last.Less(first) || end.Less(s.First) {
			continue
		}
		if s.First.Less(first) {
			s.First = first
		}
		if end.Less(s.Last) {
			s.Last = end
		}
		out = append(out, s)
	}
	return out
}

// Size is how many addresses s has to give out to those who ask for none by name.
func (r Reserved) Size(s Set) Count {
	var n Count
	for _, run := range r.Cut(s.After(netip.Addr{})) {
		n = n.Add(span(run.First, run.Last))
		if !run.Gateway.Less(run.First) && !run.Last.Less(run.Gateway) && run.Gateway.Is4() == run.First.Is4() {
			n = n.Sub(CountOf(1))
		}
	}
	return n
}
