package docgen

import "github.com/fairlead-cni/fairlead/internal/calls"

// settingsSchema is the JSON Schema of the node's settings, calls.Settings.
func settingsSchema() ([]byte, error) {
	const word = `(off|errors|all|journald|file|/[^,]*|[0-9]+[KMGkmg]?)`
	key := matches("^(" + word + "(, *" + word + ")*)?$")
	key["description"] = "which calls of plugins are written down (off, errors, all), where (journald, file, or a " +
		"path), and how many bytes files may take (20M), with commas between them"
	key["examples"] = []any{"all", "errors,journald", "all,file,64M"}
	commands := object{"type": "boolean", "description": "whether network configurations may execute programs and " +
		"write any file as root (command, hooks and cniOutput of the plugin debug)"}
	return marshal(object{
		"$schema":              "https://json-schema.org/draft/2020-12/schema",
		"title":                calls.Settings,
		"description":          "settings of fairlead's plugins on a node",
		"type":                 "object",
		"properties":           object{calls.Key: key, calls.CommandsKey: commands},
		"additionalProperties": false,
	})
}
