package conformance

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// needsIPAM ends a check of addresses where the plugin is not configured with the suite's IPAM plugin.
func (t *trial) needsIPAM() {
	applies(t.subject.addressed(), "the plugin is configured without an IPAM plugin")
}

func listedAddresses(t *trial) {
	t.needsIPAM()
	c := t.attached("c1")
	t.last.expect(len(c.result.IPs) > 0, "the address "+c.addr.String()+" in the result")
	for _, ip := range c.result.IPs {
		i := c.result.InterfaceOf(ip)
		t.last.expect(i != nil, "an index into interfaces for "+ip.Address.String())
		expect(must(hasAddress(i.Sandbox, i.Name, ip.Address)),
			"the address "+ip.Address.String()+" on "+i.Name, "none")
	}
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

func containersTalk(t *trial) {
	applies(t.subject.reaches("containers"), "the profile does not say that containers reach each other")
	a, b := t.attached("c1"), t.attached("c2")
	require(talk(a.netns, b.netns, b.addr.Addr()))
}

func gatewayTalks(t *trial) {
	applies(t.subject.reaches("gateway"), "the profile does not say that a container reaches the gateway")
	require(talk(t.attached("c1").netns, "", gateway()))
}

// routes are the routes of a container's main table.
func routes(path string) ([]rtnl.Route, error) {
	return look(path, func(ns *kernel.NS) ([]rtnl.Route, error) {
		return rtnl.Routes(ns, rtnl.RouteFilter{Family: rtnl.IPv4, Table: rtnl.MainTable})
	})
}

// defaultRoute is the default route of a container, which must have one.
func defaultRoute(c *container, expected string) rtnl.Route {
	there := must(routes(c.netns))
	i := slices.IndexFunc(there, func(r rtnl.Route) bool { return r.Dst.Bits() <= 0 })
	expect(i >= 0, expected, "none")
	return there[i]
}

func listedRoutes(t *trial) {
	t.needsIPAM()
	c := t.attached("c1")
	there := must(routes(c.netns))
	for _, want := range c.result.Routes {
		dst := want.Dst.String()
		i := slices.IndexFunc(there, func(r rtnl.Route) bool { return r.Dst == want.Dst })
		expect(i >= 0, "the route "+dst+" of the result", "none in the container")
		metric := there[i].Priority
		expect(metric == 0, "the route "+dst+" with metric 0", "metric %d", metric)
	}
}

func secondDefault(t *trial) {
	t.needsIPAM()
	c := t.container("c1")
	require(alter(c.netns, func(ns *kernel.NS) error {
		_, err := bridge(ns, "other0", netip.MustParsePrefix("192.0.2.2/24"))
		return err
	}))
	all, router := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("192.0.2.1")
	require(route(c.netns, "other0", all, router))
	t.add(c)
}

func impliedGateway(t *trial) {
	t.needsIPAM()
	expected := "a default route via " + gateway().String()
	via := defaultRoute(t.attached("c1"), expected).Via
	expect(via == gateway(), expected, "via %s", via)
}

func passedDNS(t *trial) {
	t.needsIPAM()
	c := t.attached("c1")
	t.last.expect(slices.Equal(c.result.DNS.Nameservers, []string{nameserver}),
		"the name server "+nameserver+" of the IPAM plugin")
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
func (t *trial) eachVersion(versions []spec.Version, attached func(v spec.Version, c *container)) {
	for i, v := range versions {
		c := t.container("v" + itoa(i))
		t.add(c, in(v))
		attached(v, c)
		t.succeed("DEL", "DEL", c, in(v))
		t.containers--
	}
}

func labelled(t *trial) {
	t.eachVersion(t.spoken(t.oldest()), func(v spec.Version, _ *container) {
		doc := must(members(t.last.stdout))
		t.last.expect(string(doc["cniVersion"]) == `"`+string(v)+`"`, "cniVersion "+string(v))
	})
}

func noVersion(t *trial) {
	applies(t.oldest() == spec.V010, "0.1.0 has no prevResult, so no chained plugin")
	a := t.do("ADD", t.container("c1"), in(spec.V010), lacking("cniVersion"))
	if !slices.Contains(t.subject.Versions, spec.V010) {
		a.expect(a.code() == spec.CodeVersion, "error code 1, for the plugin does not speak 0.1.0")
		return
	}
	a.expect(a.failed == nil, "ADD to succeed")
	format(spec.V010, t.subject.Kind, a)
}

func formatted(t *trial) {
	t.eachVersion(t.spoken(t.oldest()), func(v spec.Version, _ *container) { format(v, t.subject.Kind, t.last) })
}
