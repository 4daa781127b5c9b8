package attach

import (
	"encoding/json"
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
)

// request is what a plugin reads on stdin: its configuration as it was written, without what is the
// runtime's to say (clauses C9, R7), and with what the runtime says.
func (op *operation) request(verb string, conf *spec.Conf, prev *spec.Result) ([]byte, error) {
	o := conf.Object
	for _, key := range o.Keys() {
		// Plugins match keys in any case, as the reference's do.
		switch strings.ToLower(key) {
		case "name", "cniversion", "capabilities", "runtimeconfig", "prevresult", validKey, attachmentsKey:
			o.Delete(key)
		case "args":
			if op.a.CNI != nil {
				o.Delete(key)
			}
		}
	}
	set := func(key string, value any) error { return o.Set(key, value) }
	if err := set("cniVersion", op.version); err != nil {
		return nil, err
	}
	if err := set("name", op.l.Name); err != nil {
		return nil, err
	}
	if config := op.runtimeConfig(conf); len(config) > 0 {
		if err := set("runtimeConfig", config); err != nil {
			return nil, err
		}
	}
	if op.a.CNI != nil {
		if err := set("args", map[string]any{"cni": op.a.CNI}); err != nil {
			return nil, err
		}
	}
	if prev != nil {
		b, err := prev.Encode(op.version)
		if err == nil {
			err = set("prevResult", json.RawMessage(b))
		}
		if err != nil && verb != "DEL" { // DEL has to go on without it
			return nil, err
		}
	}
	if verb == "GC" {
		// The specification's key, and the one that the reference library used first.
		for _, key := range []string{validKey, attachmentsKey} {
			if err := set(key, op.valid); err != nil {
				return nil, err
			}
		}
	}
	return o.MarshalJSON()
}

const (
	validKey       = "cni.dev/valid-attachments"
	attachmentsKey = "cni.dev/attachments"
)

// runtimeConfig is what the plugin declares and the caller offers, and nothing else.
func (op *operation) runtimeConfig(conf *spec.Conf) map[string]any {
	config := map[string]any{}
	for name, declared := range conf.Capabilities {
		if value, offered := op.a.Capabilities[name]; declared && offered {
			config[name] = value
		}
	}
	return config
}
