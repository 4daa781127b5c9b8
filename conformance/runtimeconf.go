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

func malformedNetwork(t *trial) error {
	const name = "-network"
	c, err := t.beginning(diskNetwork{keys: map[string]any{"name": name}})
	if err != nil {
		return err
	}
	t.network = name
	log, _, err := t.breaks("add", c)
	return first(err, ordered(log, "no calls"))
}

func unknownKeys(t *trial) error {
	const value = `{"large":12345678901234567890,"small":0.10,"list":[true,null,"a/b<c"]}`
	_, log, err := t.running(diskNetwork{plugins: map[string]map[string]any{"a": {"other": json.RawMessage(value)}}})
	if err == nil && len(log) == 0 {
		err = differs("a call of conformance-a", "none")
	}
	if err != nil {
		return err
	}
	got := log[0].given("other")
	var compact bytes.Buffer
	if json.Compact(&compact, got) != nil || !bytes.Equal(unescaped(compact.Bytes()), []byte(value)) {
		return differs("the key other: "+value, "%q", got)
	}
	return nil
}

// unescaped undoes what encoders may write in another way without changing a text.
func unescaped(b []byte) []byte {
	b = bytes.ReplaceAll(b, []byte(`\u003c`), []byte("<"))
	return bytes.ReplaceAll(b, []byte(`\/`), []byte("/"))
}

func identityOfList(t *trial) error {
	_, log, err := t.running(diskNetwork{plugins: map[string]map[string]any{
		"a": {"name": "other", "cniVersion": "0.3.1"}}})
	if err != nil {
		return err
	}
	return each(log, func(c called) error {
		for name, want := range map[string]string{"name": network, "cniVersion": string(spec.Newest)} {
			if got := c.given(name); string(got) != `"`+want+`"` {
				return differs("the key "+name+": "+want+" at "+c.Type, "%s", got)
			}
		}
		return nil
	})
}

func singleConfiguration(t *trial) error {
	err := writeNetwork("10-conformance.conf", map[string]any{"cniVersion": spec.V040, "name": network,
		"type": runtimePlugins()[0]})
	if err != nil {
		return err
	}
	c, err := t.container("c1")
	if err != nil {
		return err
	}
	log, err := t.works("add", c)
	return first(err, ordered(log, "ADD a"))
}

func disabledCheck(t *trial) error {
	c, _, err := t.running(diskNetwork{keys: map[string]any{"disableCheck": true}})
	if err != nil {
		return err
	}
	log, err := t.works("check", c)
	return first(err, ordered(log, "no calls"))
}

func disabledGC(t *trial) error {
	c, _, err := t.running(diskNetwork{keys: map[string]any{"disableGC": true}})
	if err != nil {
		return err
	}
	log, _, err := t.made("gc", c) // whether it says so is its own matter
	return first(err, ordered(log, "no calls"))
}

func pluginsOfFolder(t *trial) error {
	inline := []map[string]any{{"type": runtimePlugins()[0]}, {"type": runtimePlugins()[1]}}
	c, err := t.beginning(diskNetwork{keys: map[string]any{"plugins": inline}})
	if err != nil {
		return err
	}
	err = writeNetwork(network+"/20-more.conf", map[string]any{"type": runtimePlugins()[2]})
	if err != nil {
		return err
	}
	log, err := t.works("add", c)
	return first(err, ordered(log, "ADD a, ADD b, ADD c"))
}

func invalidNeighbour(t *trial) error {
	c, err := t.beginning(diskNetwork{})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(netDir, "00-bad.conflist"), []byte(`{"name":`), 0o644); err != nil {
		return err
	}
	log, err := t.works("add", c)
	return first(err, ordered(log, "ADD a, ADD b, ADD c"))
}

func highestVersion(t *trial) error {
	_, log, err := t.running(diskNetwork{keys: map[string]any{"cniVersion": spec.V040,
		"cniVersions": []spec.Version{spec.V040, spec.Newest, spec.V100}}})
	if err != nil {
		return err
	}
	return each(log, func(c called) error {
		if got := c.given("cniVersion"); string(got) != `"`+string(spec.Newest)+`"` {
			return differs("cniVersion "+string(spec.Newest), "%s at %s", got, c.Type)
		}
		return nil
	})
}
