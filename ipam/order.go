package ipam

import (
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
)

// A Span is a part of one range, tried from First to Last. The gateway of its range is passed over.
type Span struct{ First, Last, Gateway netip.Addr }

// After is the order in which the addresses of s are tried when last was given out before: those after
// it, the ranges that follow, the ranges before, and at the end up to last itself. If last is not of s,
// the order begins with the first range.
func (s Set) After(last netip.Addr) []Span {
	var spans []Span
	for i, r := range s.Ranges {
		if !r.Contains(last) {
			continue
		}
		if last != r.RangeEnd {
			spans = append(spans, Span{last.Next(), r.RangeEnd, r.Gateway})
		}
		for j := range len(s.Ranges) - 1 {
			n := s.Ranges[(i+1+j)%len(s.Ranges)]
			spans = append(spans, Span{n.RangeStart, n.RangeEnd, n.Gateway})
		}
		return append(spans, Span{r.RangeStart, last, r.Gateway})
	}
	for _, r := range s.Ranges {
		spans = append(spans, Span{r.RangeStart, r.RangeEnd, r.Gateway})
	}
	return spans
}

// ParseRequest reads an address that somebody asks for: an address, or an address with a prefix, which
// says nothing, for the range's counts.
func ParseRequest(s string) (netip.Addr, error) {
	text, _, _ := strings.Cut(s, "/")
	a, err := netip.ParseAddr(text)
	if err == nil && text != s {
		_, err = netip.ParsePrefix(s)
	}
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, spec.Errorf(spec.CodeConfig, "requested address %q: want an address such as 10.1.0.5 or 10.1.0.5/24", s)
	}
	return a.Unmap(), nil
}

// ParseRequests reads a list of them. Empty ones ask for nothing.
func ParseRequests(list []string) ([]netip.Addr, error) {
	var asked []netip.Addr
	for _, s := range list {
		if s == "" {
			continue
		}
		a, err := ParseRequest(s)
		if err != nil {
			return nil, err
		}
		asked = append(asked, a)
	}
	return asked, nil
}

// Assign says which of the requested addresses each set is to give: the first that is of it, or none. It
// is an error if one is left over. The same address asked for twice is one request.
func Assign(sets []Set, requested []netip.Addr) ([]netip.Addr, error) {
	of := make([]netip.Addr, len(sets))
next:
	for i, a := range requested {
		for _, b := range requested[:i] {
			if a == b {
				continue next
			}
		}
		for j, s := range sets {
			r, ok := s.Find(a)
			switch {
			case !ok:
			case of[j].IsValid():
				return nil, spec.Errorf(spec.CodeConfig, "requested address %s: %s (%s) gives one address, and %s is asked for too",
					a, s.Path, s, of[j])
			case a == r.Gateway:
				return nil, spec.Errorf(spec.CodeConfig, "requested address %s is the gateway of %s", a, r.Subnet)
			default:
				of[j] = a
				continue next
			}
		}
		names := make([]string, len(sets))
		for j, s := range sets {
			names[j] = s.String()
		}
		return nil, spec.Errorf(spec.CodeConfig, "requested address %s is in no range; there is %s", a, strings.Join(names, ", "))
	}
	return of, nil
}
