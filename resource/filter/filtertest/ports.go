package filtertest

import (
	"strings"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/spec"
)

// PortsByIPTables publishes ports of contract.Owner by iptables.
func PortsByIPTables(ports ...publish.Mapping) publish.PortsIPTables {
	return publish.PortsIPTables{MarkBit: 13,
		Ports: publish.Ports{Owner: contract.Owner, To4: contract.Prefix("10.1.2.5/24"),
			To6: contract.Prefix("fd00::5/64"), SNAT: true, Mappings: ports}}
}

// Only lets only some use a mapping.
func Only(m publish.Mapping, prefixes ...string) publish.Mapping {
	for _, p := range prefixes {
		m.AllowFrom = append(m.AllowFrom, contract.Prefix(p))
	}
	return m
}

// TCP is a port of the host that leads to port 80, at an address, or empty.
func TCP(host string, port uint16) publish.Mapping {
	m := publish.Mapping{Protocol: "tcp", HostPort: port, ContainerPort: 80}
	if host != "" {
		m.HostIP = contract.Addr(host)
	}
	return m
}

// PortsOf publishes ports of a container.
func PortsOf(container, network, to string, ports ...publish.Mapping) publish.Ports {
	to6 := "fd00::" + strings.NewReplacer(".", ":", "/24", "/64").Replace(to)
	return publish.Ports{Owner: spec.Owner{Network: network, ContainerID: container, IfName: "eth0"},
		To4: contract.Prefix(to),
		To6: contract.Prefix(to6), SNAT: true, Mappings: ports}
}

// PortsOfA publishes ports of the container a.
func PortsOfA(l *Lab, ports ...publish.Mapping) publish.Ports {
	return publish.Ports{Owner: l.OwnerA, To4: l.ToA, To6: l.ToA6, SNAT: true, Mappings: ports}
}

// Range is a mapping of ports to the same ports of the container.
func Range(host string, first, last uint16) publish.Mapping {
	m := publish.Mapping{Protocol: "tcp", HostPort: first, HostPortEnd: last, ContainerPort: first}
	if host != "" {
		m.HostIP = contract.Addr(host)
	}
	return m
}
