package portmap

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/spec"
)

// parse checks the ith mapping; every error says the path, the value and what is allowed.
func (m mapping) parse(i int) (p publish.Mapping, err error) {
	bad := func(key string, value any, format string, args ...any) error {
		return spec.Errorf(spec.CodeConfig, "runtimeConfig.portMappings[%d].%s: %v: want "+format,
			append([]any{i, key, value}, args...)...)
	}
	p.Protocol = strings.ToLower(cmp.Or(m.Protocol, "tcp"))
	if !slices.Contains([]string{"tcp", "udp", "sctp"}, p.Protocol) {
		return p, bad("protocol", m.Protocol, "tcp, udp or sctp")
	}
	for _, port := range []struct {
		key string
		n   int
	}{{"hostPort", m.HostPort}, {"containerPort", m.ContainerPort}} {
		if port.n < 1 || port.n > 65535 {
			return p, bad(port.key, port.n, "1 to 65535")
		}
	}
	more := 0 // ports after the first
	switch {
	case m.HostPortEnd != 0:
		if more = m.HostPortEnd - m.HostPort; more < 0 || m.HostPortEnd > 65535 {
			return p, bad("hostPortEnd", m.HostPortEnd, "hostPort, which is %d, to 65535", m.HostPort)
		}
	case m.ContainerPortEnd != 0 && m.ContainerPortEnd != m.ContainerPort:
		return p, bad("containerPortEnd", m.ContainerPortEnd, "hostPortEnd too: both ranges have the same length")
	}
	last := m.ContainerPort + more
	switch {
	case m.ContainerPortEnd != 0 && m.ContainerPortEnd != last:
		return p, bad("containerPortEnd", m.ContainerPortEnd,
			"%d, or leave the key out: both ranges have the same length, and hostPort to hostPortEnd are %d ports",
			last,
			more+1)
	case last > 65535:
		return p, bad("containerPort", m.ContainerPort,
			"at most %d: hostPort to hostPortEnd are %d ports, and the last of the container would be %d", 65535-more,
			more+
				1, last)
	case m.HostPort != m.ContainerPort && more >= publish.MaxShifted:
		return p, bad("hostPortEnd", m.HostPortEnd,
			"at most %d: a range that leads to other ports needs an entry for each port, and %d are the maximum; a "+
				"range with containerPort equal to hostPort may have any length", m.HostPort+
				publish.MaxShifted-1, publish.MaxShifted)
	}
	p.HostPort, p.ContainerPort = uint16(m.HostPort), uint16(m.ContainerPort)
	if more > 0 {
		p.HostPortEnd = uint16(m.HostPortEnd)
	}
	if m.HostIP != "" {
		if p.HostIP, err = netip.ParseAddr(m.HostIP); err != nil || p.HostIP.Zone() != "" {
			return p, bad("hostIP", m.HostIP, "an IP address of the host, such as 192.0.2.1, or no value for all of "+
				"them")
		}
		p.HostIP = p.HostIP.Unmap()
	}
	return p, m.allowed(i, &p)
}

// allowed checks the list of clients that reach the port. An empty list would close the port, which is surely not
// meant.
func (m mapping) allowed(i int, p *publish.Mapping) error {
	path := fmt.Sprintf("runtimeConfig.portMappings[%d].allowFrom", i)
	if m.AllowFrom != nil && len(m.AllowFrom) == 0 {
		return spec.Errorf(spec.CodeConfig,
			"%s: []: no client could reach the port; want at least one prefix, or remove the key to let all in",
			path)
	}
	reachable := len(m.AllowFrom) == 0 || !p.HostIP.IsValid() || p.HostIP.IsUnspecified()
	known := map[netip.Prefix]bool{}
	for j, from := range m.AllowFrom {
		switch bits := from.Addr().BitLen(); {
		case !from.IsValid(): // an empty string
			return spec.Errorf(spec.CodeConfig, `%s[%d]: "": want a prefix, such as 192.0.2.0/24 or 2001:db8::/32`,
				path, j)
		case from.Addr().Is4In6():
			return spec.Errorf(spec.CodeConfig,
				"%s[%d]: %v: want an IPv4 prefix in dotted notation, such as 192.0.2.0/24", path, j, from)
		case from != from.Masked():
			return spec.Errorf(spec.CodeConfig,
				"%s[%d]: %v: has bits set after its prefix length; want %v, or %v for that one address", path, j, from,
				from.Masked(), netip.PrefixFrom(from.Addr(), bits))
		}
		reachable = reachable || from.Addr().Is4() == p.HostIP.Is4()
		if !known[from] {
			known[from] = true
			p.AllowFrom = append(p.AllowFrom, from)
		}
	}
	if !reachable {
		return spec.Errorf(spec.CodeConfig,
			"%s: %v: no client could reach the port; want a prefix of the family of hostIP, which is %v", path,
			m.AllowFrom, p.HostIP)
	}
	return nil
}
