package spec

import (
	"encoding/json"
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
	if err := o.Set("cniVersion", g.Version); err != nil {
		return nil, err
	}
	if err := o.Set("name", g.Name); err != nil {
		return nil, err
	}
	if config := g.runtimeConfig(conf); len(config) > 0 {
		if err := o.Set("runtimeConfig", config); err != nil {
			return nil, err
		}
	}
	if g.Args != nil {
		if err := o.Set("args", g.Args); err != nil {
			return nil, err
		}
	}
	if g.Prev != nil {
		b, err := g.Prev.compact(g.Version)
		if err == nil {
			err = o.Set("prevResult", json.RawMessage(b))
		}
		if err != nil && verb != "DEL" { // DEL has to go on without it
			return nil, err
		}
	}
	if verb == "GC" {
		// The specification's key, and the one that the reference library used first.
		for _, key := range []string{keyValid, keyValidOld} {
			if err := o.Set(key, g.Valid); err != nil {
				return nil, err
			}
		}
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
