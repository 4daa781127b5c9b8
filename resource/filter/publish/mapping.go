package publish

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/fairlead-cni/fairlead/resource"
)

// MaxShifted is how many ports a range may have that leads to ports of other numbers: each of them takes
// elements of its own. A range that leads to the same numbers is one element, however long.
const MaxShifted = 4096

// A Mapping is one port of the host that leads to a port of the container, or a range of ports that leads
// to a range of the same length.
type Mapping struct {
	Protocol                string     // tcp, udp or sctp
	HostIP                  netip.Addr // invalid or unspecified: any address of the host
	HostPort, ContainerPort uint16
	HostPortEnd             uint16         // last port of a range that begins at HostPort; 0: one port
	AllowFrom               []netip.Prefix // who reaches the port; none: all
}

// Last is the last port of the host.
func (m Mapping) Last() uint16 { return max(m.HostPort, m.HostPortEnd) }

// Len is the number of ports.
func (m Mapping) Len() int { return int(m.Last()-m.HostPort) + 1 }

// String is "tcp dport 8080 : 80", with "daddr 192.0.2.1 " before it where an address is given, with
// ranges such as 8000-8010, and with who is let in behind it.
func (m Mapping) String() string {
	s := fmt.Sprintf("%s dport %s : %s", m.Protocol, portsText(m.HostPort, m.Last()),
		portsText(m.ContainerPort, m.ContainerPort+(m.Last()-m.HostPort)))
	if m.HostIP.IsValid() && !m.HostIP.IsUnspecified() {
		s = "daddr " + m.HostIP.String() + " " + s
	}
	return resource.Line(s, resource.Prefixes("saddr", m.AllowFrom))
}

// Host is the address of the host in a family, unspecified for any; not ok is one of the other family.
func (m Mapping) Host(v6 bool) (host netip.Addr, ok bool) {
	host = m.HostIP.Unmap().WithZone("")
	if !host.IsValid() || host.IsUnspecified() {
		return anyAddr(v6), true
	}
	return host, host.Is6() == v6
}

// anyAddr is 0.0.0.0 or ::.
func anyAddr(v6 bool) netip.Addr {
	if v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// portsText is "80" or "80-90".
func portsText(first, last uint16) string {
	s := strconv.Itoa(int(first))
	if last > first {
		s += "-" + strconv.Itoa(int(last))
	}
	return s
}

// pieces are the mapping itself or, where its ports lead to ports of other numbers, one of each port.
func (m Mapping) pieces() []Mapping {
	if m.HostPort == m.ContainerPort {
		return []Mapping{m}
	}
	all := make([]Mapping, m.Len())
	for i := range all {
		all[i] = m
		all[i].HostPort, all[i].ContainerPort, all[i].HostPortEnd = m.HostPort+uint16(i), m.ContainerPort+uint16(i), 0
	}
	return all
}

// AllPieces are the pieces of all mappings.
func AllPieces(list []Mapping) (all []Mapping) {
	for _, m := range list {
		all = append(all, m.pieces()...)
	}
	return all
}
