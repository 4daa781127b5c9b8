package filter

import (
	"net/netip"
	"slices"
)

// OfFamily returns the prefixes of one family without duplicates.
func OfFamily(list []netip.Prefix, v6 bool) (out []netip.Prefix) {
	for _, p := range list {
		if p.Addr().Is4In6() {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		if p.IsValid() && p.Addr().Is6() == v6 &&
			!slices.ContainsFunc(out, func(q netip.Prefix) bool { return q == p }) {
			out = append(out, p)
		}
	}
	return out
}

// Masked returns the prefixes without host bits, sorted and without duplicates.
func Masked(list []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, p := range list {
		out[i] = p.Masked()
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	return slices.Compact(out)
}
