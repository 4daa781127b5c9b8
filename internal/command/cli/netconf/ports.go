package netconf

import (
	"slices"

	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/spec"
)

// Understood returns the mappings as the plugin of n expects them. Only this project's portmap knows ranges; another
// would publish the first port and not report it, so ranges are divided for it.
func (n *Network) Understood(ports []attached.PortMapping) (all []attached.PortMapping) {
	if !slices.ContainsFunc(ports, func(m attached.PortMapping) bool { return m.HostPortEnd != 0 }) {
		return ports
	}
	other := Foreign()
	if !slices.ContainsFunc(n.WrittenOut().Plugins, func(p *spec.Conf) bool {
		return p.Capabilities["portMappings"] && (p.Type != "portmap" || other(n.List, p.Type) != "")
	}) {
		return ports
	}
	for _, m := range ports {
		for i := range max(m.HostPort, m.HostPortEnd) - m.HostPort + 1 {
			one := m
			one.HostPort, one.ContainerPort, one.HostPortEnd = m.HostPort+i, m.ContainerPort+i, 0
			all = append(all, one)
		}
	}
	return all
}
