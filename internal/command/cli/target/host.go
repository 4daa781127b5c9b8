package target

import (
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
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
					(o.HostIP == m.HostIP || m.Everywhere() || o.Everywhere())
			}
			if c.ContainerID != t.ContainerID && !s.Gone(c) &&
				slices.ContainsFunc(attached.Mappings(c.Capabilities), same) {
				warnings = append(warnings,
					fmt.Sprintf("portmap: %s port %d is published by %s", m.Protocol, m.HostPort,
						attached.ShortOwner(c)))
			}
		}
		listeners, _ := m.Listening(s.Host)
		for _, l := range listeners {
			warnings = append(warnings,
				fmt.Sprintf("portmap: %s port %d: %s listens on %v; once the port is published, it no longer gets "+
					"packets for the host's addresses", m.Protocol, m.HostPort, holder(l.Inode), l.At))
		}
	}
	return warnings
}
