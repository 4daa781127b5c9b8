package conformance

import (
	"os"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

func errorChecks() []Check {
	const document = `Plugins should output a JSON object with the following keys if they encounter an error: cniVersion: The protocol version in use; code: A numeric error code; msg: A short message characterizing the error.`
	const name = `Must start with an alphanumeric character, optionally followed by any combination of one or more alphanumeric characters, underscore, dot (.) or hyphen (-).`
	return []Check{
		{ID: "C1/missing", Title: "ADD of a network without a name is error code 7",
			Sentence: `Error code 7: Invalid network config. If some validations on network configs do not pass, this error will be raised.`,
			Kinds:    everyPlugin(), from: spec.V040, run: noName},
		{ID: "C1/malformed", Title: "ADD of a network with a malformed name is error code 7",
			Sentence: name, Kinds: everyPlugin(), from: spec.V040, run: badName},
		{ID: "C2/ipam", Title: "an ipam.type that is a path is refused, and not run",
			Sentence: `ipam.type: Refers to the filename of the IPAM plugin executable. Must not contain characters disallowed in file paths for the system (e.g. / or \).`,
			Kinds:    makers(), run: pathAsType},
		{ID: "C12/args", Title: "ADD with args in the configuration succeeds",
			Sentence: `args: Dictionary with additional arguments provided by the container runtime. For example a dictionary of labels could be passed to CNI plugins by adding them to a labels field under args.`,
			Kinds:    everyPlugin(), run: argsKey},
		{ID: "P7/document", Title: "a failed ADD exits non-zero and prints an error document",
			Sentence: document, Kinds: everyPlugin(), run: errorDocument},
		{ID: "P7/version", Title: "the error document has the version of the configuration",
			Sentence: document, Kinds: everyPlugin(), from: spec.V040, run: errorVersion},
		{ID: "P8/decode", Title: "a configuration that is no JSON is error code 6",
			Sentence: `Error code 6: Failed to decode content. For example, failed to unmarshal network config from bytes.`,
			Kinds:    everyPlugin(), run: noJSON},
	}
}

// fails calls ADD, which has to end with an error of a code.
func (t *trial) fails(code spec.Code, changes ...change) {
	a := t.do("ADD", t.container("c1"), changes...)
	a.expect(a.code() == code, "error code "+itoa(int(code)))
}

func noName(t *trial)  { t.fails(spec.CodeConfig, lacking("name")) }
func badName(t *trial) { t.fails(spec.CodeConfig, key("name", "net/work")) }
func noJSON(t *trial)  { t.fails(spec.CodeDecode, raw(`{"cniVersion":`)) }

func pathAsType(t *trial) {
	t.needsIPAM()
	require(os.MkdirAll(delegates+"/below", 0o755))
	require(os.Symlink(must(os.Readlink(delegates+"/"+ipamType)), delegates+"/below/"+ipamType))
	a := t.do("ADD", t.container("c1"), func(r *request) {
		r.ipam = func(o *ipamOrder) { o.Type = "below/" + ipamType }
	})
	log := calls()
	expect(a.failed != nil && len(log) == 0, "an error, and no call of an IPAM plugin", "%s; %d calls", a, len(log))
}

func argsKey(t *trial) {
	t.add(t.container("c1"), key("args", map[string]any{
		"cni":         map[string]any{"labels": []map[string]string{{"key": "app", "value": "web"}}},
		"example.com": []int{1, 2},
	}))
}

func errorDocument(t *trial) {
	a := t.do("ADD", t.container("c1"), env(func(call *invoke.Call) { call.ContainerID = "" }))
	a.expect(a.exit > 0 && a.code() != 0 && a.names(`"msg"`),
		"a non-zero exit status, and an error document with code and msg")
}

func errorVersion(t *trial) {
	c := t.container("c1")
	for _, v := range t.spoken(spec.V040) {
		a := t.do("ADD", c, in(v), key("name", "net/work"))
		expect(a.doc != nil && a.doc.CNIVersion == v, "an error document with cniVersion "+string(v),
			"%s", excerpt(string(a.stdout)))
	}
}
