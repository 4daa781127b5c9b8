package conformance

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/invoke"
)

func delChecks() []Check {
	const effort = `plugins should always complete a DEL action without error to the fullest extent possible, even if some resources or state are missing.`
	const partly = `When CNI_NETNS and/or prevResult are not provided, the plugin should clean up as many resources as possible (e.g. releasing IPAM allocations) and return a successful response.`
	const gone = `an IPAM plugin should generally release an IP allocation and return success even if the container network namespace no longer exists.`
	return []Check{
		{ID: "P12/clean", Title: "DEL removes all that ADD made",
			Sentence: `DEL: delete the interface defined by CNI_IFNAME inside the container at CNI_NETNS, or undo any modifications applied in the plugin's ADD functionality.`,
			Kinds:    everyPlugin(), run: cleanDel},
		{ID: "P12/twice", Title: "a second DEL succeeds",
			Sentence: `DEL may be followed by additional DELs but plugins should handle multiple DELs permissively (i.e. plugin DEL should be idempotent).`,
			Kinds:    everyPlugin(), run: secondDel},
		{ID: "P12/never", Title: "DEL of what was never added succeeds",
			Sentence: effort, Kinds: everyPlugin(), run: delWithoutAdd},
		{ID: "P12/no-netns", Title: "DEL without CNI_NETNS succeeds, and leaves nothing on the host",
			Sentence: partly, Kinds: everyPlugin(), run: delWithoutNetns},
		{ID: "P12/netns-gone", Title: "DEL with a namespace that is gone succeeds, and leaves nothing on the host",
			Sentence: effort, Kinds: everyPlugin(), run: delOfGoneNetns},
		{ID: "P12/interface-gone", Title: "DEL of an interface that is gone succeeds, and leaves nothing on the host",
			Sentence: effort, Kinds: []Kind{Interface, Chained, Meta}, run: delOfGoneInterface},
		{ID: "P12/no-result", Title: "DEL without prevResult succeeds, and leaves nothing",
			Sentence: "Plugins should still return without error if prevResult is empty for a DEL command.",
			Kinds:    everyPlugin(), run: delWithoutResult},
		{ID: "P13/delegate", Title: "DEL with a namespace that is gone reaches the IPAM plugin",
			Sentence: `the bridge plugin should delegate the DEL action to the IPAM plugin and clean up its own resources even if the container network namespace and/or container network interface no longer exist.`,
			Kinds:    makers(), run: delReachesIPAM},
		{ID: "P13/address", Title: "DEL with a namespace that is gone frees the address",
			Sentence: gone, Kinds: []Kind{IPAM}, run: delFreesAddress},
	}
}

// deletion attaches a container, changes something, calls DEL, and compares the host with what it was.
func (t *trial) deletion(what string, between func(*container) error, changes ...change) error {
	if err := t.warm(); err != nil {
		return err
	}
	before, err := t.state(nil)
	if err != nil {
		return err
	}
	c, err := t.attached("c1")
	if err != nil {
		return err
	}
	if between != nil {
		if err := between(c); err != nil {
			return err
		}
	}
	if err := t.succeed(what, "DEL", c, changes...); err != nil {
		return err
	}
	if err := t.withdraw(c); err != nil {
		return err
	}
	return t.unchanged(what, before, nil)
}

// withdraw removes what the suite itself made for a chained plugin.
func (t *trial) withdraw(c *container) error {
	if t.subject.Kind == Chained {
		return t.removeUnder(c)
	}
	return nil
}

func cleanDel(t *trial) error {
	if t.subject.Kind != Interface && t.subject.Kind != Meta || t.subject.IfName != "" {
		return t.deletion("DEL", nil)
	}
	c, err := t.attached("c0")
	if err != nil {
		return err
	}
	if err := t.succeed("DEL", "DEL", c); err != nil {
		return err
	}
	l, err := link(c.netns, c.ifName)
	if err != nil {
		return err
	}
	if l != nil {
		return differs("no interface "+c.ifName+" in the container after DEL", "it is there")
	}
	t.containers--
	return t.deletion("DEL", nil)
}

func secondDel(t *trial) error {
	c, err := t.attached("c1")
	if err != nil {
		return err
	}
	for _, what := range []string{"DEL", "a second DEL"} {
		if err := t.succeed(what, "DEL", c); err != nil {
			return err
		}
	}
	return nil
}

func delWithoutAdd(t *trial) error {
	c, err := t.container("c1")
	if err != nil {
		return err
	}
	return t.succeed("DEL without ADD", "DEL", c, lacking("prevResult"))
}

func delWithoutNetns(t *trial) error {
	netns := func(c *container) error { return nstest.RemoveNS(c.netns) }
	return t.deletion("DEL without CNI_NETNS", netns, env(func(call *invoke.Call) { call.Netns = "" }))
}

func delOfGoneNetns(t *trial) error {
	return t.deletion("DEL with a namespace that is gone", func(c *container) error { return nstest.RemoveNS(c.netns) })
}

func delOfGoneInterface(t *trial) error {
	if err := t.free(); err != nil {
		return err
	}
	return t.deletion("DEL of an interface that is gone", remove)
}

func delWithoutResult(t *trial) error {
	return t.deletion("DEL without prevResult", nil, lacking("prevResult"))
}

func delReachesIPAM(t *trial) error {
	c, err := t.attached("c1")
	if err = first(t.addressedOnly(), err); err != nil {
		return err
	}
	if err := nstest.RemoveNS(c.netns); err != nil {
		return err
	}
	if err := t.succeed("DEL with a namespace that is gone", "DEL", c); err != nil {
		return err
	}
	return t.delegated("DEL")
}

// delegated is the complaint that the suite's IPAM plugin was not called with a verb.
func (t *trial) delegated(verb string) error {
	log, err := calls()
	if err != nil {
		return err
	}
	for _, c := range log {
		if c.Verb == verb {
			return nil
		}
	}
	return differs(verb+" to reach the IPAM plugin", "%d other calls of it", len(log))
}

// mostAddresses is how many addresses the suite asks an IPAM plugin for, to see it run out of them.
const mostAddresses = 16

// exhaust attaches containers until the IPAM plugin has no address left.
func (t *trial) exhaust() (all []*container, err error) {
	for i := range mostAddresses {
		c, err := t.container(fmt.Sprintf("c%d", i))
		if err != nil {
			return nil, err
		}
		a, err := t.do("ADD", c)
		if err != nil {
			return nil, err
		}
		if a.failed != nil {
			if len(all) == 0 {
				return nil, differs("ADD to succeed", "%s", a)
			}
			return all, nil
		}
		all = append(all, c)
	}
	return nil, unfit(fmt.Sprintf("the configured range has more than %d addresses", mostAddresses))
}

func delFreesAddress(t *trial) error {
	all, err := t.exhaust()
	if err != nil {
		return err
	}
	if err := nstest.RemoveNS(all[0].netns); err != nil {
		return err
	}
	if err := t.succeed("DEL with a namespace that is gone", "DEL", all[0]); err != nil {
		return err
	}
	c, err := t.container("next")
	if err != nil {
		return err
	}
	a, err := t.do("ADD", c)
	if err == nil && a.failed != nil {
		err = differs("the address that DEL freed for the next container", "%s", a)
	}
	return err
}
