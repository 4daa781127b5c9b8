package attached

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/kernel/sockdiag"
	"github.com/fairlead-cni/fairlead/kernel"
)

// Number returns the IP protocol number of a mapping.
func (m PortMapping) Number() byte {
	proto, _ := kernel.ParseProto(m.Protocol)
	return proto
}

// Host returns the address of the host that a port is published on. It is invalid if the mapping names none.
func (m PortMapping) Host() netip.Addr {
	a, _ := netip.ParseAddr(m.HostIP)
	return a
}

// Everywhere reports whether a port is published on all addresses of the host, or all of a family.
func (m PortMapping) Everywhere() bool { return !m.Host().IsValid() || m.Host().IsUnspecified() }

// Listening returns the sockets of a host that listen on a published port.
func (m PortMapping) Listening(host *kernel.NS) ([]sockdiag.Listener, error) {
	all, err := sockdiag.Listeners(host, m.Number(), uint16(m.HostPort))
	other := func(l sockdiag.Listener) bool { return !m.Everywhere() && !l.Takes(m.Host()) }
	return slices.DeleteFunc(all, other), err
}

// maxPorts limits how many ports of a range are examined.
const maxPorts = 64

// Mappings returns the ports that a container with these capability arguments publishes, one mapping for each port.
func Mappings(capabilities map[string]any) (all []PortMapping) {
	raw, err := json.Marshal(capabilities["portMappings"])
	if err != nil {
		return nil
	}
	var given []PortMapping
	if json.Unmarshal(raw, &given) != nil {
		return nil
	}
	for _, m := range given {
		if m.Protocol == "" {
			m.Protocol = "tcp"
		}
		for i := range min(max(m.HostPort, m.HostPortEnd)-m.HostPort+1, maxPorts) {
			one := m
			one.HostPort, one.ContainerPort, one.HostPortEnd = m.HostPort+i, m.ContainerPort+i, 0
			all = append(all, one)
		}
	}
	return all
}

// PortMapping is an entry of the capability portMappings (clause K1).
type PortMapping attach.PortMapping

// String returns the mapping as -p takes it.
func (m PortMapping) String() string {
	at := ""
	switch {
	case strings.Contains(m.HostIP, ":"):
		at = "[" + m.HostIP + "]:"
	case m.HostIP != "":
		at = m.HostIP + ":"
	}
	text := func(first int) string {
		if m.HostPortEnd == 0 {
			return strconv.Itoa(first)
		}
		return fmt.Sprintf("%d-%d", first, first+m.HostPortEnd-m.HostPort)
	}
	return at + text(m.HostPort) + ":" + text(m.ContainerPort) + "/" + m.Protocol
}

// ParsePorts reads [HOSTIP:]HOSTPORT:PORT[/PROTOCOL], where both ports may be ranges of one length.
func ParsePorts(s string) (m PortMapping, err error) {
	bad := func(what string, args ...any) (PortMapping, error) {
		return m, app.Usage("-p %s: %s; write [HOSTIP:]HOSTPORT:PORT[/udp], such as 8080:80, 8000-8009:8000-8009 or "+
			"[2001:db8::1]:5353:53/udp", s, fmt.Sprintf(what, args...))
	}
	rest, protocol, found := strings.Cut(s, "/")
	if !found {
		protocol = "tcp"
	}
	switch protocol = strings.ToLower(protocol); protocol {
	case "tcp", "udp", "sctp":
	default:
		return bad("%q is not tcp, udp or sctp", protocol)
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return bad("give a port of the host and a port of the command")
	}
	host, inner := rest[:i], rest[i+1:]
	ip := ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		ip, host = strings.TrimSuffix(strings.TrimPrefix(host[:i], "["), "]"), host[i+1:]
		addr, err := netip.ParseAddr(ip)
		if err != nil || addr.Zone() != "" {
			return bad("%q is not an IP address", ip)
		}
	}
	from, to, err := portRange(host)
	if err != nil {
		return bad("%v", err)
	}
	first, last, err := portRange(inner)
	if err != nil {
		return bad("%v", err)
	}
	if to-from != last-first {
		return bad("the two ranges have different lengths")
	}
	m = PortMapping{HostPort: from, ContainerPort: first, Protocol: protocol, HostIP: ip}
	if to > from {
		m.HostPortEnd = to
	}
	return m, nil
}

func portRange(s string) (from, to int, err error) {
	first, last, found := strings.Cut(s, "-")
	if !found {
		last = first
	}
	for _, p := range []struct {
		text string
		to   *int
	}{{first, &from}, {last, &to}} {
		n, err := strconv.ParseUint(p.text, 10, 16)
		if err != nil || n == 0 {
			return 0, 0, fmt.Errorf("%q is not a port (1 to 65535)", p.text)
		}
		*p.to = int(n)
	}
	if to < from {
		return 0, 0, fmt.Errorf("the range %s ends before it begins", s)
	}
	return from, to, nil
}
