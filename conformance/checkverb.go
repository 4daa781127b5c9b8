package conformance

import (
	"net/netip"
	"slices"

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

func oldCheck(t *trial) error {
	old := slices.DeleteFunc(t.spoken(t.oldest()), func(v spec.Version) bool { return v.AtLeast(spec.V040) })
	if len(old) == 0 {
		return unfit("the plugin speaks no version before 0.4.0")
	}
	for i, v := range old {
		c, err := t.container("c" + itoa(i))
		if err != nil {
			return err
		}
		if _, err := t.add(c, in(v)); err != nil {
			return err
		}
		a, err := t.do("CHECK", c, in(v))
		if err != nil {
			return err
		}
		if a.code() != spec.CodeVersion {
			return differs("error code 1 in version "+string(v), "%s", a)
		}
		if err := t.succeed("DEL", "DEL", c, in(v)); err != nil {
			return err
		}
		t.containers--
	}
	return nil
}

func checkWithoutResult(t *trial) error {
	c, err := t.attached("c1")
	if err != nil {
		return err
	}
	a, err := t.do("CHECK", c, lacking("prevResult"))
	if err == nil && a.failed == nil {
		err = differs("an error", "%s", a)
	}
	return err
}

// damage attaches a container, which CHECK finds sound, changes something, and expects CHECK to fail.
func (t *trial) damage(what string, id string, change func(*container) error) error {
	c, err := t.attached(id)
	if err != nil {
		return err
	}
	if err := t.succeed("CHECK before anything is changed", "CHECK", c); err != nil {
		return err
	}
	if err := change(c); err != nil {
		return err
	}
	a, err := t.do("CHECK", c)
	if err == nil && a.failed == nil {
		err = differs("CHECK to fail after "+what, "%s", a)
	}
	return err
}

func checkOfGoneInterface(t *trial) error {
	if err := t.free(); err != nil {
		return err
	}
	return t.damage("ip link del "+t.ifName(), "c1", remove)
}

func checkOfGoneAddress(t *trial) error {
	if err := t.addressedOnly(); err != nil {
		return err
	}
	return t.damage("ip addr del", "c1", func(c *container) error {
		return alter(c.netns, func(ns *kernel.NS) error {
			index, err := rtnl.IndexOf(ns, c.ifName)
			if err != nil {
				return err
			}
			return rtnl.DelAddr(ns, index, rtnl.Addr{Prefix: c.addr})
		})
	})
}

func checkOfGoneRoute(t *trial) error {
	if err := t.addressedOnly(); err != nil {
		return err
	}
	return t.damage("ip route del default", "c1", func(c *container) error {
		there, err := routes(c.netns)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(there, func(r rtnl.Route) bool { return r.Dst.Bits() <= 0 })
		if i < 0 {
			return differs("a default route", "none")
		}
		return alter(c.netns, func(ns *kernel.NS) error { return rtnl.DelRoute(ns, there[i]) })
	})
}

func checkOfBreaks(t *trial) error {
	if len(t.subject.Breaks) == 0 {
		return unfit("the profile has no breaks for this plugin")
	}
	for i, b := range t.subject.Breaks {
		err := t.damage(b.Name, "c"+itoa(i), func(c *container) error {
			path := ""
			if b.In == "container" {
				path = c.netns
			}
			return nstest.In(path, func() error { return t.run(b.Run) })
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func checkOfFreedAddress(t *trial) error {
	if t.subject.Single {
		return unfit("the plugin reserves nothing")
	}
	return t.damage("DEL", "c1", func(c *container) error { return t.succeed("DEL", "DEL", c) })
}

func checkOfLaterRoute(t *trial) error {
	c, err := t.attached("c1")
	if err != nil {
		return err
	}
	if err := route(c.netns, c.ifName, netip.MustParsePrefix("192.0.2.0/24"), netip.Addr{}); err != nil {
		return err
	}
	return t.succeed("CHECK", "CHECK", c)
}

func checkAtOnce(t *trial) error {
	return t.eachVersion(spec.V040, func(v spec.Version, c *container, _ *answer) error {
		return t.succeed("CHECK in version "+string(v), "CHECK", c, in(v))
	})
}

func silent(t *trial) error {
	c, err := t.attached("c1")
	if err != nil {
		return err
	}
	for _, verb := range []string{"CHECK", "DEL"} {
		a, err := t.do(verb, c)
		if err != nil {
			return err
		}
		if a.failed != nil {
			return differs(verb+" to succeed", "%s", a)
		}
		if len(a.stdout) > 0 {
			return differs("nothing on stdout", "%s", a)
		}
	}
	return nil
}
