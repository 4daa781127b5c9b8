package spec

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Encode returns r in version v, formatted as a plugin prints it: four spaces, no newline at the end.
//
// What the version has no form for is left out. Versions before 0.3.0 have only the first address of each family with
// its routes; a result without an address is an error there (clause V7). Members of interfaces that 1.1.0 added are not
// written in older versions. Members of routes are written from 0.3.0 on, as by the reference library: without them the
// interface plugin would make another route than the IPAM plugin configured, and CHECK would report a difference.
func (r *Result) Encode(v Version) ([]byte, error) {
	b, err := r.compact(v)
	if err != nil {
		return nil, err
	}
	return indent(b), nil
}

// MarshalJSON encodes r without white space, in the version that r carries, or in the newest.
func (r Result) MarshalJSON() ([]byte, error) { return r.compact(cmp.Or(r.CNIVersion, Newest)) }

func (r *Result) compact(v Version) ([]byte, error) {
	v = v.Or010()
	if !v.Known() {
		return nil, Errorf(CodeVersion, "write the result: version %q is not known", v)
	}
	for i, ip := range r.IPs {
		if !ip.Address.IsValid() {
			return nil, Errorf(CodeInternal, "write the result: ips[%d] has no address", i)
		}
	}
	for i, route := range r.Routes {
		if !route.Dst.IsValid() {
			return nil, Errorf(CodeInternal, "write the result: routes[%d] has no destination", i)
		}
	}
	doc := wire{{"cniVersion", v}}
	var err error
	if !v.AtLeast(V030) {
		doc, err = r.families(doc, v)
	} else {
		doc = r.lists(doc, v)
	}
	if err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(r.Extra)) {
		if !defines(v, key) {
			doc = append(doc, pair{key, r.Extra[key]})
		}
	}
	var b bytes.Buffer
	if err := doc.write(&b, v.AtLeast(V100)); err != nil {
		return nil, fmt.Errorf("write the result: %w", err)
	}
	return b.Bytes(), nil
}

// defines reports whether results of version v have a member with this name.
func defines(v Version, key string) bool {
	switch key {
	case "cniVersion", "dns":
		return true
	case "ip4", "ip6":
		return !v.AtLeast(V030)
	case "interfaces", "ips", "routes":
		return v.AtLeast(V030)
	}
	return false
}

// families adds ip4 and ip6 of the versions before 0.3.0.
func (r *Result) families(doc wire, v Version) (wire, error) {
	said := len(doc)
	for _, f := range []struct {
		key string
		is4 bool
	}{{"ip4", true}, {"ip6", false}} {
		i := slices.IndexFunc(r.IPs, func(ip IP) bool { return ip.Address.Addr().Is4() == f.is4 })
		if i < 0 {
			continue
		}
		entry := wire{{"ip", r.IPs[i].Address.String()}}.addr("gateway", r.IPs[i].Gateway)
		var routes []wire
		for _, route := range r.Routes {
			if route.Dst.Addr().Is4() == f.is4 && route.inMain() {
				routes = append(routes, wire{{"dst", route.Dst.String()}}.addr("gw", route.GW))
			}
		}
		if routes != nil {
			entry = append(entry, pair{"routes", routes})
		}
		doc = append(doc, pair{f.key, entry})
	}
	// What was read without an address goes on without one; there is nothing to lose.
	same := r.CNIVersion != "" && !r.CNIVersion.AtLeast(V030) && len(r.Interfaces) == 0 && len(r.Routes) == 0
	if len(doc) == said && !same {
		return nil, Errorf(CodeVersion,
			"CNI %s has no form for this result, which has no address (use 0.3.0 or newer)", v)
	}
	return append(doc, pair{"dns", r.DNS.wire()}), nil
}

// inMain reports whether the route is in the main table. Versions that cannot express the table leave out other routes,
// which would appear to be in the main table.
func (r Route) inMain() bool { return r.Table == nil || *r.Table == 0 || *r.Table == 254 }

// lists adds interfaces, ips and routes of the versions from 0.3.0 on.
func (r *Result) lists(doc wire, v Version) wire {
	var interfaces, ips, routes []wire
	for _, i := range r.Interfaces {
		interfaces = append(interfaces, i.wire(v.AtLeast(V110)))
	}
	for _, ip := range r.IPs {
		ips = append(ips, ip.wire(!v.AtLeast(V100)))
	}
	for _, route := range r.Routes {
		routes = append(routes, route.wire())
	}
	for _, l := range []struct {
		key  string
		list []wire
	}{{"interfaces", interfaces}, {"ips", ips}, {"routes", routes}} {
		if l.list != nil {
			doc = append(doc, pair{l.key, l.list})
		}
	}
	if !v.AtLeast(V100) || !r.DNS.Empty() {
		doc = append(doc, pair{"dns", r.DNS.wire()})
	}
	return doc
}

func (i Interface) wire(full bool) wire {
	w := wire{{"name", i.Name}}.str("mac", i.MAC)
	if full {
		w = w.integer("mtu", i.MTU)
	}
	w = w.str("sandbox", i.Sandbox)
	if full {
		w = w.str("socketPath", i.SocketPath).str("pciID", i.PciID)
	}
	return w
}

func (ip IP) wire(version bool) wire {
	var w wire
	if version {
		w = append(w, pair{"version", map[bool]string{true: "4", false: "6"}[ip.Address.Addr().Is4()]})
	}
	w = w.pointer("interface", ip.Interface)
	w = append(w, pair{"address", ip.Address.String()})
	return w.addr("gateway", ip.Gateway)
}

func (r Route) wire() wire {
	w := wire{{"dst", r.Dst.String()}}.addr("gw", r.GW)
	return w.integer("mtu", r.MTU).integer("advmss", r.AdvMSS).integer("priority", r.Priority).
		pointer("table", r.Table).pointer("scope", r.Scope)
}

func (d DNS) wire() wire {
	w := wire{}.list("nameservers", d.Nameservers).str("domain", d.Domain)
	return w.list("search", d.Search).list("options", d.Options)
}

// MarshalJSON encodes the interface as in a result of the newest version.
func (i Interface) MarshalJSON() ([]byte, error) { return i.wire(true).marshal() }

// MarshalJSON encodes the address as in a result of the newest version.
func (ip IP) MarshalJSON() ([]byte, error) {
	if !ip.Address.IsValid() {
		return nil, fmt.Errorf("write the address: there is none")
	}
	return ip.wire(false).marshal()
}

// MarshalJSON encodes the route as in results and configurations.
func (r Route) MarshalJSON() ([]byte, error) {
	if !r.Dst.IsValid() {
		return nil, fmt.Errorf("write the route: it has no destination")
	}
	return r.wire().marshal()
}

// wire is a JSON object to be written. Objects of 1.0.0 and newer have sorted keys, older ones the order of the
// specification, so that they can be compared with its examples.
type wire []pair

type pair struct {
	key string
	val any // wire, []wire, or what encoding/json knows
}

func (w wire) str(key, v string) wire {
	if v == "" {
		return w
	}
	return append(w, pair{key, v})
}

func (w wire) integer(key string, v int) wire {
	if v == 0 {
		return w
	}
	return append(w, pair{key, v})
}

func (w wire) pointer(key string, v *int) wire {
	if v == nil {
		return w
	}
	return append(w, pair{key, *v})
}

func (w wire) addr(key string, v netip.Addr) wire {
	if !v.IsValid() {
		return w
	}
	return append(w, pair{key, v.String()})
}

func (w wire) list(key string, v []string) wire {
	if len(v) == 0 {
		return w
	}
	return append(w, pair{key, v})
}

func (w wire) marshal() ([]byte, error) {
	var b bytes.Buffer
	err := w.write(&b, false)
	return b.Bytes(), err
}

func (w wire) write(b *bytes.Buffer, sorted bool) (err error) {
	if sorted {
		w = slices.SortedStableFunc(slices.Values(w), func(a, b pair) int { return cmp.Compare(a.key, b.key) })
	}
	b.WriteByte('{')
	for i, p := range w {
		if i > 0 {
			b.WriteByte(',')
		}
		err = errors.Join(err, writeValue(b, p.key, sorted))
		b.WriteByte(':')
		err = errors.Join(err, writeValue(b, p.val, sorted))
	}
	b.WriteByte('}')
	return err
}

func writeValue(b *bytes.Buffer, v any, sorted bool) (err error) {
	switch v := v.(type) {
	case wire:
		return v.write(b, sorted)
	case []wire:
		for i, item := range v {
			b.WriteByte("[,"[min(i, 1)])
			err = errors.Join(err, item.write(b, sorted))
		}
		b.WriteByte(']')
		return err
	case []Version:
		for i, item := range v {
			b.WriteByte("[,"[min(i, 1)])
			err = errors.Join(err, writeValue(b, item, sorted))
		}
		b.WriteByte(']')
		return err
	case json.RawMessage:
		return json.Compact(b, v)
	}
	raw, err := encode(v)
	b.Write(raw)
	return err
}
