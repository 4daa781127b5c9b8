package conformance

import (
	"bytes"
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
func (t *trial) delegation(changes ...change) (*container, []called, error) {
	c, err := t.container("c1")
	if err = first(t.addressedOnly(), err); err != nil {
		return nil, nil, err
	}
	if _, err := t.add(c, changes...); err != nil {
		return nil, nil, err
	}
	log, err := calls()
	if err == nil && len(log) == 0 {
		err = differs("a call of the IPAM plugin", "none")
	}
	return c, log, err
}

func sameEnvironment(t *trial) error {
	c, log, err := t.delegation(env(func(call *invoke.Call) { call.Args = "IgnoreUnknown=true;FOO=BAR" }))
	if err != nil {
		return err
	}
	for name, want := range map[string]string{"CNI_COMMAND": "ADD", "CNI_CONTAINERID": c.id, "CNI_NETNS": c.netns,
		"CNI_IFNAME": c.ifName, "CNI_ARGS": t.last.call.Args, "CNI_PATH": strings.Join(t.last.call.Path, ":")} {
		if got := log[0].Env[name]; got != want {
			return differs(name+"="+want, "%q", got)
		}
	}
	return nil
}

func completeConfiguration(t *trial) error {
	_, log, err := t.delegation(key("args", map[string]any{"example.com": map[string]any{"n": 1}}))
	if err != nil {
		return err
	}
	sent, err := members(t.last.stdin)
	if err != nil {
		return err
	}
	got, err := members(log[0].Stdin)
	if err != nil {
		return err
	}
	for name, want := range sent {
		if !sameJSON(got[name], want) {
			return differs(fmt.Sprintf("the key %s: %s", name, want), "%q", got[name])
		}
	}
	return nil
}

func delegateStderr(t *trial) error {
	if _, _, err := t.delegation(); err != nil {
		return err
	}
	if !strings.Contains(t.last.stderr, ipamMarker) {
		return differs(quoted(ipamMarker)+" on stderr", "%s", quoted(excerpt(t.last.stderr)))
	}
	return nil
}

func verbsPassedOn(t *trial) error {
	c, _, err := t.delegation()
	if err != nil {
		return err
	}
	for _, verb := range []string{"CHECK", "DEL"} {
		if err := t.succeed(verb, verb, c); err != nil {
			return err
		}
		if err := t.delegated(verb); err != nil {
			return err
		}
	}
	return nil
}

func checkOfIPAMFails(t *trial) error {
	c, _, err := t.delegation()
	if err != nil {
		return err
	}
	a, err := t.do("CHECK", c, failing("CHECK", 142))
	if err == nil && a.failed == nil {
		err = differs("the error of the IPAM plugin", "%s", a)
	}
	return err
}

func delegateError(t *trial) error {
	c, err := t.container("c1")
	if err = first(t.addressedOnly(), err); err != nil {
		return err
	}
	a, err := t.do("ADD", c, failing("ADD", 142))
	if err == nil && (a.code() != 142 || !bytes.Contains(a.stdout, []byte(ipamMessage))) {
		err = differs("error code 142 with the message of the IPAM plugin", "%s", a)
	}
	return err
}

func delegateUndone(t *trial) error {
	c, err := t.container("c1")
	if err = first(t.addressedOnly(), err); err != nil {
		return err
	}
	a, err := t.do("ADD", c, failing("ADD", 142))
	if err != nil {
		return err
	}
	if a.failed == nil {
		return differs("an error", "%s", a)
	}
	return t.delegated("DEL")
}

func abbreviated(t *trial) error {
	c, err := t.attached("c1")
	if err != nil {
		return err
	}
	for _, ip := range c.result.IPs {
		if ip.Interface != nil {
			return differs("no ips[].interface", "%s", t.last)
		}
	}
	if doc, err := members(c.prev); err != nil || doc["interfaces"] != nil {
		return differs("no interfaces", "%s", t.last)
	}
	if len(c.result.IPs) == 0 {
		return differs("an address", "%s", t.last)
	}
	return nil
}

func withoutIPAM(t *trial) error {
	if !t.subject.Layer2 {
		return unfit("the profile does not say that the plugin can do without addresses")
	}
	c, err := t.container("c1")
	if err != nil {
		return err
	}
	_, err = t.add(c, lacking("ipam"))
	return err
}
