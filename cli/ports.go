package cli

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// A portMapping is an entry of the capability portMappings (clause K1).
type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

func (m portMapping) String() string {
	at := ""
	switch {
	case strings.Contains(m.HostIP, ":"):
		at = "[" + m.HostIP + "]:"
	case m.HostIP != "":
		at = m.HostIP + ":"
	}
	return fmt.Sprintf("%s%d:%d/%s", at, m.HostPort, m.ContainerPort, m.Protocol)
}

// parsePorts reads [HOSTIP:]HOSTPORT:PORT[/PROTOCOL], where both ports may be ranges of one length.
func parsePorts(s string) ([]portMapping, error) {
	bad := func(what string, args ...any) ([]portMapping, error) {
		return nil, usage("-p %s: %s; write [HOSTIP:]HOSTPORT:PORT[/udp], such as 8080:80 or [2001:db8::1]:5353:53/udp", s, fmt.Sprintf(what, args...))
	}
	rest, protocol, found := strings.Cut(s, "/")
	if !found {
		protocol = "tcp"
	}
	switch protocol = strings.ToLower(protocol); protocol {
	case "tcp", "udp", "sctp":
	default:
		return bad("%q is none of tcp, udp and sctp", protocol)
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return bad("a port of the host and one of the command are needed")
	}
	host, inner := rest[:i], rest[i+1:]
	ip := ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		ip, host = strings.TrimSuffix(strings.TrimPrefix(host[:i], "["), "]"), host[i+1:]
		addr, err := netip.ParseAddr(ip)
		if err != nil || addr.Zone() != "" {
			return bad("%q is no address of the host", ip)
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
		return bad("the ranges differ in length")
	}
	var ports []portMapping
	for n := range to - from + 1 {
		ports = append(ports, portMapping{HostPort: from + n, ContainerPort: first + n, Protocol: protocol, HostIP: ip})
	}
	return ports, nil
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
			return 0, 0, fmt.Errorf("%q is no port (1 to 65535)", p.text)
		}
		*p.to = int(n)
	}
	if to < from {
		return 0, 0, fmt.Errorf("the range %s runs backwards", s)
	}
	return from, to, nil
}
