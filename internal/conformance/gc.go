package conformance

import (
	"github.com/fairlead-cni/fairlead/spec"
)

// validKey is the key of the configuration that has GC's list.
const validKey = "cni.dev/valid-attachments"

func gcChecks() []Check {
	const stale = `A plugin SHOULD remove as many stale resources as possible. For example, a plugin should remove any IPAM reservations associated with attachments not in the provided list.`
	const ready = `A plugin must exit with a zero (success) return code if the plugin is ready to service ADD requests. If the plugin knows that it is not able to service ADD requests, it must exit with a non-zero return code and output an error on standard out.`
	return []Check{
		{ID: "V9/old", Title: "GC and STATUS in version 1.0.0 are error code 1",
			Sentence: "Error code 1: Incompatible CNI version.",
			Kinds:    everyPlugin(), from: spec.V110, run: oldGC},
		{ID: "P22/stale", Title: `GC removes what belongs to an attachment that is not in the list, and keeps the others`,
			Sentence: stale, Kinds: everyPlugin(), from: spec.V110, run: gcStale},
		{ID: "P22/empty", Title: "GC with an empty list removes what belongs to all attachments",
			Sentence: stale, Kinds: everyPlugin(), from: spec.V110, run: gcAll},
		{ID: "P22/network", Title: "GC leaves attachments of other networks alone",
			Sentence: "cni.dev/valid-attachments: The list of still valid attachments to this network.",
			Kinds:    everyPlugin(), from: spec.V110, run: gcOtherNetwork},
		{ID: "P22/delegate", Title: "GC reaches the IPAM plugin, with its list",
			Sentence: `Plugins MUST, additionally, forward any GC calls to delegated plugins they are configured to use.`,
			Kinds:    makers(), from: spec.V110, run: gcReachesIPAM},
		{ID: "P22/silent", Title: "GC and STATUS need no container, and print nothing on stdout",
			Sentence: "GC: No output on success, \"error\" result structure on error.",
			Kinds:    everyPlugin(), from: spec.V110, run: gcSilent},
		{ID: "P21/ready", Title: "STATUS succeeds where ADD does",
			Sentence: ready, Kinds: everyPlugin(), from: spec.V110, run: statusReady},
		{ID: "P21/delegate", Title: "STATUS fails if the IPAM plugin's STATUS does",
			Sentence: `it must also execute a STATUS request to that plugin when it receives a STATUS request for itself. If the delegated plugin return an error result, the executing plugin should return an error result.`,
			Kinds:    makers(), from: spec.V110, run: statusOfIPAM},
		{ID: "P21/exhausted", Title: "STATUS is error code 50 or 51 where no address is left",
			Sentence: `if a plugin has a limited number of resources (e.g. IP addresses, hardware queues), it should return an error if those resources are exhausted and no new ADD requests can be serviced.`,
			Kinds:    []Kind{IPAM}, from: spec.V110, run: statusExhausted},
	}
}

// valid is GC's list.
func valid(all ...*container) change {
	list := []spec.Attachment{}
	for _, c := range all {
		list = append(list, spec.Attachment{ContainerID: c.id, IfName: c.ifName})
	}
	return key(validKey, list)
}

func oldGC(t *trial) {
	for _, verb := range []string{"GC", "STATUS"} {
		a := t.do(verb, nil, in(spec.V100), valid())
		a.expect(a.code() == spec.CodeVersion, "error code 1 for "+verb+" in version 1.0.0")
	}
}

// gone attaches a container and removes its namespace, as if the runtime had forgotten it.
func (t *trial) gone(id string) {
	c := t.attached(id)
	removeNS(c)
	t.withdraw(c)
}

func gcStale(t *trial) {
	kept := t.attached("kept")
	before := t.state(nil)
	t.gone("stale")
	t.succeed("GC", "GC", nil, valid(kept))
	t.unchanged("GC of what was added since", before, nil)
	t.succeed("CHECK of the attachment that is in the list", "CHECK", kept)
}

func gcAll(t *trial) {
	t.warm()
	before := t.state(nil)
	t.gone("c1")
	t.gone("c2")
	t.succeed("GC", "GC", nil, valid())
	t.unchanged("GC with an empty list", before, nil)
}

func gcOtherNetwork(t *trial) {
	c := t.attached("c1")
	t.succeed("GC of another network", "GC", nil, key("name", "other"), valid())
	t.succeed("CHECK after the GC of another network", "CHECK", c)
}

func gcReachesIPAM(t *trial) {
	t.needsIPAM()
	t.succeed("GC", "GC", nil, valid())
	t.delegated("GC")
}

func gcSilent(t *trial) {
	for _, verb := range []string{"GC", "STATUS"} {
		a := t.do(verb, nil, valid())
		a.expect(a.failed == nil && len(a.stdout) == 0, verb+" to succeed and print nothing")
	}
}

func statusReady(t *trial) {
	t.succeed("DEL", "DEL", t.attached("c1"))
	t.succeed("STATUS", "STATUS", nil)
}

// unavailable calls STATUS, which has to say that ADD would fail.
func (t *trial) unavailable(changes ...change) {
	a := t.do("STATUS", nil, changes...)
	a.expect(a.code() == spec.CodeUnavailable || a.code() == spec.CodeLimited, "error code 50 or 51")
}

func statusOfIPAM(t *trial) {
	t.needsIPAM()
	t.unavailable(failing("STATUS", spec.CodeUnavailable))
}

func statusExhausted(t *trial) {
	t.exhaust()
	t.unavailable()
}
