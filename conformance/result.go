package conformance

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// addressedOnly is the reason why a check of addresses does not apply.
func (t *trial) addressedOnly() error {
	if !t.subject.addressed() {
		return unfit("the plugin is configured without an IPAM plugin")
	}
	return nil
}

func listedAddresses(t *trial) error {
	c, err := t.attached("c1")
	if err = first(t.addressedOnly(), err); err != nil {
		return err
	}
	if len(c.result.IPs) == 0 {
		return differs("the address "+c.addr.String()+" in the result", "%s", t.last)
	}
	for _, ip := range c.result.IPs {
		i := c.result.InterfaceOf(ip)
		if i == nil {
			return differs("an index into interfaces for "+ip.Address.String(), "%s", t.last)
		}
		has, err := hasAddress(i.Sandbox, i.Name, ip.Address)
		if err != nil {
			return err
		}
		if !has {
			return differs("the address "+ip.Address.String()+" on "+i.Name, "none")
		}
	}
	return nil
}

// hasAddress reports whether a link has an address.
func hasAddress(path, name string, addr netip.Prefix) (bool, error) {
	return look(path, func(ns *kernel.NS) (bool, error) {
		l, err := rtnl.LinkByName(ns, name)
		if err != nil {
			return false, err
		}
		addrs, err := rtnl.Addrs(ns, l.Index)
		return slices.ContainsFunc(addrs, func(a rtnl.Addr) bool { return a.Prefix == addr }), err
	})
}

func containersTalk(t *trial) error {
	if !t.subject.reaches("containers") {
		return unfit("the profile does not say that containers reach each other")
	}
	a, err := t.attached("c1")
	if err != nil {
		return err
	}
	b, err := t.attached("c2")
	if err != nil {
		return err
	}
	return talk(a.netns, b.netns, b.addr.Addr())
}

func gatewayTalks(t *trial) error {
	if !t.subject.reaches("gateway") {
		return unfit("the profile does not say that a container reaches the gateway")
	}
	c, err := t.attached("c1")
	if err != nil {
		return err
	}
	return talk(c.netns, "", gateway())
}

// routes are the routes of a container's main table.
func routes(path string) ([]rtnl.Route, error) {
	return look(path, func(ns *kernel.NS) ([]rtnl.Route, error) {
		return rtnl.Routes(ns, rtnl.RouteFilter{Family: rtnl.IPv4, Table: rtnl.MainTable})
	})
}

func listedRoutes(t *trial) error {
	c, err := t.attached("c1")
	if err = first(t.addressedOnly(), err); err != nil {
		return err
	}
	there, err := routes(c.netns)
	if err != nil {
		return err
	}
	for _, want := range c.result.Routes {
		i := slices.IndexFunc(there, func(r rtnl.Route) bool { return r.Dst == want.Dst })
		if i < 0 {
			return differs("the route "+want.Dst.String()+" of the result", "none in the container")
		}
		if there[i].Priority != 0 {
			return differs("the route "+want.Dst.String()+" with metric 0", "metric %d", there[i].Priority)
		}
	}
	return nil
}

func secondDefault(t *trial) error {
	c, err := t.container("c1")
	if err = first(t.addressedOnly(), err); err != nil {
		return err
	}
	err = alter(c.netns, func(ns *kernel.NS) error {
		_, err := bridge(ns, "other0", netip.MustParsePrefix("192.0.2.2/24"))
		return err
	})
	if err != nil {
		return err
	}
	all, router := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("192.0.2.1")
	if err := route(c.netns, "other0", all, router); err != nil {
		return err
	}
	_, err = t.add(c)
	return err
}

func impliedGateway(t *trial) error {
	c, err := t.attached("c1")
	if err = first(t.addressedOnly(), err); err != nil {
		return err
	}
	there, err := routes(c.netns)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(there, func(r rtnl.Route) bool { return r.Dst.Bits() <= 0 })
	switch {
	case i < 0:
		return differs("a default route via "+gateway().String(), "none")
	case there[i].Via != gateway():
		return differs("a default route via "+gateway().String(), "via %s", there[i].Via)
	}
	return nil
}

func passedDNS(t *trial) error {
	c, err := t.attached("c1")
	if err = first(t.addressedOnly(), err); err != nil {
		return err
	}
	if !slices.Equal(c.result.DNS.Nameservers, []string{nameserver}) {
		return differs("the name server "+nameserver+" of the IPAM plugin", "%s", t.last)
	}
	return nil
}

func formatChecks() []Check {
	return []Check{
		{ID: "V4/label", Title: "a result has the version of the configuration, in each version",
			Sentence: "cniVersion: The same version supplied on input.",
			Kinds:    everyPlugin(), run: labelled},
		{ID: "V5/default", Title: "a configuration without cniVersion is one of 0.1.0",
			Sentence: "A configuration without cniVersion is treated as 0.1.0.",
			Kinds:    everyPlugin(), run: noVersion},
		{ID: "V6/format", Title: "a result has the members of its version and no others, in each version",
			Sentence: `Plugins must output a JSON object with the following keys upon a successful ADD operation: cniVersion, interfaces, ips, routes, dns.`,
			Kinds:    everyPlugin(), run: formatted},
	}
}

// eachVersion attaches a container in each version, and detaches it.
func (t *trial) eachVersion(from spec.Version, look func(v spec.Version, c *container, a *answer) error) error {
	for i, v := range t.spoken(cmp.Or(from, t.oldest())) {
		c, err := t.container("v" + itoa(i))
		if err != nil {
			return err
		}
		a, err := t.add(c, in(v))
		if err != nil {
			return err
		}
		if err := look(v, c, a); err != nil {
			return err
		}
		if err := t.succeed("DEL", "DEL", c, in(v)); err != nil {
			return err
		}
		t.containers--
	}
	return nil
}

func labelled(t *trial) error {
	return t.eachVersion("", func(v spec.Version, _ *container, a *answer) error {
		doc, err := members(a.stdout)
		if err != nil {
			return err
		}
		if string(doc["cniVersion"]) != `"`+string(v)+`"` {
			return differs("cniVersion "+string(v), "%s", a)
		}
		return nil
	})
}

func noVersion(t *trial) error {
	if t.oldest() != spec.V010 {
		return unfit("0.1.0 has no prevResult, so no chained plugin")
	}
	c, err := t.container("c1")
	if err != nil {
		return err
	}
	a, err := t.do("ADD", c, in(spec.V010), lacking("cniVersion"))
	if err != nil {
		return err
	}
	if !slices.Contains(t.subject.Versions, spec.V010) {
		if a.code() != spec.CodeVersion {
			return differs("error code 1, for the plugin does not speak 0.1.0", "%s", a)
		}
		return nil
	}
	if a.failed != nil {
		return differs("ADD to succeed", "%s", a)
	}
	return format(spec.V010, t.subject.Kind, a)
}

func formatted(t *trial) error {
	return t.eachVersion("", func(v spec.Version, _ *container, a *answer) error {
		return format(v, t.subject.Kind, a)
	})
}
