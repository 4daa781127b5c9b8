package explain

import (
	"github.com/fairlead-cni/fairlead/internal/calls"
)

// explainedSettings returns the settings of a node.
func explainedSettings() []explained {
	const value = "words separated by commas"
	keys := []ReferenceKey{{Path: calls.Key, Value: value,
		Doc: "Which calls are logged, and where. off logs no call (the " +
			"default), errors the calls that fail, all every call. journald logs to the journal, file to " +
			calls.File +
			", and a path to that file; by default calls go to the journal if journald runs, else to the file. A " +
			"size such as 64M is the maximum of the file and its predecessor together; default 20M. Example: " +
			"\"errors,file,64M\"."}}
	keys = append(keys, ReferenceKey{Path: calls.CommandsKey, Value: "true or false",
		Doc: "Whether network configurations may execute programs and write any file as root: command, the hooks, " +
			"and cniOutput other than /var/log/cni-NAME of the plugin debug. Without true, ADD and STATUS of a " +
			"configuration that has them fail. Default: false."})
	return []explained{
		{Name: calls.Settings, Text: "the settings of Fairlead's plugins on this node, a JSON object",
			More: "The file may be absent. A change takes effect with the next call. docs/log.md has more on the log.",
			Keys: keys},
		{Name: calls.Variable, Value: value, Text: "the key " + calls.Key + " of " + calls.Settings +
			", as a variable in the " +
			"environment of the runtime, which the plugins inherit. The variable takes precedence over the file."},
	}
}
