package filter

import (
	"cmp"
	"net/netip"
	"slices"
)

// Single returns the prefix that has one address.
func Single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// Loopback returns 127.0.0.0/8.
func Loopback() netip.Prefix { return netip.MustParsePrefix("127.0.0.0/8") }

// Multicast returns the prefix of all multicast addresses of a family.
func Multicast(v6 bool) netip.Prefix {
	if v6 {
		return netip.MustParsePrefix("ff00::/8")
	}
	return netip.MustParsePrefix("224.0.0.0/4")
}

// OfFamily returns the prefixes of one family without duplicates.
func OfFamily(list []netip.Prefix, v6 bool) (out []netip.Prefix) {
	for _, p := range list {
		if p.Addr().Is4In6() {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		if p.IsValid() && p.Addr().Is6() == v6 && !slices.Contains(out, p) {
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
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return slices.Compact(out)
}
