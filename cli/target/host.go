package target

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/fairlead-cni/fairlead/cli/attached"
	"github.com/fairlead-cni/fairlead/cli/netconf"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/sockdiag"
	"github.com/fairlead-cni/fairlead/spec"
)

// Lacks returns warnings of what an ADD of t would miss on this host now: what the plugins require, kinds of links
// that the kernel lacks, and ports that are in use. It leaves out what it may not read.
func (t *Target) Lacks(ctx context.Context) (warnings []string) {
	host, err := kernel.Open("")
	if err != nil {
		return nil
	}
	defer host.Close()
	version, err := spec.Select(t.List)
	if err != nil {
		return nil
	}
	for _, conf := range t.WrittenOut().Plugins {
		p := netconf.OfType(conf.Type)
		raw, err := t.request(conf, version)
		if p == nil || err != nil {
			continue
		}
		if conf, err = spec.ParseConf(raw); err != nil {
			continue
		}
		if err := p.Unmet(ctx, host, conf); err != nil && !app.Denied(err) {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				warnings = append(warnings, p.Name+": "+line)
			}
		}
	}
	if t.Publishes() {
		warnings = append(warnings, t.taken(host)...)
	}
	return warnings
}

// taken returns warnings of the ports of t that are in use.
func (t *Target) taken(host *kernel.NS) (warnings []string) {
	list, _ := (&attach.Runtime{}).List("")
	holder := attached.Holders()
	for _, m := range attached.Mappings(t.Capabilities) {
		for _, c := range list {
			same := func(o attached.PortMapping) bool {
				return o.HostPort == m.HostPort && o.Protocol == m.Protocol &&
					(o.HostIP == m.HostIP || everywhere(m) || everywhere(o))
			}
			if c.ContainerID != t.ContainerID && !attached.IsGone(c) &&
				slices.ContainsFunc(attached.Mappings(c.Capabilities), same) {
				warnings = append(warnings,
					fmt.Sprintf("portmap: %s port %d is published by %s", m.Protocol, m.HostPort,
						attached.ShortOwner(c)))
			}
		}
		for _, l := range listeners(m, host) {
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
