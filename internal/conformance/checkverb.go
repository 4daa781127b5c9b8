package conformance

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

func checkChecks() []Check {
	const missing = `The plugin should return an error if a resource included in the CNI Result type (interface, address or route) was created by the plugin, and is listed in prevResult, but is missing or in an invalid state.`
	return []Check{
		{ID: "V8/old", Title: "CHECK in a version before 0.4.0 is error code 1",
			Sentence: "Error code 1: Incompatible CNI version.",
			Kinds:    everyPlugin(), from: spec.V040, run: oldCheck},
		{ID: "P14/no-result", Title: "CHECK without prevResult is an error",
			Sentence: "The plugin must consult the prevResult to determine the expected interfaces and addresses.",
			Kinds:    []Kind{Interface, Chained, Meta}, from: spec.V040, run: checkWithoutResult},
		{ID: "P14/interface", Title: "CHECK fails if the interface is gone",
			Sentence: missing, Kinds: makers(), from: spec.V040, run: checkOfGoneInterface},
		{ID: "P14/address", Title: "CHECK fails if the address is gone",
			Sentence: missing, Kinds: makers(), from: spec.V040, run: checkOfGoneAddress},
		{ID: "P14/route", Title: "CHECK fails if a route is gone",
			Sentence: missing, Kinds: makers(), from: spec.V040, run: checkOfGoneRoute},
		{ID: "P15/untracked", Title: "CHECK finds each change that the profile describes",
			Sentence: `The plugin should return an error if other resources not tracked in the Result type such as the following are missing or are in an invalid state: firewall rules, traffic shaping controls, IP reservations, external dependencies such as a daemon required for connectivity.`,
			Kinds:    everyPlugin(), from: spec.V040, run: checkOfBreaks},
		{ID: "P15/reservation", Title: "CHECK fails if the address is not reserved",
			Sentence: `The plugin should return an error if other resources not tracked in the Result type such as the following are missing or are in an invalid state: IP reservations.`,
			Kinds:    []Kind{IPAM}, from: spec.V040, run: checkOfFreedAddress},
		{ID: "P16/route", Title: "CHECK passes with a route more than ADD made",
			Sentence: `The plugin must allow for a later chained plugin to have modified networking resources, e.g. routes, on ADD.`,
			Kinds:    []Kind{Interface, Chained, Meta}, from: spec.V040, run: checkOfLaterRoute},
		{ID: "P17/at-once", Title: "CHECK right after ADD passes, in each version from 0.4.0",
			Sentence: `The plugin must handle CHECK being called immediately after an ADD, and therefore should allow a reasonable convergence delay for any asynchronous resources.`,
			Kinds:    everyPlugin(), from: spec.V040, run: checkAtOnce},
		{ID: "P6/silent", Title: "CHECK and DEL print nothing on stdout",
			Sentence: "CHECK: The plugin must return either nothing or an error.",
			Kinds:    everyPlugin(), from: spec.V040, run: silent},
	}
}

func oldCheck(t *trial) {
	old := slices.DeleteFunc(t.spoken(t.oldest()), func(v spec.Version) bool { return v.AtLeast(spec.V040) })
	applies(len(old) > 0, "the plugin speaks no version before 0.4.0")
	t.eachVersion(old, func(v spec.Version, c *container) {
		a := t.do("CHECK", c, in(v))
		a.expect(a.code() == spec.CodeVersion, "error code 1 in version "+string(v))
	})
}

func checkWithoutResult(t *trial) {
	a := t.do("CHECK", t.attached("c1"), lacking("prevResult"))
	a.expect(a.failed != nil, "an error")
}

// damage attaches a container, which CHECK finds sound, changes something, and expects CHECK to fail.
func (t *trial) damage(what string, id string, change func(*container)) {
	c := t.attached(id)
	t.succeed("CHECK before anything is changed", "CHECK", c)
	change(c)
	a := t.do("CHECK", c)
	a.expect(a.failed != nil, "CHECK to fail after "+what)
}

func checkOfGoneInterface(t *trial) {
	t.needsAnyName()
	t.damage("ip link del "+t.ifName(), "c1", removeLink)
}

func checkOfGoneAddress(t *trial) {
	t.needsIPAM()
	t.damage("ip addr del", "c1", func(c *container) {
		require(alter(c.netns, func(ns *kernel.NS) error {
			index, err := rtnl.IndexOf(ns, c.ifName)
			if err != nil {
				return err
			}
			return rtnl.DelAddr(ns, index, rtnl.Addr{Prefix: c.addr})
		}))
	})
}

func checkOfGoneRoute(t *trial) {
	t.needsIPAM()
	t.damage("ip route del default", "c1", func(c *container) {
		route := defaultRoute(c, "a default route")
		require(alter(c.netns, func(ns *kernel.NS) error { return rtnl.DelRoute(ns, route) }))
	})
}

func checkOfBreaks(t *trial) {
	applies(len(t.subject.Breaks) > 0, "the profile has no breaks for this plugin")
	for i, b := range t.subject.Breaks {
		t.damage(b.Name, "c"+itoa(i), func(c *container) {
			path := ""
			if b.In == "container" {
				path = c.netns
			}
			require(nstest.In(path, func() error { return t.run(b.Run) }))
		})
	}
}

func checkOfFreedAddress(t *trial) {
	applies(!t.subject.Single, "the plugin reserves nothing")
	t.damage("DEL", "c1", func(c *container) { t.succeed("DEL", "DEL", c) })
}

func checkOfLaterRoute(t *trial) {
	c := t.attached("c1")
	err := route(c.netns, c.ifName, netip.MustParsePrefix("192.0.2.0/24"), netip.Addr{})
	if errors.Is(err, syscall.ENETDOWN) {
		err = unfit("the plugin leaves " + c.ifName + " down, so it can have no route")
	}
	require(err)
	t.succeed("CHECK", "CHECK", c)
}

func checkAtOnce(t *trial) {
	t.eachVersion(t.spoken(spec.V040), func(v spec.Version, c *container) {
		t.succeed("CHECK in version "+string(v), "CHECK", c, in(v))
	})
}

func silent(t *trial) {
	c := t.attached("c1")
	for _, verb := range []string{"CHECK", "DEL"} {
		a := t.succeed(verb, verb, c)
		a.expect(len(a.stdout) == 0, "nothing on stdout")
	}
}
