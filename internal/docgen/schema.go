package docgen

import (
	"encoding/json"

	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// schemaFile is the JSON Schema of a plugin's whole configuration, as it stands in the "plugins" of a list
// or comes on stdin. Unknown keys are allowed, as the specification has it.
func schemaFile(p sdk.Plugin, fields []field) ([]byte, error) {
	props := object(fields)["properties"].(map[string]any)
	for key, s := range everybodys() {
		if props[key] == nil {
			props[key] = s
		}
	}
	props["type"] = map[string]any{"const": p.Name}
	required := []string{"type"}
	if p.Allocates() {
		// An allocator's own part is "ipam"; at the top stands the plugin that asked it.
		props["type"] = map[string]any{"type": "string"}
		ipam := props["ipam"].(map[string]any)
		if inner, ok := ipam["properties"].(map[string]any); ok {
			inner["type"] = map[string]any{"const": p.Name}
		}
		required = append(required, "ipam")
	}
	b, err := json.MarshalIndent(map[string]any{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"title":       p.Name,
		"description": p.Synopsis,
		"type":        "object",
		"properties":  props,
		"required":    required,
	}, "", "  ")
	return append(b, '\n'), err
}

// everybodys are the keys that every plugin reads.
func everybodys() map[string]any {
	var versions []any
	for _, v := range spec.Versions() {
		versions = append(versions, v)
	}
	words := map[string]any{"type": "array", "items": map[string]any{"type": "string"}}
	return map[string]any{
		"cniVersion":   map[string]any{"enum": versions},
		"name":         map[string]any{"type": "string", "pattern": "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$"},
		"ipam":         map[string]any{"type": "object", "properties": map[string]any{"type": map[string]any{"type": "string"}}},
		"dns":          map[string]any{"type": "object", "properties": map[string]any{"nameservers": words, "domain": map[string]any{"type": "string"}, "search": words, "options": words}},
		"args":         map[string]any{"type": "object"},
		"capabilities": map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "boolean"}},
		"strict":       map[string]any{"type": "boolean", "description": "refuse unknown keys instead of warning of them"},
		"prevResult":   map[string]any{"type": "object"},
	}
}

func object(fields []field) map[string]any {
	props := map[string]any{}
	for _, f := range fields {
		s := schemaOf(f.shape)
		if f.doc != "" {
			s["description"] = f.doc
		}
		props[f.key] = s
	}
	return map[string]any{"type": "object", "properties": props}
}

func schemaOf(s shape) map[string]any {
	out := map[string]any{}
	switch {
	case s.schema != nil:
		for k, v := range s.schema {
			out[k] = v
		}
	case s.kind == "array":
		out["type"], out["items"] = "array", schemaOf(*s.elem)
	case s.kind == "object" && s.elem != nil:
		out["type"], out["additionalProperties"] = "object", schemaOf(*s.elem)
	case s.kind == "object":
		return object(s.fields)
	case s.kind != "":
		out["type"] = s.kind
	}
	if len(s.enum) > 0 {
		values := []any{""} // an empty string is the default everywhere
		for _, v := range s.enum {
			values = append(values, v)
		}
		out["enum"] = values
	}
	return out
}
