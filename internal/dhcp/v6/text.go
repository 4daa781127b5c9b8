package v6

import (
	"net/netip"
	"slices"
	"strings"
)

// ordinary reports whether an address can be a host's.
func ordinary(a netip.Addr) bool {
	return a.Is6() && !a.Is4In6() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast()
}

func addrs(b []byte) (as []netip.Addr) {
	for ; len(b) >= 16 && len(as) < most; b = b[16:] {
		as = append(as, netip.AddrFrom16([16]byte(b)))
	}
	return as
}

// names are domain names one after the other, never compressed (RFC 8415, 10; RFC 8106, 5.2), in a text that padding of
// zeroes may follow. One that may not stand in a resolv.conf is left out, and what follows an unreadable one.
func names(b []byte) (list []string) {
	for len(b) > 0 && len(list) < most {
		var labels []string
		for {
			if len(b) == 0 || int(b[0]) >= len(b) || b[0] > 63 {
				return list
			}
			n := int(b[0])
			part := string(b[1 : 1+n])
			b = b[1+n:]
			if n == 0 {
				break
			}
			labels = append(labels, part)
		}
		d := strings.Join(labels, ".")
		if len(d) > 0 && len(d) < 254 && !slices.ContainsFunc(labels, strange) && !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	return list
}

func strange(label string) bool {
	return strings.ContainsFunc(label, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
	})
}

// label is a name of a host on the wire, without an end: the domain is the server's to add.
func label(name string) (b []byte) {
	for _, part := range strings.Split(strings.TrimSuffix(name, "."), ".") {
		part = part[:min(len(part), 63)]
		b = append(append(b, byte(len(part))), part...)
	}
	return b
}

// printable is a server's text without what could confuse a terminal.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return -1
		}
		return r
	}, s)
	return s[:min(len(s), 200)]
}
