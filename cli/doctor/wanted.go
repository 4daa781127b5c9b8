package doctor

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/cli/attached"
	"github.com/fairlead-cni/fairlead/cli/netconf"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// Wanted implements trace.Wanted with the attachments in the cache and their plans.
type Wanted struct {
	Host *kernel.World
	All  []attach.Cached
}

// Masquerades implements trace.Wanted.
func (w Wanted) Masquerades(src, dst netip.Addr) bool {
	return slices.ContainsFunc(w.living(), func(c attach.Cached) bool {
		has := func(ip spec.IP) bool { return attached.OwnAddress(c, ip) && ip.Address.Addr() == src }
		return slices.ContainsFunc(c.Result.IPs, has) && netconf.NetworkOf(w.Host, &c).Masquerades(src, dst)
	})
}

// living returns the attachments whose containers live.
func (w Wanted) living() []attach.Cached {
	return slices.DeleteFunc(slices.Clone(w.All), func(c attach.Cached) bool {
		return c.Result == nil || attached.IsGone(c)
	})
}

// Gateway implements trace.Wanted.
func (w Wanted) Gateway(container string, six bool) (none netip.Addr) {
	for _, c := range w.living() {
		if !attached.SamePath(c.Netns, container) {
			continue
		}
		for _, r := range c.Result.Routes {
			if r.Dst.Bits() != 0 || r.Dst.Addr().Is6() != six || r.Table != nil {
				continue
			}
			if r.GW.IsValid() {
				return r.GW
			}
			for _, ip := range c.Result.IPs {
				if attached.OwnAddress(c, ip) && ip.Gateway.IsValid() && ip.Gateway.Is6() == six {
					return ip.Gateway
				}
			}
		}
	}
	return none
}

// Publisher implements trace.Wanted.
func (w Wanted) Publisher(dst netip.Addr, proto byte, port uint16) string {
	for _, c := range w.living() {
		if len(attached.Mappings(c.Capabilities)) > 0 && netconf.NetworkOf(w.Host, &c).Publishes(dst, proto, port) {
			return Traced(c).Name
		}
	}
	return ""
}
