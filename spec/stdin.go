package spec

import (
	"encoding/json"
	"errors"
	"strings"
)

// A Given is what a runtime adds to a plugin's configuration on standard input.
type Given struct {
	Version Version // that the plugin is spoken to in
	Name    string  // of the network

	// Capabilities are what there is to be had, by name. A plugin gets those that its configuration declares (clause
	// R7).
	Capabilities map[string]any

	// Args replaces the `args` of the configuration (clause C9); nil leaves what stands there.
	Args any

	Prev  *Result
	Valid []Attachment // of GC
}

// Stdin returns the document for the plugin's standard input: its configuration as it was written, without the keys
// that belong to the runtime (clauses C9, R7), and with those of g.
func (g Given) Stdin(verb string, conf *Conf) ([]byte, error) {
	o := conf.Object
	for _, key := range o.Keys() {
		// Plugins match keys in any case, as the reference's do.
		switch strings.ToLower(key) {
		case "name", "cniversion", "capabilities", "runtimeconfig", "prevresult", keyValid, keyValidOld:
			o.Delete(key)
		case "args":
			if g.Args != nil {
				o.Delete(key)
			}
		}
	}
	failed := errors.Join(o.Set("cniVersion", g.Version), o.Set("name", g.Name))
	if config := g.runtimeConfig(conf); len(config) > 0 {
		failed = errors.Join(failed, o.Set("runtimeConfig", config))
	}
	if g.Args != nil {
		failed = errors.Join(failed, o.Set("args", g.Args))
	}
	if verb == "GC" { // the specification's key, and the one that the reference library used first
		failed = errors.Join(failed, o.Set(keyValid, g.Valid), o.Set(keyValidOld, g.Valid))
	}
	if g.Prev != nil {
		b, err := g.Prev.compact(g.Version)
		if err == nil {
			err = o.Set("prevResult", json.RawMessage(b))
		}
		if verb != "DEL" { // which has to go on without it
			failed = errors.Join(failed, err)
		}
	}
	if failed != nil {
		return nil, failed
	}
	return o.MarshalJSON()
}

// runtimeConfig returns the values of the capabilities that the plugin declares and the runtime has.
func (g Given) runtimeConfig(conf *Conf) map[string]any {
	config := map[string]any{}
	for name, declared := range conf.Capabilities {
		if value, offered := g.Capabilities[name]; declared && offered {
			config[name] = value
		}
	}
	return config
}
