package conformance

import (
	"bytes"
	"strings"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

func environmentChecks() []Check {
	const code4 = `Error code 4: Invalid necessary environment variables, like CNI_COMMAND, CNI_CONTAINERID, etc. The error message must contain the names of invalid variables.`
	const id = `Must not be empty. Must start with an alphanumeric character, optionally followed by any combination of one or more alphanumeric characters, underscore (_), dot (.) or hyphen (-).`
	return []Check{
		{ID: "P2/missing", Title: "ADD, CHECK or DEL without a variable that it needs is error code 4, which names it",
			Sentence: code4, Kinds: everyPlugin(), from: spec.V040, run: missingVariable},
		{ID: "P2/all", Title: "ADD without any variable is an error that names each of them",
			Sentence: code4, Kinds: everyPlugin(), from: spec.V040, run: missingVariables},
		{ID: "P2/command", Title: "an unknown CNI_COMMAND is error code 4",
			Sentence: code4, Kinds: everyPlugin(), run: unknownCommand},
		{ID: "P3/container", Title: "ADD with a malformed CNI_CONTAINERID is error code 4",
			Sentence: id, Kinds: everyPlugin(), from: spec.V040, run: badContainerID},
		{ID: "P4/interface", Title: "ADD with a malformed CNI_IFNAME is error code 4",
			Sentence: `It must not be empty, must not be "." or "..", must be less than 16 characters and must not ` +
				"contain / or : or any whitespace characters.",
			Kinds: everyPlugin(), from: spec.V040, run: badIfName},
		{ID: "P5/ignore", Title: "ADD with unknown keys in CNI_ARGS beside IgnoreUnknown=true succeeds",
			Sentence: `CNI_ARGS: Extra arguments passed in by the user at invocation time. Alphanumeric key-value pairs separated by semicolons.`,
			Kinds:    everyPlugin(), run: ignoredArgs},
	}
}

// env changes the call's environment.
func env(set func(*invoke.Call)) change { return func(r *request) { set(&r.call) } }

// A variable is one that names the container, and how a call goes without it.
type variable struct {
	name  string
	unset func(*invoke.Call)
}

func variables() []variable {
	return []variable{
		{"CNI_CONTAINERID", func(c *invoke.Call) { c.ContainerID = "" }},
		{"CNI_IFNAME", func(c *invoke.Call) { c.IfName = "" }},
		{"CNI_NETNS", func(c *invoke.Call) { c.Netns = "" }},
	}
}

// names reports whether what the plugin printed has a name in it.
func (a *answer) names(name string) bool { return bytes.Contains(a.stdout, []byte(name)) }

// code returns the code of the error document, or zero if there is none.
func (a *answer) code() spec.Code {
	if a.doc == nil {
		return 0
	}
	return a.doc.Code
}

func missingVariable(t *trial) {
	c := t.container("c1")
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		for _, v := range variables() {
			if verb == "DEL" && v.name == "CNI_NETNS" {
				continue // which it does without
			}
			a := t.do(verb, c, env(v.unset))
			a.expect(a.code() == spec.CodeEnvironment && a.names(v.name), "error code 4 that names "+v.name)
		}
	}
}

func missingVariables(t *trial) {
	a := t.do("ADD", t.container("c1"), env(func(call *invoke.Call) {
		for _, v := range variables() {
			v.unset(call)
		}
	}))
	for _, v := range variables() {
		a.expect(a.code() == spec.CodeEnvironment && a.names(v.name),
			"error code 4 that names CNI_CONTAINERID, CNI_IFNAME and CNI_NETNS")
	}
}

func unknownCommand(t *trial) {
	a := t.do("REPLACE", t.container("c1"))
	a.expect(a.code() == spec.CodeEnvironment, "error code 4")
}

// refused calls ADD with each value of a variable, which must be error code 4, and change nothing.
func (t *trial) refused(variable string, set func(*invoke.Call, string), values ...string) {
	c := t.container("c1")
	before := t.state(c)
	for _, value := range values {
		a := t.do("ADD", c, env(func(call *invoke.Call) { set(call, value) }))
		a.expect(a.code() == spec.CodeEnvironment, "error code 4 for "+variable+" "+quoted(value))
	}
	t.unchanged("an ADD that is refused", before, c)
}

func badContainerID(t *trial) {
	set := func(c *invoke.Call, id string) { c.ContainerID = id }
	t.refused("CNI_CONTAINERID", set, "../c1", "-c1", "c 1", "c1/x")
}

func badIfName(t *trial) {
	set := func(c *invoke.Call, name string) { c.IfName = name }
	t.refused("CNI_IFNAME", set, strings.Repeat("e", 16), ".", "..", "a/b", "a:b", "a b")
}

func ignoredArgs(t *trial) {
	t.add(t.container("c1"), env(func(call *invoke.Call) {
		call.Args = "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web"
	}))
}
