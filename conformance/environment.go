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

// variables are those that name the container, and how a call goes without them.
func variables() []struct {
	name  string
	unset func(*invoke.Call)
} {
	return []struct {
		name  string
		unset func(*invoke.Call)
	}{
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

func missingVariable(t *trial) error {
	c, err := t.container("c1")
	if err != nil {
		return err
	}
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		for _, v := range variables() {
			if verb == "DEL" && v.name == "CNI_NETNS" {
				continue // which it does without
			}
			a, err := t.do(verb, c, env(v.unset))
			if err != nil {
				return err
			}
			if a.code() != spec.CodeEnvironment || !a.names(v.name) {
				return differs("error code 4 that names "+v.name, "%s", a)
			}
		}
	}
	return nil
}

func missingVariables(t *trial) error {
	c, err := t.container("c1")
	if err != nil {
		return err
	}
	a, err := t.do("ADD", c, env(func(call *invoke.Call) {
		for _, v := range variables() {
			v.unset(call)
		}
	}))
	if err != nil {
		return err
	}
	for _, v := range variables() {
		if a.code() != spec.CodeEnvironment || !a.names(v.name) {
			return differs("error code 4 that names CNI_CONTAINERID, CNI_IFNAME and CNI_NETNS", "%s", a)
		}
	}
	return nil
}

func unknownCommand(t *trial) error {
	c, err := t.container("c1")
	if err != nil {
		return err
	}
	a, err := t.do("REPLACE", c)
	if err == nil && a.code() != spec.CodeEnvironment {
		err = differs("error code 4", "%s", a)
	}
	return err
}

// refused calls ADD with each value of a variable, which must be error code 4, and change nothing.
func (t *trial) refused(variable string, set func(*invoke.Call, string), values ...string) error {
	c, err := t.container("c1")
	if err != nil {
		return err
	}
	before, err := t.state(c)
	if err != nil {
		return err
	}
	for _, value := range values {
		a, err := t.do("ADD", c, env(func(call *invoke.Call) { set(call, value) }))
		if err != nil {
			return err
		}
		if a.code() != spec.CodeEnvironment {
			return differs("error code 4 for "+variable+" "+quoted(value), "%s", a)
		}
	}
	return t.unchanged("an ADD that is refused", before, c)
}

func badContainerID(t *trial) error {
	set := func(c *invoke.Call, id string) { c.ContainerID = id }
	return t.refused("CNI_CONTAINERID", set, "../c1", "-c1", "c 1", "c1/x")
}

func badIfName(t *trial) error {
	set := func(c *invoke.Call, name string) { c.IfName = name }
	return t.refused("CNI_IFNAME", set, strings.Repeat("e", 16), ".", "..", "a/b", "a:b", "a b")
}

func ignoredArgs(t *trial) error {
	c, err := t.container("c1")
	if err != nil {
		return err
	}
	_, err = t.add(c, env(func(call *invoke.Call) {
		call.Args = "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web"
	}))
	return err
}
