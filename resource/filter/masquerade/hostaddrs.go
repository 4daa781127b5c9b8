package masquerade

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// HostAddrs requires that the host has some addresses. Packets to another address would not come back to this host.
type HostAddrs []netip.Addr

// String returns a text such as "addr host/any 192.0.2.1, 2001:db8::1".
func (h HostAddrs) String() string { return resource.Addrs("addr host/any", h) }

// Verify returns an error that names each missing address, and the addresses that the host has.
func (h HostAddrs) Verify(_ context.Context, w *kernel.World) error {
	var missing []netip.Addr
	for _, a := range h {
		// Of the route to it, rather than in a list, for a host may be at home in a whole prefix.
		if r, err := rtnl.RouteTo(w.Host, a); err != nil || r.Type != rtnl.Local {
			missing = append(missing, a)
		}
	}
	var errs []error
	for _, a := range missing {
		have, err := ownAddrs(w, a.Is6())
		if err != nil {
			return err
		}
		errs = append(errs, spec.Errorf(spec.CodeConfig,
			"snatTo: %v: is no address of this host, so no answer would come back to it; %s", a, have))
	}
	return errors.Join(errs...)
}

// ownAddrs says which addresses of a family the host has that others can answer to.
func ownAddrs(w *kernel.World, v6 bool) (string, error) {
	links, err := rtnl.Links(w.Host)
	if err != nil {
		return "", err
	}
	var have []string
	for _, l := range links {
		list, err := rtnl.Addrs(w.Host, l.Index)
		if err != nil {
			return "", err
		}
		for _, p := range list {
			if a := p.Prefix.Addr(); a.Is6() == v6 && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
				have = append(have, a.String()+" ("+l.Name+")")
			}
		}
	}
	if have == nil {
		return "it has none of that family", nil
	}
	if more := len(have) - 16; more > 0 {
		have = append(have[:16], "…")
	}
	return "it has " + strings.Join(have, ", "), nil
}
