package conformance

import (
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// What the suite's IPAM plugin says when it is told to fail.
const (
	ipamMessage = "the suite's IPAM plugin fails"
	ipamDetails = "it was told to"
)

func delegationChecks() []Check {
	const passed = `If a plugin is executed with CNI_COMMAND=CHECK, DEL, or GC, it must also execute any delegated plugins. If any of the delegated plugins return error, error should be returned by the upper plugin.`
	return []Check{
		{ID: "I1/environment", Title: "the IPAM plugin gets the environment of the call",
			Sentence: `The delegated plugin must receive all the same environment variables that were passed in to the CNI plugin.`,
			Kinds:    makers(), run: sameEnvironment},
		{ID: "I1/configuration", Title: "the IPAM plugin gets the complete configuration",
			Sentence: `Delegated plugins are provided the complete network configuration passed to the "upper" plugin. In other words, in the IPAM case, not just the ipam section of the configuration.`,
			Kinds:    []Kind{Interface}, run: completeConfiguration},
		{ID: "I1/stderr", Title: "what the IPAM plugin prints on stderr comes out on the plugin's",
			Sentence: "Ensure that the delegated plugin's stderr is output to the calling plugin's stderr.",
			Kinds:    makers(), run: delegateStderr},
		{ID: "I2/verbs", Title: "ADD, CHECK and DEL reach the IPAM plugin",
			Sentence: passed, Kinds: makers(), from: spec.V040, run: verbsPassedOn},
		{ID: "I2/check", Title: "CHECK fails if the IPAM plugin's CHECK does",
			Sentence: `The plugin should call CHECK on any delegated (e.g. IPAM) plugins and pass any errors on to its caller.`,
			Kinds:    makers(), from: spec.V040, run: checkOfIPAMFails},
		{ID: "I2/error", Title: "an error of the IPAM plugin's ADD comes out with its code",
			Sentence: passed, Kinds: makers(), run: delegateError},
		{ID: "I3/failed", Title: "an ADD that fails has the IPAM plugin called with DEL",
			Sentence: `If, on ADD, a delegated plugin fails, the "upper" plugin should execute again with DEL before returning failure.`,
			Kinds:    makers(), from: spec.V100, run: delegateUndone},
		{ID: "I4/abbreviated", Title: "an IPAM plugin's result has no interfaces, and no ips[].interface",
			Sentence: `Delegated IPAM plugins must return an abbreviated Success object. Specifically, it is missing the interfaces array, as well as the interface entry in ips.`,
			Kinds:    []Kind{IPAM}, from: spec.V030, run: abbreviated},
		{ID: "I5/none", Title: "ADD without ipam succeeds where the plugin can do without addresses",
			Sentence: "The ipam dictionary is an optional key.",
			Kinds:    makers(), run: withoutIPAM},
	}
}

// delegation attaches a container, and returns the calls of the suite's IPAM plugin.
func (t *trial) delegation(changes ...change) (*container, []called) {
	t.needsIPAM()
	c := t.container("c1")
	t.add(c, changes...)
	log := calls()
	expect(len(log) > 0, "a call of the IPAM plugin", "none")
	return c, log
}

func sameEnvironment(t *trial) {
	c, log := t.delegation(env(func(call *invoke.Call) { call.Args = "IgnoreUnknown=true;FOO=BAR" }))
	for name, want := range map[string]string{"CNI_COMMAND": "ADD", "CNI_CONTAINERID": c.id, "CNI_NETNS": c.netns,
		"CNI_IFNAME": c.ifName, "CNI_ARGS": t.last.call.Args, "CNI_PATH": strings.Join(t.last.call.Path, ":")} {
		got := log[0].Env[name]
		expect(got == want, name+"="+want, "%q", got)
	}
}

func completeConfiguration(t *trial) {
	_, log := t.delegation(key("args", map[string]any{"example.com": map[string]any{"n": 1}}))
	sent, got := must(members(t.last.stdin)), must(members(log[0].Stdin))
	for name, want := range sent {
		expect(sameJSON(got[name], want), fmt.Sprintf("the key %s: %s", name, want), "%q", got[name])
	}
}

func delegateStderr(t *trial) {
	t.delegation()
	stderr := t.last.stderr
	expect(strings.Contains(stderr, ipamMarker), quoted(ipamMarker)+" on stderr", "%s", quoted(excerpt(stderr)))
}

func verbsPassedOn(t *trial) {
	c, _ := t.delegation()
	for _, verb := range []string{"CHECK", "DEL"} {
		t.succeed(verb, verb, c)
		t.delegated(verb)
	}
}

func checkOfIPAMFails(t *trial) {
	c, _ := t.delegation()
	a := t.do("CHECK", c, failing("CHECK", 142))
	a.expect(a.failed != nil, "the error of the IPAM plugin")
}

func delegateError(t *trial) {
	t.needsIPAM()
	a := t.do("ADD", t.container("c1"), failing("ADD", 142))
	a.expect(a.code() == 142 && a.names(ipamMessage), "error code 142 with the message of the IPAM plugin")
}

func delegateUndone(t *trial) {
	t.needsIPAM()
	a := t.do("ADD", t.container("c1"), failing("ADD", 142))
	a.expect(a.failed != nil, "an error")
	t.delegated("DEL")
}

func abbreviated(t *trial) {
	c := t.attached("c1")
	for _, ip := range c.result.IPs {
		t.last.expect(ip.Interface == nil, "no ips[].interface")
	}
	doc, err := members(c.prev)
	t.last.expect(err == nil && doc["interfaces"] == nil, "no interfaces")
	t.last.expect(len(c.result.IPs) > 0, "an address")
}

func withoutIPAM(t *trial) {
	applies(t.subject.Layer2, "the profile does not say that the plugin can do without addresses")
	t.add(t.container("c1"), lacking("ipam"))
}
