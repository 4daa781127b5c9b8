package conformance

import (
	"encoding/json"
	"net"
	"net/netip"
	"reflect"
	"slices"

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

func passedThrough(t *trial) error {
	for i, v := range t.spoken(spec.V030) {
		c, err := t.container("c" + itoa(i))
		if err != nil {
			return err
		}
		given := c.result
		a, err := t.add(c, in(v))
		if err != nil {
			return err
		}
		if what := lost(given, c.result); what != "" {
			return differs(what+" of prevResult in the result of version "+string(v), "%s", a)
		}
		if err := t.succeed("DEL", "DEL", c, in(v)); err != nil {
			return err
		}
		t.containers--
	}
	return nil
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

func onAnyInterface(t *trial) error {
	c, err := t.attached("c1")
	if err != nil {
		return err
	}
	l, err := link(c.netns, c.ifName)
	if err == nil && l == nil {
		err = differs("the interface "+c.ifName+" to stay", "none")
	}
	return err
}

// config is what the profile has of runtimeConfig that the suite knows the meaning of.
type config struct {
	MAC          string
	PortMappings []struct {
		HostPort, ContainerPort uint16
		Protocol                string
	}
}

func (t *trial) config() (c config, err error) {
	if len(t.subject.RuntimeConfig) > 0 {
		err = json.Unmarshal(t.subject.RuntimeConfig, &c)
	}
	return c, err
}

func publishedPorts(t *trial) error {
	config, err := t.config()
	if err != nil {
		return err
	}
	if len(config.PortMappings) == 0 {
		return unfit("the profile's runtimeConfig has no portMappings")
	}
	c, err := t.attached("c1")
	if err != nil {
		return err
	}
	m := config.PortMappings[0]
	listen := netip.AddrPortFrom(c.addr.Addr(), m.ContainerPort)
	dial := netip.AddrPortFrom(gateway(), m.HostPort)
	if err := talkTo("", c.netns, listen, dial); err != nil {
		return err
	}
	if err := t.succeed("DEL", "DEL", c); err != nil {
		return err
	}
	if talkTo("", c.netns, listen, dial) == nil {
		return differs(dial.String()+" to be closed after DEL", "it answers")
	}
	return nil
}

func requestedMAC(t *trial) error {
	config, err := t.config()
	if err != nil {
		return err
	}
	if config.MAC == "" {
		return unfit("the profile's runtimeConfig has no mac")
	}
	c, err := t.attached("c1")
	if err != nil {
		return err
	}
	l, err := link(c.netns, c.ifName)
	if err != nil {
		return err
	}
	want, err := net.ParseMAC(config.MAC)
	if err != nil {
		return err
	}
	if l == nil || l.MAC.String() != want.String() {
		return differs("an interface with the MAC "+config.MAC, "%+v", l)
	}
	return nil
}
