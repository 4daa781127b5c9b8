package docgen

import (
	"encoding/json"
	"maps"

	"github.com/fairlead-cni/fairlead/internal/wants"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

type object = map[string]any

// An empty text is the default everywhere, so that a pattern has to let it pass.
const (
	octet   = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`
	ipv4    = octet + `(\.` + octet + `){3}`
	ipv6    = `[0-9a-fA-F:]*:[0-9a-fA-F:]*(:` + ipv4 + `)?`
	mac     = `[0-9a-fA-F][02468aceACE]([:-][0-9a-fA-F]{2}){5}|[0-9a-fA-F][02468aceACE][0-9a-fA-F]{2}(\.[0-9a-fA-F]{4}){2}`
	ifname  = `[^/:%\s]{1,15}`
	vlanID  = `(409[0-4]|40[0-8][0-9]|[1-3][0-9]{3}|[1-9][0-9]{0,2})`
	elapses = `[+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)`

	addressPattern = "^(" + ipv4 + "|" + ipv6 + ")?$"
	prefixPattern  = "^(" + ipv4 + "/(3[0-2]|[12]?[0-9])|" + ipv6 + "/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?$"
)

func matches(pattern string) object { return object{"type": "string", "pattern": pattern} }

// schemaFile is the JSON Schema of a plugin's whole configuration, as it stands in the "plugins" of a list
// or comes on stdin. A key that the plugin does not know is refused: the plugin only warns of it.
func schemaFile(p sdk.Plugin, fields []field) ([]byte, error) {
	props := closed(fields)["properties"].(object)
	for key, s := range everybodys() {
		if props[key] == nil {
			props[key] = s
		}
	}
	props["type"] = object{"const": p.Name}
	doc := object{
		"$schema":              "https://json-schema.org/draft/2020-12/schema",
		"title":                p.Name,
		"description":          p.Synopsis,
		"type":                 "object",
		"properties":           props,
		"patternProperties":    object{`^cni\.dev/`: object{}},
		"additionalProperties": false,
		"required":             append([]any{"type"}, lacking(fields)...),
	}
	switch {
	case p.Allocates():
		// An allocator's own part is "ipam"; at the top stands the plugin that asked it, with keys of its own.
		props["type"] = object{"type": "string"}
		ipam := props["ipam"].(object)
		ipam["properties"].(object)["type"] = object{"const": p.Name}
		delete(doc, "additionalProperties")
		doc["required"] = []any{"type", "ipam"}
	case p.Chains():
		props["plugins"].(object)["minItems"] = 1
		props["plugins"].(object)["items"] = object{"$ref": "list.schema.json#/$defs/plugin"}
		doc["required"] = []any{"type", "plugins"}
	case !p.Chained():
		props["ipam"] = ipamSchema()
	}
	return marshal(doc)
}

func marshal(doc object) ([]byte, error) {
	b, err := json.MarshalIndent(doc, "", "  ")
	return append(b, '\n'), err
}

// ipamSchema is that of "ipam" in a plugin that makes links: an allocator of ours has keys of its own, another may
// have any, and what names none is empty.
func ipamSchema() object {
	var makers []any
	var rules []any
	for _, p := range plugin.All() {
		if !p.Allocates() {
			makers = append(makers, p.Name)
			continue
		}
		rules = append(rules, ifType(p.Name, object{"$ref": p.Name + ".schema.json#/properties/ipam"}))
	}
	return object{
		"type":       "object",
		"properties": object{"type": object{"type": "string", "not": object{"enum": makers}}},
		"anyOf":      []any{object{"required": []any{"type"}}, object{"maxProperties": 0}},
		"allOf":      rules,
	}
}

// ifType is a rule for what has a type.
func ifType(name string, then object) object {
	is := object{"properties": object{"type": object{"const": name}}, "required": []any{"type"}}
	return object{"if": is, "then": then}
}

// listSchema is the JSON Schema of a whole list. A plugin of ours is held to its own schema, another may have any keys.
func listSchema() ([]byte, error) {
	var rules, chained, givers []any
	for _, p := range plugin.All() {
		if p.Allocates() {
			givers = append(givers, p.Name)
			continue
		}
		rules = append(rules, ifType(p.Name, object{"$ref": p.Name + ".schema.json"}))
		if p.Chained() {
			chained = append(chained, p.Name)
		}
	}
	flag := []any{object{"type": "boolean"}, matches("^([tT][rR][uU][eE]|[fF][aA][lL][sS][eE])?$")}
	all := everybodys()
	return marshal(object{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"title":       "network configuration list",
		"description": "a network: its plugins in order",
		"type":        "object",
		"properties": object{
			"cniVersion":             describedKey("cniVersion", all["cniVersion"].(object)),
			"cniVersions":            describedKey("cniVersions", all["cniVersions"].(object)),
			"name":                   describedKey("name", all["name"].(object)),
			"disableCheck":           describedKey("disableCheck", object{"anyOf": flag}),
			"disableGC":              describedKey("disableGC", object{"anyOf": flag}),
			"loadOnlyInlinedPlugins": describedKey("loadOnlyInlinedPlugins", object{"anyOf": flag}),
			"plugins": describedKey("plugins", object{
				"type": "array", "minItems": 1, "items": object{"$ref": "#/$defs/plugin"},
				"prefixItems": []any{object{
					"description": "the first plugin has nothing that it could add to",
					"allOf": []any{
						object{"$ref": "#/$defs/plugin"},
						object{"properties": object{"type": object{"not": object{"enum": chained}}}},
					},
				}},
			}),
		},
		"required": []any{"name"},
		"if": object{
			"properties": object{"loadOnlyInlinedPlugins": object{"const": true}},
			"required":   []any{"loadOnlyInlinedPlugins"},
		},
		"then": object{"required": []any{"plugins"}},
		"$defs": object{"plugin": object{
			"type": "object",
			"properties": object{
				"type": describedKey("plugins[].type",
					object{"type": "string", "pattern": `^[^/\\]+$`, "not": object{"enum": givers}}),
				"capabilities": describedKey("plugins[].capabilities", all["capabilities"].(object)),
			},
			"required": []any{"type"},
			"allOf":    rules,
		}},
	})
}

// describedKey gives a schema the description that the list's key at path has.
func describedKey(path string, schema object) object {
	for _, k := range listReference().Keys {
		if k.Path == path {
			schema["description"] = k.Doc
		}
	}
	return schema
}

// everybodys are the keys that every plugin reads, or that stand beside what it reads in a single configuration.
func everybodys() object {
	var versions []any
	for _, v := range spec.Versions() {
		versions = append(versions, v)
	}
	words := object{"type": "array", "items": object{"type": "string"}}
	return object{
		"cniVersion":  object{"enum": versions},
		"cniVersions": object{"type": "array", "items": matches(`^[0-9]+\.[0-9]+\.[0-9]+`)},
		"name":        matches("^[a-zA-Z0-9][a-zA-Z0-9_.-]*$"),
		"ipam":        object{"type": "object", "properties": object{"type": object{"type": "string"}}},
		"dns": object{"type": "object", "properties": object{
			"nameservers": words, "domain": object{"type": "string"}, "search": words, "options": words}},
		"args":         object{"type": "object"},
		"capabilities": object{"type": "object", "additionalProperties": object{"type": "boolean"}},
		"strict":       object{"type": "boolean", "description": "refuse unknown keys instead of warning of them"},
		"prevResult":   object{"type": "object"},

		"runtimeConfig": object{"type": "object"},
		"disableCheck":  object{}, "disableGC": object{}, "ipMasq": object{},
	}
}

// closed is the schema of an object with these keys and no others. What a runtime or a pod's owner writes for several
// plugins has others, too.
func closed(fields []field) object {
	props := object{}
	for _, f := range fields {
		s := schemaOf(f.shape)
		if f.want.Some() {
			s = narrowed(s, f.want)
		}
		if f.key == "args" || f.key == "runtimeConfig" {
			delete(s, "additionalProperties")
			if cni, ok := s["properties"].(object)["cni"].(object); ok {
				delete(cni, "additionalProperties")
			}
		}
		if f.doc != "" {
			s["description"] = f.doc
		}
		props[f.key] = s
	}
	out := object{"type": "object", "properties": props, "additionalProperties": false}
	if required := lacking(fields); required != nil {
		out["required"] = required
	}
	return out
}

// lacking are the keys that have to be there.
func lacking(fields []field) (keys []any) {
	for _, f := range fields {
		if f.want.Lacks != "" {
			keys = append(keys, f.key)
		}
	}
	return keys
}

// narrowed is a schema that takes no more than a field wants.
func narrowed(s object, w wants.Want) object {
	if s["type"] == "array" {
		s["items"] = narrowed(s["items"].(object), w)
		return s
	}
	var ways []any
	for _, r := range w.Ranges {
		if r[0] == r[1] {
			ways = append(ways, object{"const": r[0]})
		} else {
			ways = append(ways, object{"type": "integer", "minimum": r[0], "maximum": r[1]})
		}
	}
	if w.Pattern != "" {
		ways = append(ways, matches("^$|"+w.Pattern))
	}
	for _, format := range w.Formats {
		ways = append(ways, map[string]object{
			"mac": {"type": "string", "pattern": "^(" + mac + ")?$", "not": object{"const": "00:00:00:00:00:00"}},
			"ifname": {"type": "string", "pattern": "^(" + ifname + ")?$",
				"not": object{"enum": []any{".", "..", "all", "default"}}},
			"address": matches(addressPattern),
			"subnet":  matches(prefixPattern),
		}[format])
	}
	if len(w.Words) > 0 {
		words := []any{""}
		for _, word := range w.Words {
			words = append(words, word)
		}
		ways = append(ways, object{"enum": words})
	}
	if len(ways) == 1 {
		return maps.Clone(ways[0].(object))
	}
	return object{"anyOf": ways}
}

func schemaOf(s shape) object {
	out := object{}
	switch {
	case s.schema != nil:
		return maps.Clone(s.schema)
	case s.kind == "array":
		out["type"], out["items"] = "array", schemaOf(*s.elem)
		if s.elem.kind == "array" { // a list of lists has no empty one
			out["items"].(object)["minItems"] = 1
		}
	case s.kind == "object" && s.elem != nil:
		out["type"], out["additionalProperties"] = "object", schemaOf(*s.elem)
	case s.kind == "object":
		return closed(s.fields)
	case s.kind != "":
		out["type"] = s.kind
	}
	if s.most > 0 {
		out["minimum"], out["maximum"] = 0, s.most
	}
	if len(s.enum) > 0 {
		values := []any{""}
		for _, v := range s.enum {
			values = append(values, v)
		}
		out["enum"] = values
	}
	return out
}
