package conformance

import (
	"fmt"
	"slices"

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
func (t *trial) deletion(what string, between func(*container), changes ...change) {
	t.warm()
	before := t.state(nil)
	c := t.attached("c1")
	if between != nil {
		between(c)
	}
	t.succeed(what, "DEL", c, changes...)
	t.withdraw(c)
	t.unchanged(what, before, nil)
}

func cleanDel(t *trial) {
	if slices.Contains(makers(), t.subject.Kind) && t.subject.IfName == "" {
		c := t.attached("c0")
		t.succeed("DEL", "DEL", c)
		expect(must(link(c.netns, c.ifName)) == nil,
			"no interface "+c.ifName+" in the container after DEL", "it is there")
		t.containers--
	}
	t.deletion("DEL", nil)
}

func secondDel(t *trial) {
	c := t.attached("c1")
	t.succeed("DEL", "DEL", c)
	t.succeed("a second DEL", "DEL", c)
}

func delWithoutAdd(t *trial) {
	t.succeed("DEL without ADD", "DEL", t.container("c1"), lacking("prevResult"))
}

func delWithoutNetns(t *trial) {
	t.deletion("DEL without CNI_NETNS", removeNS, env(func(call *invoke.Call) { call.Netns = "" }))
}

func delOfGoneNetns(t *trial) { t.deletion("DEL with a namespace that is gone", removeNS) }

func delOfGoneInterface(t *trial) {
	t.needsAnyName()
	t.deletion("DEL of an interface that is gone", removeLink)
}

func delWithoutResult(t *trial) { t.deletion("DEL without prevResult", nil, lacking("prevResult")) }

func delReachesIPAM(t *trial) {
	t.needsIPAM()
	t.delOfGone(t.attached("c1"))
	t.delegated("DEL")
}

// delOfGone removes the namespace of a container, and calls DEL.
func (t *trial) delOfGone(c *container) {
	removeNS(c)
	t.succeed("DEL with a namespace that is gone", "DEL", c)
}

// delegated fails where the suite's IPAM plugin was not called with a verb.
func (t *trial) delegated(verb string) {
	log := calls()
	expect(slices.ContainsFunc(log, func(c called) bool { return c.Verb == verb }),
		verb+" to reach the IPAM plugin", "%d other calls of it", len(log))
}

// mostAddresses is how many addresses the suite asks an IPAM plugin for, to see it run out of them.
const mostAddresses = 16

// exhaust attaches containers until the IPAM plugin has no address left.
func (t *trial) exhaust() (all []*container) {
	for i := 0; ; i++ {
		applies(i < mostAddresses, fmt.Sprintf("the configured range has more than %d addresses", mostAddresses))
		c := t.container(fmt.Sprintf("c%d", i))
		if a := t.do("ADD", c); a.failed != nil {
			a.expect(len(all) > 0, "ADD to succeed")
			return all
		}
		all = append(all, c)
	}
}

func delFreesAddress(t *trial) {
	t.delOfGone(t.exhaust()[0])
	a := t.do("ADD", t.container("next"))
	a.expect(a.failed == nil, "the address that DEL freed for the next container")
}
