package publish

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// MaxShifted is the greatest length of a range whose container ports have other numbers. Each port of such a range
// needs elements of its own. A range with equal numbers is one element, whatever its length.
const MaxShifted = 4096

// A Mapping maps one port of the host to a port of the container, or a range of ports to a range of the same length.
type Mapping struct {
	Protocol                string     // tcp, udp or sctp
	HostIP                  netip.Addr // invalid or unspecified: any address of the host
	HostPort, ContainerPort uint16
	HostPortEnd             uint16         // last port of a range that begins at HostPort; 0: one port
	AllowFrom               []netip.Prefix // who reaches the port; none: all
}

// Last returns the last port of the host.
func (m Mapping) Last() uint16 { return max(m.HostPort, m.HostPortEnd) }

// Len returns the number of ports.
func (m Mapping) Len() int { return int(m.Last()-m.HostPort) + 1 }

// String returns a text such as "tcp dport 8080 : 80". An address comes first as "daddr 192.0.2.1 ". A range is
// written 8000-8010. The permitted sources come last.
func (m Mapping) String() string {
	s := fmt.Sprintf("%s dport %s : %s", m.Protocol, portsText(m.HostPort, m.Last()),
		portsText(m.ContainerPort, m.ContainerPort+(m.Last()-m.HostPort)))
	if m.HostIP.IsValid() && !m.HostIP.IsUnspecified() {
		s = "daddr " + m.HostIP.String() + " " + s
	}
	return resource.Line(s, resource.Prefixes("saddr", m.AllowFrom))
}

// Host returns the address of the host in a family, or the unspecified address for any. Ok is false if the mapping is
// for an address of the other family.
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

// dports are the ports of the host as iptables-save prints them: "80" or "80:90".
func (m Mapping) dports() string {
	return strings.ReplaceAll(portsText(m.HostPort, m.Last()), "-", ":")
}

// proto returns the number of the protocol, or an error if the mapping is none.
func (m Mapping) proto() (byte, error) {
	proto, known := kernel.ParseProto(m.Protocol)
	empty := m.HostPort == 0 || m.ContainerPort == 0
	reversed := m.HostPortEnd != 0 && m.HostPortEnd < m.HostPort
	tooLong := int(m.ContainerPort)+m.Len() > 65536
	if !known || empty || reversed || tooLong {
		return 0, spec.Errorf(spec.CodeConfig,
			"port mapping %v: want tcp, udp or sctp, and two ports, or ranges of one length, from 1 to 65535", m)
	}
	return proto, nil
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

// AllPieces returns the pieces of all mappings.
func AllPieces(list []Mapping) (all []Mapping) {
	for _, m := range list {
		all = append(all, m.pieces()...)
	}
	return all
}

// publishes reports whether a port of the host leads to the container. [::1] never does, and 127.0.0.1 only if the
// answers come back.
func (p Ports) publishes(dst netip.Addr, proto byte, port uint16) bool {
	to, _ := p.Family(dst.Is6())
	comesBack := !dst.IsLoopback() || dst.Is4() && p.SNAT
	if !to.IsValid() || !comesBack {
		return false
	}
	return slices.ContainsFunc(p.Mappings, func(m Mapping) bool {
		number, _ := kernel.ParseProto(m.Protocol)
		anyAddr := !m.HostIP.IsValid() || m.HostIP.IsUnspecified() && m.HostIP.Is6() == dst.Is6()
		isPort := number == proto && m.HostPort <= port && port <= m.Last()
		return isPort && (anyAddr || m.HostIP == dst)
	})
}
