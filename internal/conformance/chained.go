package conformance

import (
	"encoding/json"
	"net"
	"net/netip"
	"reflect"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

func chainedChecks() []Check {
	const through = `Plugins provided a prevResult key as part of their request configuration must output it as their result, with any possible modifications made by that plugin included.`
	return []Check{
		{ID: "P18/passed", Title: `the result has the interfaces, addresses, routes and dns of prevResult, in each version`,
			Sentence: through, Kinds: []Kind{Chained}, from: spec.V030, run: passedThrough},
		{ID: "P23/any", Title: "a chained plugin works on an interface that another plugin made",
			Sentence: "\"Chained\" plugins, which adjust the configuration of an already-created interface.",
			Kinds:    []Kind{Chained}, run: onAnyInterface},
		{ID: "P23/tap", Title: "a tap device of prevResult is attached, and stays at DEL",
			Sentence: `the bridge plugin adds the host-side interface to a bridge. So, it should accept any previous result that includes a host-side interface, including tap devices.`,
			Kinds:    []Kind{Interface}, from: spec.V030, run: adoptedTap},
		{ID: "K1/published", Title: "runtimeConfig.portMappings leads connections to the container, until DEL",
			Sentence: "portMappings: Pass mapping from ports on the host to ports in the container network namespace.",
			Kinds:    []Kind{Chained, Meta}, run: publishedPorts},
		{ID: "K6/mac", Title: "runtimeConfig.mac is the MAC of the interface",
			Sentence: "mac: Dynamically assign MAC. Runtime can pass this to plugins which need MAC as input.",
			Kinds:    []Kind{Interface, Chained}, run: requestedMAC},
	}
}

// sameJSON reports whether two texts are the same value.
func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

func passedThrough(t *trial) {
	t.eachVersion(t.spoken(spec.V030), func(v spec.Version, c *container) {
		what := lost(c.given, c.result)
		t.last.expect(what == "", what+" of prevResult in the result of version "+string(v))
	})
}

// lost names what a result does not have of an earlier one.
func lost(given, got *spec.Result) string {
	for _, i := range given.Interfaces {
		if !slices.ContainsFunc(got.Interfaces, func(j spec.Interface) bool {
			return j.Name == i.Name && j.Sandbox == i.Sandbox
		}) {
			return "the interface " + i.Name
		}
	}
	for _, ip := range given.IPs {
		if !slices.ContainsFunc(got.IPs, func(other spec.IP) bool { return other.Address == ip.Address }) {
			return "the address " + ip.Address.String()
		}
	}
	for _, r := range given.Routes {
		if !slices.ContainsFunc(got.Routes, func(other spec.Route) bool { return other.Dst == r.Dst }) {
			return "the route " + r.Dst.String()
		}
	}
	if !slices.Equal(given.DNS.Nameservers, got.DNS.Nameservers) {
		return "dns"
	}
	return ""
}

func onAnyInterface(t *trial) {
	c := t.attached("c1")
	expect(must(link(c.netns, c.ifName)) != nil, "the interface "+c.ifName+" to stay", "none")
}

// adoptedTap gives the plugin a tap device of the host. The plugin makes it a port of its bridge, and makes no pair.
func adoptedTap(t *trial) {
	applies(t.subject.Adopts, "the profile does not say that the plugin attaches an interface of prevResult")
	const tap = "tap7"
	if err := t.run([]string{"ip", "tuntap", "add", tap, "mode", "tap"}); err != nil {
		applies(false, "the host has no tap devices: "+err.Error())
	}
	c := t.container("c1")
	c.result = &spec.Result{CNIVersion: t.version, Interfaces: []spec.Interface{{Name: tap}}}
	pairs := func() int {
		all := must(look("", rtnl.Links))
		return len(slices.DeleteFunc(all, func(l *rtnl.Link) bool { return l.Kind != "veth" }))
	}
	before := pairs()
	t.add(c, lacking("ipam")) // the addresses are for who is behind the tap device
	expect(must(link("", tap)).Master != 0, tap+" as a port of a bridge", "no port")
	made := pairs() - before
	expect(made == 0, "no pair beside "+tap, "%d more links of the kind veth on the host", made)
	t.succeed("DEL", "DEL", c)
	expect(must(link("", tap)) != nil, tap+" to stay", "none")
}

// config is what the profile has of runtimeConfig that the suite knows the meaning of.
type config struct {
	MAC          string
	PortMappings []struct {
		HostPort, ContainerPort uint16
		Protocol                string
	}
}

func (t *trial) config() (c config) {
	if len(t.subject.RuntimeConfig) > 0 {
		require(json.Unmarshal(t.subject.RuntimeConfig, &c))
	}
	return c
}

func publishedPorts(t *trial) {
	mappings := t.config().PortMappings
	applies(len(mappings) > 0, "the profile's runtimeConfig has no portMappings")
	c := t.attached("c1")
	listen := netip.AddrPortFrom(c.addr.Addr(), mappings[0].ContainerPort)
	dial := netip.AddrPortFrom(gateway(), mappings[0].HostPort)
	require(talkTo("", c.netns, listen, dial))
	t.succeed("DEL", "DEL", c)
	expect(talkTo("", c.netns, listen, dial) != nil, dial.String()+" to be closed after DEL", "it answers")
}

func requestedMAC(t *trial) {
	mac := t.config().MAC
	applies(mac != "", "the profile's runtimeConfig has no mac")
	c := t.attached("c1")
	l, want := must(link(c.netns, c.ifName)), must(net.ParseMAC(mac))
	expect(l != nil && l.MAC.String() == want.String(), "an interface with the MAC "+mac, "%+v", l)
}
