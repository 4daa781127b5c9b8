package target

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/kernel/sockdiag"
	"github.com/fairlead-cni/fairlead/kernel"
)

// Lacks returns warnings of what an ADD of t would miss on this host now, after Plan has looked: what the plugins
// require, kinds of links that the kernel lacks, and ports that are in use. It leaves out what it may not read.
func (t *Target) Lacks() (warnings []string) {
	warnings = slices.Clone(t.unmet)
	if !t.Publishes() {
		return warnings
	}
	s, err := snapshot.Read("")
	if err != nil {
		return warnings
	}
	defer s.Close()
	return append(warnings, t.taken(s)...)
}

// taken returns warnings of the ports of t that are in use.
func (t *Target) taken(s *snapshot.Snapshot) (warnings []string) {
	holder := attached.Holders()
	for _, m := range attached.Mappings(t.Capabilities) {
		for _, c := range s.All {
			same := func(o attached.PortMapping) bool {
				return o.HostPort == m.HostPort && o.Protocol == m.Protocol &&
					(o.HostIP == m.HostIP || everywhere(m) || everywhere(o))
			}
			if c.ContainerID != t.ContainerID && !s.Gone(c) &&
				slices.ContainsFunc(attached.Mappings(c.Capabilities), same) {
				warnings = append(warnings,
					fmt.Sprintf("portmap: %s port %d is published by %s", m.Protocol, m.HostPort,
						attached.ShortOwner(c)))
			}
		}
		for _, l := range listeners(m, s.Host) {
			warnings = append(warnings,
				fmt.Sprintf("portmap: %s port %d: %s listens on %v; once the port is published, it no longer gets "+
					"packets for the host's addresses", m.Protocol, m.HostPort, holder(l.Inode), l.At))
		}
	}
	return warnings
}

// everywhere reports whether a port is published on all addresses of the host.
func everywhere(m attached.PortMapping) bool {
	a, err := netip.ParseAddr(m.HostIP)
	return err != nil || a.IsUnspecified()
}

// listeners returns the host's sockets that listen on a port of m.
func listeners(m attached.PortMapping, host *kernel.NS) []sockdiag.Listener {
	all, err := sockdiag.Listeners(host, m.Number(), uint16(m.HostPort))
	if err != nil {
		return nil
	}
	at, _ := netip.ParseAddr(m.HostIP)
	return slices.DeleteFunc(all, func(l sockdiag.Listener) bool { return !everywhere(m) && !l.Takes(at) })
}
