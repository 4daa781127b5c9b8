package trace

import (
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/cli/attached"
	"github.com/fairlead-cni/fairlead/cli/doctor"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// wantedOf implements trace.Wanted with the attachments in the cache.
type wantedOf []attach.Cached

// Masquerades implements trace.Wanted.
func (w wantedOf) Masquerades(src, dst netip.Addr) bool {
	in := func(p netip.Prefix) bool { return p.Contains(dst) }
	return slices.ContainsFunc(w, func(c attach.Cached) bool {
		if attached.IsGone(c) || c.Result == nil || dst.IsMulticast() {
			return false
		}
		at := slices.IndexFunc(c.Result.IPs, func(ip spec.IP) bool {
			return attached.OwnAddress(c, ip) &&
				ip.Address.Addr() == src
		})
		l := c.AttachedBy(nil)
		if at < 0 || l == nil {
			return false
		}
		for _, p := range l.WrittenOut().Plugins {
			var conf sdk.Masquerade
			raw, err := p.Object.MarshalJSON()
			if err != nil || json.Unmarshal(raw, &conf) != nil || !conf.IPMasq {
				continue
			}
			kept := in(c.Result.IPs[at].Address.Masked()) || slices.ContainsFunc(conf.MasqExcept, in)
			if !kept || slices.ContainsFunc(conf.MasqForce, in) {
				return true
			}
		}
		return false
	})
}

// Gateway implements trace.Wanted.
func (w wantedOf) Gateway(container string, six bool) (none netip.Addr) {
	for _, c := range w {
		if attached.IsGone(c) || c.Result == nil || !attached.SamePath(c.Netns, container) {
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
func (w wantedOf) Publisher(dst netip.Addr, proto byte, port uint16) string {
	for _, c := range w {
		if dst.IsLoopback() && (dst.Is6() || !loopback(c)) {
			continue // the rules leave these out
		}
		family := func(ip spec.IP) bool { return attached.OwnAddress(c, ip) && ip.Address.Addr().Is6() == dst.Is6() }
		if attached.IsGone(c) || c.Result == nil || !slices.ContainsFunc(c.Result.IPs, family) {
			continue
		}
		for _, m := range attached.Mappings(c.Capabilities) {
			at, err := netip.ParseAddr(m.HostIP)
			all := err != nil || at.IsUnspecified() && at.Is6() == dst.Is6()
			if m.HostPort == int(port) && m.Number() == proto && (all || at == dst) {
				return doctor.Traced(c).Name
			}
		}
	}
	return ""
}

// loopback reports whether the network of an attachment publishes its ports on 127.0.0.1 too.
func loopback(c attach.Cached) bool {
	l := c.AttachedBy(nil)
	return l != nil && !slices.ContainsFunc(l.WrittenOut().Plugins, func(p *spec.Conf) bool {
		var conf struct {
			SNAT *bool `json:"snat"`
		}
		raw, err := p.Object.MarshalJSON()
		return err != nil || json.Unmarshal(raw, &conf) != nil || conf.SNAT != nil && !*conf.SNAT
	})
}
