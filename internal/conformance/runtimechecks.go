package conformance

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
)

func runtimeChecks() []Check {
	only := []Kind{Runtime}
	return []Check{
		{ID: "R1/namespace", Title: "the namespace is there before any plugin runs",
			Sentence: `The container runtime must create a new network namespace for the container before invoking any plugins.`,
			Kinds:    only, run: namespaceFirst},
		{ID: "R2/order", Title: "ADD and CHECK run the plugins in order, DEL in reverse order",
			Sentence: `The list of plugins is executed in reverse order.`, Kinds: only, run: verbsInOrder},
		{ID: "R2/network", Title: "GC and STATUS run the plugins in order",
			Sentence: `When garbage-collecting a configuration, for every plugin defined in the plugins key of the network configuration, execute the plugin binary, with CNI_COMMAND=GC.`,
			Kinds:    only, run: networkVerbsInOrder},
		{ID: "R2/environment", Title: "all plugins get the same parameters, and CHECK and DEL those of ADD",
			Sentence: `All parameters, with the exception of CNI_PATH, must be the same as the corresponding ADD for this container.`,
			Kinds:    only, run: sameParameters},
		{ID: "R3/chain", Title: "ADD gives each plugin the result of the one before it, and the first none",
			Sentence: `If this is the first plugin in the list, no previous result is provided. For all additional plugins, the previous result is the result of the previous plugins.`,
			Kinds:    only, run: resultsInChain},
		{ID: "R3/final", Title: "CHECK and DEL give all plugins the final result of ADD",
			Sentence: `The previous result provided is always the final result of the add operation.`,
			Kinds:    only, run: finalResult},
		{ID: "R4/add", Title: "ADD stops at the first error, and returns it",
			Sentence: `If the plugin returns an error, halt execution and return the error to the caller.`,
			Kinds:    only, run: addStops},
		{ID: "R4/del", Title: "DEL stops at the first error, and returns it",
			Sentence: `If the plugin returns an error, halt execution and return the error to the caller.`,
			Kinds:    only, run: delStops},
		{ID: "R4/gc", Title: "GC goes on after an error, and returns it",
			Sentence: `If the plugin returns an error, continue with execution, returning all errors to the caller.`,
			Kinds:    only, run: gcGoesOn},
		{ID: "R5/undo", Title: "a failed ADD is followed by DEL of the whole list, in reverse order",
			Sentence: `A delete must still be executed even if the add fails.`, Kinds: only, run: failedAddUndone},
	}
}

func attachmentChecks() []Check {
	only := []Kind{Runtime}
	return []Check{
		{ID: "R6/check", Title: "CHECK of what was not added is an error, and calls no plugin",
			Sentence: `A runtime must not call CHECK for a container that has not been ADDed, or has been DELeted after its last ADD.`,
			Kinds:    only, run: checkNeedsAdd},
		{ID: "R6/del", Title: "DEL of what was not added calls the plugins without prevResult",
			Sentence: `delete may be followed by additional deletes.`, Kinds: only, run: delNeedsNoAdd},
		{ID: "R7/capabilities", Title: "runtimeConfig has what the plugin declares and the caller provides, no more",
			Sentence: `any capability supported by the plugin configuration and provided by the runtime should be inserted in the runtimeConfig. capabilities: must not be set.`,
			Kinds:    only, run: declaredCapabilities},
		{ID: "R10/twice", Title: "a second ADD without a DEL is refused, and calls no plugin",
			Sentence: `A runtime should not call ADD twice (without an intervening DEL) for the same (CNI_CONTAINERID, CNI_IFNAME) tuple.`,
			Kinds:    only, run: addTwice},
		{ID: "R11/first", Title: "the first directory of CNI_PATH that has the plugin wins",
			Sentence: `the runtime must be provided a list of paths to search for CNI plugins. This must also be provided to plugins during execution via the CNI_PATH environment variable.`,
			Kinds:    only, run: firstDirectory},
		{ID: "R11/namespace", Title: "plugins run in the runtime's own network namespace",
			Sentence: `The runtime must execute the plugin in the runtime's networking domain.`, Kinds: only, run: ownNamespace},
		{ID: "R12/missing", Title: "a plugin that is missing is an error that names it",
			Sentence: `Look up the executable specified in the type field. If this does not exist, then this is an error.`,
			Kinds:    only, run: missingPlugin},
		{ID: "R12/ends", Title: "a plugin that prints no JSON, is killed, or gives no error document is an error",
			Sentence: `A plugin must exit with a return code of 0 on success, and non-zero on failure.`,
			Kinds:    only, run: badEnds},
		{ID: "P21/runtime", Title: "STATUS of the network fails if a plugin's does",
			Sentence: `STATUS is a way for a runtime to determine the readiness of a network plugin.`,
			Kinds:    only, run: statusFails},
		{ID: "P22/list", Title: "GC gets the attachments that are still valid",
			Sentence: `cni.dev/valid-attachments (array of objects): The list of still valid attachments to this network.`,
			Kinds:    only, run: gcGetsList},
		{ID: "P6/result", Title: "ADD prints the final result",
			Sentence: `The runtime must store the result returned by the final plugin persistently, as it is required for check and delete operations.`,
			Kinds:    only, run: resultPrinted},
	}
}

func namespaceFirst(t *trial) {
	_, log := t.running(diskNetwork{})
	for _, c := range log {
		expect(c.HasNetns, "a network namespace at CNI_NETNS", "none at %q when %s was called",
			c.Env["CNI_NETNS"], c.Type)
	}
}

func verbsInOrder(t *trial) {
	c, log := t.running(diskNetwork{})
	ordered(log, "ADD a, ADD b, ADD c")
	ordered(t.works("check", c), "CHECK a, CHECK b, CHECK c")
	ordered(t.works("del", c), "DEL c, DEL b, DEL a")
}

func networkVerbsInOrder(t *trial) {
	c, _ := t.running(diskNetwork{})
	ordered(t.works("status", c), "STATUS a, STATUS b, STATUS c")
	ordered(t.works("gc", c), "GC a, GC b, GC c")
}

func sameParameters(t *trial) {
	c := t.beginning(diskNetwork{})
	const args = "CNI_ARGS=IgnoreUnknown=1;FOO=BAR"
	id := ""
	for _, verb := range []string{"add", "check", "del"} {
		for _, call := range t.works(verb, c, args) {
			id = cmp.Or(id, call.Env["CNI_CONTAINERID"])
			for name, want := range map[string]string{"CNI_NETNS": c.netns, "CNI_IFNAME": c.ifName,
				"CNI_CONTAINERID": id, "CNI_ARGS": strings.TrimPrefix(args, "CNI_ARGS="), "CNI_PATH": delegates} {
				got := call.Env[name]
				expect(got == want && got != "", name+"="+want, "%q at %s of %s", got, call.Verb, call.Type)
			}
		}
	}
}

// plugins are how many plugins made the prevResult that a plugin got; -1 without one.
func (c called) plugins() int {
	prev := c.given("prevResult")
	if prev == nil {
		return -1
	}
	r, err := spec.DecodeResult(prev, spec.Newest)
	if err != nil {
		return -1
	}
	return len(r.DNS.Search)
}

// expectPrev fails where another number of plugins made the prevResult.
func (c called) expectPrev(plugins int, expected string) {
	expect(c.plugins() == plugins, expected, "prevResult %s", excerpt(string(c.given("prevResult"))))
}

func resultsInChain(t *trial) {
	_, log := t.running(diskNetwork{})
	ordered(log, "ADD a, ADD b, ADD c")
	for i, want := range []int{-1, 1, 2} {
		log[i].expectPrev(want, "the result of the plugin before "+log[i].Type)
	}
}

func finalResult(t *trial) {
	c, _ := t.running(diskNetwork{})
	for _, verb := range []string{"check", "del"} {
		for _, c := range t.works(verb, c) {
			c.expectPrev(len(runtimePlugins()), "the final result at "+c.Verb+" of "+c.Type)
		}
	}
}

func checkNeedsAdd(t *trial) {
	c, _ := t.running(diskNetwork{})
	t.works("del", c)
	ordered(t.breaks("check", c), "no calls")
}

func delNeedsNoAdd(t *trial) {
	log := t.works("del", t.beginning(diskNetwork{}))
	ordered(log, "DEL c, DEL b, DEL a")
	for _, c := range log {
		prev := string(c.given("prevResult"))
		expect(prev == "" || prev == "null", "no prevResult", "%s", excerpt(prev))
	}
}

func declaredCapabilities(t *trial) {
	c := t.beginning(diskNetwork{plugins: map[string]map[string]any{
		"a": {"capabilities": map[string]bool{"portMappings": true, "bandwidth": true, "mac": false}}}})
	const ports = `[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]`
	log := t.works("add", c, `CAP_ARGS={"portMappings":`+ports+`,"mac":"02:00:00:00:00:17"}`)
	ordered(log, "ADD a, ADD b, ADD c")
	for i, want := range []string{`{"portMappings":` + ports + `}`, "", ""} {
		got := log[i].given("runtimeConfig")
		expect(sameJSON(got, json.RawMessage(want)) || want == "" && (len(got) == 0 || string(got) == "{}"),
			"runtimeConfig "+want+" at "+log[i].Type, "%s", got)
		capabilities := log[i].given("capabilities")
		expect(capabilities == nil, "no capabilities at "+log[i].Type, "%s", capabilities)
	}
}

func addTwice(t *trial) {
	c, _ := t.running(diskNetwork{})
	ordered(t.breaks("add", c), "no calls")
}

func firstDirectory(t *trial) {
	c := t.beginning(diskNetwork{})
	const dir = "/run/conformance/first"
	require(os.Mkdir(dir, 0o755))
	require(os.Symlink(must(os.Readlink(filepath.Join(delegates, ipamType))), filepath.Join(dir, "conformance-b")))
	log := t.works("add", c, "CNI_PATH="+dir+":"+delegates)
	ordered(log, "ADD a, ADD b, ADD c")
	got := filepath.Dir(log[1].Program)
	expect(got == dir, "conformance-b of "+dir, "that of %s", got)
}

func ownNamespace(t *trial) {
	own := must(os.Readlink("/proc/self/ns/net"))
	_, log := t.running(diskNetwork{})
	for _, c := range log {
		expect(c.Namespace == own, "plugins in "+own, "%s in %s", c.Type, c.Namespace)
	}
}

func statusFails(t *trial) { t.breaks("status", t.beginning(faulty("STATUS"))) }

func gcGetsList(t *trial) {
	c, log := t.running(diskNetwork{})
	id := log[0].Env["CNI_CONTAINERID"]
	log = t.works("gc", c)
	expect(len(log) > 0, "calls of the plugins with GC", "none")
	var list []spec.Attachment
	given := log[0].given(validKey)
	err := json.Unmarshal(given, &list)
	expect(err == nil && slices.Equal(list, []spec.Attachment{{ContainerID: id, IfName: c.ifName}}),
		validKey+" with containerID "+id+" and ifname "+c.ifName, "%s", given)
}

func resultPrinted(t *trial) {
	t.running(diskNetwork{})
	r, err := spec.DecodeResult(bytes.TrimSpace(t.last.stdout), spec.Newest)
	expect(err == nil && len(r.DNS.Search) == len(runtimePlugins()), "the result of the last plugin on stdout",
		"%s", errors.Join(err, errors.New(t.last.String())))
}
