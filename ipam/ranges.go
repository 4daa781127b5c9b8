package ipam

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
)

// A Range is a run of addresses of one subnet. A configuration may say the subnet alone; Complete fills
// in the rest.
type Range struct {
	// Subnet of the range, such as 10.1.0.0/24. Containers get their addresses with its prefix length.
	Subnet netip.Prefix `json:"subnet"`
	// First address to allocate. Default: the first address after the subnet's network address.
	RangeStart netip.Addr `json:"rangeStart"`
	// Last address to allocate. Default: the last address of the subnet, for IPv4 the one before the broadcast address.
	RangeEnd netip.Addr `json:"rangeEnd"`
	// Gateway of the addresses. It is part of the result and is never allocated. Default: the first address after the
	// subnet's network address.
	Gateway netip.Addr `json:"gateway"`
}

// A Set is a pool: one address for each owner comes out of it, from any of its ranges.
type Set struct {
	Path   string // where the configuration says it, for messages: "ipam.ranges[0]", or "ipam" for a lone range
	Ranges []Range
}

// path is where the configuration says range i.
func (s Set) path(i int) string {
	if strings.HasSuffix(s.Path, "]") {
		return s.Path + "[" + strconv.Itoa(i) + "]"
	}
	return s.Path
}

// String is the addresses that r gives out.
func (r Range) String() string { return r.RangeStart.String() + "-" + r.RangeEnd.String() }

// String is the addresses that s gives out.
func (s Set) String() string {
	names := make([]string, len(s.Ranges))
	for i, r := range s.Ranges {
		names[i] = r.String()
	}
	return strings.Join(names, ", ")
}

// Contains reports whether r gives out a, be it the gateway's.
func (r Range) Contains(a netip.Addr) bool {
	return a.Is4() == r.RangeStart.Is4() && !a.Less(r.RangeStart) && !r.RangeEnd.Less(a)
}

// Find returns the range of s that a is of.
func (s Set) Find(a netip.Addr) (Range, bool) {
	for _, r := range s.Ranges {
		if r.Contains(a) {
			return r, true
		}
	}
	return Range{}, false
}

// Size is how many addresses s has to give out.
func (s Set) Size() Count {
	var n Count
	for _, r := range s.Ranges {
		n = n.Add(span(r.RangeStart, r.RangeEnd))
		if r.Contains(r.Gateway) {
			n = n.Sub(CountOf(1))
		}
	}
	return n
}

// Is4 reports the family of s.
func (s Set) Is4() bool { return len(s.Ranges) > 0 && s.Ranges[0].Subnet.Addr().Is4() }

// mostRanges is how many ranges a network may have.
const mostRanges = 4096

// Complete fills in what the ranges of sets leave out, and refuses what cannot be meant. An error names
// the path of the value, the value, and what would be right.
func Complete(sets []Set) ([]Set, error) {
	out := make([]Set, len(sets))
	n := 0
	for i, s := range sets {
		if n += len(s.Ranges); n > mostRanges { // each is compared with each
			return nil, bad(s.Path, "contains range %d: want at most %d ranges", mostRanges+1, mostRanges)
		}
		c := Set{Path: s.Path}
		if len(s.Ranges) == 0 {
			return nil, bad(s.Path, "is an empty list: add a range, or remove the list")
		}
		for j, r := range s.Ranges {
			r, err := complete(r, s.path(j))
			if err != nil {
				return nil, err
			}
			for k, before := range c.Ranges {
				if before.Subnet.Addr().Is4() != r.Subnet.Addr().Is4() {
					return nil, bad(s.path(j)+".subnet",
						"%s and %s of %s are of different families: want a separate list for each family",
						r.Subnet, before.Subnet,
						s.path(k))
				}
				if overlap(before, r) {
					return nil, bad(s.path(j), "%s overlaps %s of %s", r, before, s.path(k))
				}
			}
			c.Ranges = append(c.Ranges, r)
		}
		for k, before := range out[:i] {
			for j, r := range c.Ranges {
				for l, b := range before.Ranges {
					if overlap(b, r) {
						return nil, bad(s.path(j), "%s overlaps %s of %s", r, b, out[k].path(l))
					}
				}
			}
		}
		out[i] = c
	}
	return out, nil
}

func complete(r Range, path string) (Range, error) {
	if !r.Subnet.IsValid() {
		return r, bad(path+".subnet", "is missing: want a subnet, such as 10.1.0.0/24")
	}
	if a := r.Subnet.Addr(); a.Is4In6() && r.Subnet.Bits() >= 96 {
		r.Subnet = netip.PrefixFrom(a.Unmap(), r.Subnet.Bits()-96)
	}
	if masked := r.Subnet.Masked(); masked != r.Subnet {
		return r, bad(path+".subnet", "%s has host bits set; the network is %s", r.Subnet, masked)
	}
	longest := 30
	if r.Subnet.Addr().Is6() {
		longest = 126
	}
	if r.Subnet.Bits() > longest {
		return r, bad(path+".subnet", "%s is too small to allocate from: the longest prefix is /%d", r.Subnet, longest)
	}
	for _, f := range []struct {
		key  string
		addr *netip.Addr
	}{{"rangeStart", &r.RangeStart}, {"rangeEnd", &r.RangeEnd}, {"gateway", &r.Gateway}} {
		*f.addr = f.addr.Unmap()
		switch {
		case !f.addr.IsValid():
		case f.addr.Zone() != "":
			return r, bad(path+"."+f.key, "%s has a zone; write %s", f.addr, f.addr.WithZone(""))
		case f.key == "gateway" && f.addr.Is4() != r.Subnet.Addr().Is4():
			return r, bad(path+".gateway", "%s is not of the family of %s", f.addr, r.Subnet)
		case f.key != "gateway" && !r.Subnet.Contains(*f.addr): // a gateway elsewhere is the reference's freedom
			return r, bad(path+"."+f.key, "%s is not in %s, which is %s-%s", f.addr, r.Subnet, r.Subnet.Addr(),
				last(r.Subnet))
		}
	}
	if !r.Gateway.IsValid() {
		r.Gateway = r.Subnet.Addr().Next()
	}
	if !r.RangeStart.IsValid() {
		r.RangeStart = r.Subnet.Addr().Next()
	}
	if !r.RangeEnd.IsValid() {
		if r.RangeEnd = last(r.Subnet); r.RangeEnd.Is4() {
			r.RangeEnd = r.RangeEnd.Prev()
		}
	}
	if r.RangeEnd.Less(r.RangeStart) {
		return r, bad(path+".rangeEnd", "%s is below the start of the range, %s", r.RangeEnd, r.RangeStart)
	}
	return r, nil
}

func overlap(a, b Range) bool {
	return a.RangeStart.Is4() == b.RangeStart.Is4() && !a.RangeEnd.Less(b.RangeStart) && !b.RangeEnd.Less(a.RangeStart)
}

func bad(path, format string, args ...any) error {
	return spec.Errorf(spec.CodeConfig, path+": "+format, args...)
}

// First returns the address that s allocates first while all are free, except those reserved.
func (s Set) First(reserved Reserved) (ip spec.IP, ok bool) {
	for _, span := range reserved.Cut(s.After(netip.Addr{})) {
		a := span.First
		if a == span.Gateway {
			a = a.Next()
		}
		if r, found := s.Find(a); found && !span.Last.Less(a) {
			return spec.IP{Address: netip.PrefixFrom(a, r.Subnet.Bits()), Gateway: r.Gateway}, true
		}
	}
	return spec.IP{}, false
}
