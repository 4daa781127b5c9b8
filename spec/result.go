package spec

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
)

// DecodeResult reads a result of any version: that of its cniVersion, or else conf. JSON null is an empty result. The
// error is an *Error with code 6, or with code 1 if its cniVersion is not a known version.
//
// Members that the version does not define are kept in Extra. A result of 0.1.0 or 0.2.0 without ip4 and ip6 may have
// the lists of newer versions, because the reference's loopback plugin prints such results.
func DecodeResult(b []byte, conf Version) (*Result, error) {
	d, err := open(b)
	if err != nil {
		return nil, err.asError()
	}
	r, err := d.result(d.root, conf, "")
	if err != nil {
		return nil, err.asError()
	}
	return r, nil
}

func (d *document) result(n node, conf Version, path string) (*Result, *FileError) {
	r := &Result{CNIVersion: conf.Or010()}
	if n.kind == 'n' {
		return r, nil
	}
	if n.kind != '{' {
		return nil, d.shape(n, path, "a result, which is an object")
	}
	if err := d.resultVersion(n, path, &r.CNIVersion); err != nil {
		return nil, err
	}
	has := func(key string) bool { _, ok := n.fold(key); return ok }
	old := !r.CNIVersion.AtLeast(V030)
	if old && !has("ip4") && !has("ip6") && (has("ips") || has("interfaces")) {
		old = false
	}
	err := d.object(n, path, func(key string, n node, path string) *FileError {
		switch k := strings.ToLower(key); {
		case k == "cniversion":
			return nil
		case k == "dns":
			return d.dns(n, path, &r.DNS)
		case old && (k == "ip4" || k == "ip6"):
			return nil
		case !old && k == "interfaces":
			r.Interfaces = nil
			return d.each(n, path, "interfaces", func(n node, path string) *FileError {
				r.Interfaces = append(r.Interfaces, Interface{})
				return d.iface(n, path, &r.Interfaces[len(r.Interfaces)-1])
			})
		case !old && k == "ips":
			r.IPs = nil
			return d.each(n, path, "addresses", func(n node, path string) *FileError {
				r.IPs = append(r.IPs, IP{})
				return d.ip(n, path, &r.IPs[len(r.IPs)-1])
			})
		case !old && k == "routes":
			r.Routes = nil
			return d.routes(n, path, &r.Routes)
		}
		if r.Extra == nil {
			r.Extra = map[string]json.RawMessage{}
		}
		r.Extra[key] = slices.Clone(d.raw(n))
		return nil
	})
	for _, key := range []string{"ip4", "ip6"} { // in this order, whatever the document's
		if m, ok := n.fold(key); ok && old && err == nil {
			err = d.family(m.node, join(path, key), r)
		}
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// resultVersion reads the version of a result; one without has that of the configuration.
func (d *document) resultVersion(n node, path string, into *Version) *FileError {
	label, _ := n.fold("cniVersion")
	if label.node.kind != 0 {
		var v string
		if err := d.str(label.node, join(path, "cniVersion"), &v); err != nil {
			return err
		}
		if v != "" {
			*into = Version(v)
		}
	}
	if !into.Known() {
		at := n
		if label.node.kind != 0 {
			at = label.node
		}
		return d.bad(CodeVersion, at.start, join(path, "cniVersion"), "%q is not known: %s are",
			*into, strings.Join(texts(Versions()), ", "))
	}
	return nil
}

// family reads ip4 or ip6 of the versions before 0.3.0.
func (d *document) family(n node, path string, r *Result) *FileError {
	var ip IP
	err := d.fields(n, path, readers{
		"ip": into(d.prefix, &ip.Address), "gateway": into(d.addr, &ip.Gateway), "routes": into(d.routes, &r.Routes),
	})
	if err == nil && !ip.Address.IsValid() {
		err = d.bad(CodeDecode, n.start, join(path, "ip"), "is missing")
	}
	r.IPs = append(r.IPs, ip)
	return err
}

func (d *document) iface(n node, path string, v *Interface) *FileError {
	if n.kind == 'n' {
		return d.shape(n, path, "an object")
	}
	return d.fields(n, path, readers{
		"name": into(d.str, &v.Name), "mac": into(d.str, &v.MAC), "mtu": into(d.integer, &v.MTU),
		"sandbox": into(d.str, &v.Sandbox), "socketpath": into(d.str, &v.SocketPath), "pciid": into(d.str, &v.PciID),
	})
}

// ip reads an entry of ips. Its member version is ignored: the address shows its family, and the reference's loopback
// plugin leaves the member out.
func (d *document) ip(n node, path string, v *IP) *FileError {
	if n.kind == 'n' {
		return d.shape(n, path, "an object")
	}
	err := d.fields(n, path, readers{
		"address": into(d.prefix, &v.Address), "gateway": into(d.addr, &v.Gateway),
		"interface": into(pointed(d.integer), &v.Interface),
	})
	if err == nil && !v.Address.IsValid() {
		err = d.bad(CodeDecode, n.start, join(path, "address"), "is missing")
	}
	return err
}

func (d *document) routes(n node, path string, v *[]Route) *FileError {
	return d.each(n, path, "routes", func(n node, path string) *FileError {
		*v = append(*v, Route{})
		return d.route(n, path, &(*v)[len(*v)-1])
	})
}

func (d *document) route(n node, path string, v *Route) *FileError {
	if n.kind == 'n' {
		return d.shape(n, path, "an object")
	}
	number := d.within(min(math.MaxUint32, math.MaxInt)) // an int of 32-bit machines has less
	err := d.fields(n, path, readers{
		"dst": into(d.prefix, &v.Dst), "gw": into(d.addr, &v.GW), "mtu": into(number, &v.MTU),
		"advmss": into(number, &v.AdvMSS), "priority": into(number, &v.Priority),
		"table": into(pointed(number), &v.Table), "scope": into(pointed(d.within(math.MaxUint8)), &v.Scope),
	})
	if err == nil && !v.Dst.IsValid() {
		err = d.bad(CodeDecode, n.start, join(path, "dst"), "is missing")
	}
	return err
}

// UnmarshalJSON does the same as DecodeResult. If r has a CNIVersion, it is the version of the configuration.
func (r *Result) UnmarshalJSON(b []byte) error {
	read, err := DecodeResult(b, r.CNIVersion)
	if err == nil {
		*r = *read
	}
	return err
}

// UnmarshalJSON reads a route of a result or a configuration. A route without dst is an error.
func (r *Route) UnmarshalJSON(b []byte) error { return leaf(b, r, (*document).route) }

// UnmarshalJSON reads an interface of a result.
func (i *Interface) UnmarshalJSON(b []byte) error { return leaf(b, i, (*document).iface) }

// UnmarshalJSON reads an entry of ips of a result of any version from 0.3.0 on.
func (ip *IP) UnmarshalJSON(b []byte) error { return leaf(b, ip, (*document).ip) }

// leaf reads a part of a document that encoding/json passes in, so its position is unknown.
func leaf[T any](b []byte, v *T, read func(*document, node, string, *T) *FileError) error {
	d, err := open(b)
	if err != nil {
		return err.Err
	}
	var got T
	if d.root.kind == 'n' { // encoding/json: null changes nothing
		return nil
	}
	if err := read(d, d.root, "", &got); err != nil {
		return err.Err
	}
	*v = got
	return nil
}

// Clone returns a deep copy of r.
func (r *Result) Clone() *Result {
	if r == nil {
		return nil
	}
	c := *r
	c.Interfaces = slices.Clone(r.Interfaces)
	c.IPs = slices.Clone(r.IPs)
	for i, ip := range c.IPs {
		c.IPs[i].Interface = clonePointer(ip.Interface)
	}
	c.Routes = slices.Clone(r.Routes)
	for i, route := range c.Routes {
		c.Routes[i].Table, c.Routes[i].Scope = clonePointer(route.Table), clonePointer(route.Scope)
	}
	c.DNS = r.DNS.Clone()
	c.Extra = maps.Clone(r.Extra)
	for k, v := range c.Extra {
		c.Extra[k] = slices.Clone(v)
	}
	return &c
}

// Clone returns a deep copy of d.
func (d DNS) Clone() DNS {
	d.Nameservers, d.Search, d.Options = slices.Clone(d.Nameservers), slices.Clone(d.Search), slices.Clone(d.Options)
	return d
}

// Empty reports whether no member of d is set.
func (d DNS) Empty() bool {
	return len(d.Nameservers) == 0 && d.Domain == "" && len(d.Search) == 0 && len(d.Options) == 0
}

func clonePointer(p *int) *int {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// Sandbox returns the network namespace that the result lists for a container interface, or an empty string.
func (r *Result) Sandbox(ifName string) string {
	if r == nil {
		return ""
	}
	for _, i := range r.Interfaces {
		if i.Name == ifName && i.Sandbox != "" {
			return i.Sandbox
		}
	}
	return ""
}

// InterfaceOf returns the interface that has ip, or nil if the result does not say it (clause P24).
func (r *Result) InterfaceOf(ip IP) *Interface {
	if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) {
		return nil
	}
	return &r.Interfaces[*ip.Interface]
}
