package ipam

import (
	"net/netip"
	"strconv"
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

// NoHost says why no container can have an address in its subnet, as the end of a sentence; empty where one can.
// What is odd but works on Linux, such as 240.0.0.5 and both ends of a /31, one can.
func NoHost(p netip.Prefix) string {
	const has4 = ": want an address of a subnet, such as 192.0.2.5/24, that is neither its first nor its last"
	a, subnet := p.Addr(), p.Masked()
	switch {
	case a.IsUnspecified():
		return "is no address, but stands for none" + ofFamily(a)
	case a.IsLoopback():
		return "is the host's itself, on every host" + ofFamily(a)
	case a.IsMulticast():
		return "is a group's (multicast), and no single host's" + ofFamily(a)
	case a.Is4In6():
		return "is an IPv4 address in the clothes of IPv6: write " + a.Unmap().String() +
			" with the length of its IPv4 subnet"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "is for all hosts (broadcast)" + ofFamily(a)
	case a.Is6() || p.Bits() > 30 || p.Bits() < 0:
	case a == subnet.Addr():
		return "is the address of the subnet " + subnet.String() + " itself" + has4
	case a == last(subnet):
		return "is the broadcast address of " + subnet.String() + has4
	}
	return ""
}

func ofFamily(a netip.Addr) string {
	if a.Is4() {
		return ": want a container's own address, such as 192.0.2.5/24"
	}
	return ": want a container's own address, such as 2001:db8::5/64"
}

// ParseRequest reads an address that is asked for: an address, or an address with a prefix, which
// says nothing, for the range's counts. Path is where it is said.
func ParseRequest(path, s string) (netip.Addr, error) {
	text, _, _ := strings.Cut(s, "/")
	a, err := netip.ParseAddr(text)
	if err == nil && text != s {
		_, err = netip.ParsePrefix(s)
	}
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, bad(path, "requested address %q: want an address such as 10.1.0.5 or 10.1.0.5/24", s)
	}
	a = a.Unmap()
	if why := NoHost(netip.PrefixFrom(a, a.BitLen())); why != "" {
		return netip.Addr{}, bad(path, "requested address %s %s", a, why)
	}
	return a, nil
}

// Requested are the addresses that are asked for: IPs of runtimeConfig, those of args.cni, and if there are none
// there, those of IP of CNI_ARGS, which is a list for a container of both families. Empty ones ask for nothing.
func Requested(ips, args []string, ofEnv string,
	check func(path string, a netip.Addr) error) (asked []netip.Addr, err error) {
	read := func(list []string, at func(i int) string) {
		for i, s := range list {
			if s == "" || err != nil {
				continue
			}
			var a netip.Addr
			if a, err = ParseRequest(at(i), s); err == nil {
				err = check(at(i), a)
			}
			asked = append(asked, a)
		}
	}
	read(ips, func(i int) string { return "runtimeConfig.ips[" + strconv.Itoa(i) + "]" })
	read(args, func(i int) string { return "args.cni.ips[" + strconv.Itoa(i) + "]" })
	if len(args) == 0 { // args beats CNI_ARGS (clause K11)
		read(strings.Split(ofEnv, ","), func(int) string { return "CNI_ARGS: IP" })
	}
	if err != nil {
		return nil, err
	}
	return asked, nil
}

// Requestable is nil where a container can have a in each subnet of sets that it is of.
func Requestable(path string, a netip.Addr, sets []Set) error {
	for _, s := range sets {
		for _, r := range s.Ranges {
			if why := NoHost(netip.PrefixFrom(a, r.Subnet.Bits())); why != "" && r.Subnet.Contains(a) {
				return bad(path, "requested address %s %s", a, why)
			}
		}
	}
	return nil
}

// Asked is the hint about an address that was asked for by itself.
const Asked = "It was asked for by IP of CNI_ARGS, by ips of CAP_ARGS or of another runtime, or by the network's " +
	"args; without them the next free one is given."

func asked(format string, args ...any) error {
	return spec.Errorf(spec.CodeConfig, format, args...).WithHint(Asked)
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
				return nil, asked("requested address %s: %s (%s) gives one address, and %s is asked for too", a, s.Path,
					s, of[j])
			case a == r.Gateway:
				return nil, asked("requested address %s is the gateway of %s", a, r.Subnet)
			default:
				of[j] = a
				continue next
			}
		}
		names := make([]string, len(sets))
		for j, s := range sets {
			names[j] = s.String()
		}
		return nil, asked("requested address %s is in no range; there is %s", a, strings.Join(names, ", "))
	}
	return of, nil
}
