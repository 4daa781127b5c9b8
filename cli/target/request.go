package target

import (
	"encoding/json"
	"net/netip"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
)

// request returns the configuration that the plugin would get on stdin, without prevResult.
func (t *Target) request(conf *spec.Conf, version spec.Version) ([]byte, error) {
	o := conf.Object
	if err := o.Set("name", t.Name); err != nil {
		return nil, err
	}
	if err := o.Set("cniVersion", version); err != nil {
		return nil, err
	}
	given := map[string]any{}
	for name, value := range t.Capabilities {
		if conf.Capabilities[name] {
			given[name] = value
		}
	}
	if len(given) > 0 {
		if err := o.Set("runtimeConfig", given); err != nil {
			return nil, err
		}
	}
	return o.MarshalJSON()
}

// Example returns addresses and routes that the IPAM plugin of a configuration might give.
func Example(c *spec.Conf) (ips []spec.IP, routes []spec.Route) {
	raw, ok := c.Object.Get("ipam")
	if !ok {
		return nil, nil
	}
	var conf struct {
		ipam.Range
		Ranges    [][]ipam.Range
		Reserved  []string
		Addresses []struct {
			Address netip.Prefix
			Gateway netip.Addr
		}
		Routes []struct {
			Dst netip.Prefix
			GW  netip.Addr
		}
	}
	if json.Unmarshal(raw, &conf) != nil {
		return nil, nil // the plugin reports the error
	}
	if conf.Range != (ipam.Range{}) {
		conf.Ranges = append([][]ipam.Range{{conf.Range}}, conf.Ranges...)
	}
	var reserved []netip.Prefix
	for _, r := range conf.Reserved {
		if p, err := ipam.ParseReserved(r); err == nil {
			reserved = append(reserved, p)
		}
	}
	for _, ranges := range conf.Ranges {
		if sets, err := ipam.Complete([]ipam.Set{{Ranges: ranges}}); err == nil {
			if ip, ok := first(sets[0], ipam.Union(reserved)); ok {
				ips = append(ips, ip)
			}
		}
	}
	for _, a := range conf.Addresses {
		ips = append(ips, spec.IP{Address: a.Address, Gateway: a.Gateway})
	}
	for _, r := range conf.Routes {
		routes = append(routes, spec.Route{Dst: r.Dst, GW: r.GW})
	}
	return ips, routes
}

// first returns the address that s allocates first while all are free.
func first(s ipam.Set, reserved ipam.Reserved) (ip spec.IP, ok bool) {
	for _, span := range reserved.Cut(s.After(netip.Addr{})) {
		a := span.First
		if a == span.Gateway {
			a = a.Next()
		}
		if r, found := s.Find(a); found && !span.Last.Less(a) {
			return spec.IP{Address: netip.PrefixFrom(a, r.Subnet.Bits()), Gateway: r.Gateway}, true
		}
	}
	return spec.IP{}, false
}
