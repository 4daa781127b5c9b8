package conformance

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/spec"
)

func runtimeConfChecks() []Check {
	only := []Kind{Runtime}
	return []Check{
		{ID: "C1/network", Title: "a network with a malformed name is refused, and calls no plugin",
			Sentence: `name (string): Network name. Must start with an alphanumeric character, optionally followed by any combination of one or more alphanumeric characters, underscore, dot (.) or hyphen (-).`,
			Kinds:    only, run: malformedNetwork},
		{ID: "C3/unknown", Title: "unknown keys reach the plugin unchanged, large integers too",
			Sentence: `Plugin configuration objects may contain additional fields beyond the ones defined here. The runtime MUST pass through these fields, unchanged, to the invoked plugin.`,
			Kinds:    only, run: unknownKeys},
		{ID: "C4/identity", Title: "name and cniVersion of the list are in each plugin's configuration",
			Sentence: `The following fields are always to be inserted into the request configuration by the runtime: cniVersion: the protocol version selected by the runtime; name: taken from the name field of the network configuration.`,
			Kinds:    only, run: identityOfList},
		{ID: "C5/single", Title: "a configuration of 0.4.0 that is no list runs as a list of one",
			Sentence: `The network configuration is in JSON format and can easily be stored in a file. The network configuration includes mandatory fields such as "name" and "type" as well as plugin (type) specific ones.`,
			Kinds:    only, run: singleConfiguration},
		{ID: "C6/check", Title: "with disableCheck, CHECK succeeds and calls no plugin",
			Sentence: `If disableCheck is true, runtimes must not call CHECK for this network configuration list.`,
			Kinds:    only, run: disabledCheck},
		{ID: "C7/gc", Title: "with disableGC, GC calls no plugin",
			Sentence: `If disableGC is true, runtimes must not call GC for this network configuration list.`,
			Kinds:    only, run: disabledGC},
		{ID: "C8/folder", Title: "plugins in the folder of the network's name are appended to the list",
			Sentence: `Any valid plugin configuration objects aggregated from other sources must be appended to the final list of plugins for that network name.`,
			Kinds:    only, run: pluginsOfFolder},
		{ID: "C10/invalid", Title: "an invalid file beside it does not hide the network",
			Sentence: `An invalid configuration never hides a valid one.`, Kinds: only, run: invalidNeighbour},
		{ID: "V10/highest", Title: "of cniVersions, the newest is used",
			Sentence: `CNI runtimes MUST select the highest supported version from the set of network configuration versions given by the cniVersion and cniVersions fields.`,
			Kinds:    only, run: highestVersion},
	}
}

func malformedNetwork(t *trial) {
	t.network = "-network"
	c := t.beginning(diskNetwork{keys: map[string]any{"name": t.network}})
	ordered(t.breaks("add", c), "no calls")
}

func unknownKeys(t *trial) {
	const value = `{"large":12345678901234567890,"small":0.10,"list":[true,null,"a/b<c"]}`
	_, log := t.running(diskNetwork{plugins: map[string]map[string]any{"a": {"other": json.RawMessage(value)}}})
	expect(len(log) > 0, "a call of conformance-a", "none")
	got := log[0].given("other")
	var compact bytes.Buffer
	err := json.Compact(&compact, got)
	expect(err == nil && string(unescaped(compact.Bytes())) == value, "the key other: "+value, "%q", got)
}

// unescaped undoes what encoders may write in another way without changing a text.
func unescaped(b []byte) []byte {
	b = bytes.ReplaceAll(b, []byte(`\u003c`), []byte("<"))
	return bytes.ReplaceAll(b, []byte(`\/`), []byte("/"))
}

func identityOfList(t *trial) {
	_, log := t.running(diskNetwork{plugins: map[string]map[string]any{
		"a": {"name": "other", "cniVersion": "0.3.1"}}})
	for _, c := range log {
		for name, want := range map[string]string{"name": network, "cniVersion": string(spec.Newest)} {
			got := c.given(name)
			expect(string(got) == `"`+want+`"`, "the key "+name+": "+want+" at "+c.Type, "%s", got)
		}
	}
}

func singleConfiguration(t *trial) {
	writeNetwork("10-conformance.conf", map[string]any{"cniVersion": spec.V040, "name": network,
		"type": runtimePlugins()[0]})
	ordered(t.works("add", t.container("c1")), "ADD a")
}

func disabledCheck(t *trial) {
	c, _ := t.running(diskNetwork{keys: map[string]any{"disableCheck": true}})
	ordered(t.works("check", c), "no calls")
}

func disabledGC(t *trial) {
	c, _ := t.running(diskNetwork{keys: map[string]any{"disableGC": true}})
	ordered(t.made("gc", c), "no calls") // whether it says so is its own matter
}

func pluginsOfFolder(t *trial) {
	inline := []map[string]any{{"type": runtimePlugins()[0]}, {"type": runtimePlugins()[1]}}
	c := t.beginning(diskNetwork{keys: map[string]any{"plugins": inline}})
	writeNetwork(network+"/20-more.conf", map[string]any{"type": runtimePlugins()[2]})
	ordered(t.works("add", c), "ADD a, ADD b, ADD c")
}

func invalidNeighbour(t *trial) {
	c := t.beginning(diskNetwork{})
	require(os.WriteFile(filepath.Join(netDir, "00-bad.conflist"), []byte(`{"name":`), 0o644))
	ordered(t.works("add", c), "ADD a, ADD b, ADD c")
}

func highestVersion(t *trial) {
	_, log := t.running(diskNetwork{keys: map[string]any{"cniVersion": spec.V040,
		"cniVersions": []spec.Version{spec.V040, spec.Newest, spec.V100}}})
	for _, c := range log {
		got := c.given("cniVersion")
		expect(string(got) == `"`+string(spec.Newest)+`"`, "cniVersion "+string(spec.Newest), "%s at %s", got, c.Type)
	}
}
