package sdk

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/spelling"
	"github.com/fairlead-cni/fairlead/internal/wants"
	"github.com/fairlead-cni/fairlead/spec"
)

// A decoder fills a configuration struct and records the unknown keys. It behaves like encoding/json, except that its
// errors contain the path of the value: keys match in any case, null leaves the default, and the last of two equal keys
// counts.
type decoder struct {
	unknown []unknownKey
	top     string // the top-level key that is being read
	lax     bool   // pass over values that cannot be read
}

type unknownKey struct {
	top   string          // "ipam"
	path  string          // "ipam.ranges[0][1].subnte"
	key   string          // "subnte"
	value json.RawMessage // as it was written
	know  []string        // what would have been understood there
	lacks string          // the key without which what is there is not read
	more  int             // no key, but how many more there are
}

// mostUnknown limits how many unknown keys are reported. The owner of a pod can write parts of a configuration, and
// each unknown key is a line in the runtime's log.
const mostUnknown = 20

func (u unknownKey) String() string {
	if u.more > 0 {
		return fmt.Sprintf("and %d more unknown keys", u.more)
	}
	if u.lacks != "" {
		return fmt.Sprintf("%s: %s: has no %q, so it is not read", u.path, shown(u.value), u.lacks) + u.near(", ")
	}
	return "unknown key " + shown([]byte(strconv.Quote(u.path))) + u.near(", ")
}

// refused returns the error for an unknown key in a configuration with "strict": true.
func (u unknownKey) refused() error {
	if u.more > 0 {
		return errors.New(u.String())
	}
	if u.lacks != "" {
		return spec.Errorf(spec.CodeUnsupported, "%v; and \"strict\" is set", u)
	}
	return spec.Errorf(spec.CodeUnsupported, "%s: %s: unknown key, and \"strict\" is set%s", shown([]byte(u.path)),
		shown(u.value), u.near("; "))
}

func (u unknownKey) near(before string) string {
	near, ok := spelling.Nearest(u.key, u.know)
	if !ok {
		return ""
	}
	return before + "did you mean " + strconv.Quote(near) + "?"
}

// fieldError returns an error with code, path and value.
func fieldError(code spec.Code, path string, raw json.RawMessage, format string, args ...any) error {
	if path == "" {
		path = "configuration"
	}
	return spec.Errorf(code, "%s: %s: %w", path, shown(raw), fmt.Errorf(format, args...))
}

// shown returns a value in a form short enough for an error message.
func shown(raw json.RawMessage) string {
	val := strings.Join(strings.Fields(string(raw[:min(len(raw), 4096)])), " ")
	if len(val) > 80 {
		val = val[:77] + "..."
	}
	return val
}

func (d *decoder) value(path string, raw json.RawMessage, v reflect.Value) error {
	if string(raw) == "null" {
		return nil
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return d.value(path, raw, v.Elem())
	}
	switch p := v.Addr().Interface().(type) {
	case json.Unmarshaler:
		if err := p.UnmarshalJSON(raw); err != nil {
			return fieldError(spec.CodeConfig, path, raw, "%w", err)
		}
		return nil
	case encoding.TextUnmarshaler:
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return fieldError(spec.CodeDecode, path, raw, "want a string")
		}
		if s == "" {
			return nil // an empty string is the default everywhere
		}
		if err := p.UnmarshalText([]byte(s)); err != nil {
			switch p.(type) {
			case *netip.Prefix:
				err = errors.New("want a prefix, such as 192.0.2.0/24 or 2001:db8::/32")
			case *netip.Addr:
				err = errors.New("want an address, such as 192.0.2.1 or 2001:db8::1")
			}
			return fieldError(spec.CodeConfig, path, raw, "%w", err)
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Struct:
		return d.object(path, raw, v)
	case reflect.Slice:
		return d.list(path, raw, v)
	case reflect.Map:
		return d.table(path, raw, v)
	}
	if json.Unmarshal(raw, v.Addr().Interface()) != nil {
		return fieldError(spec.CodeDecode, path, raw, "want %s", kindName(v.Type()))
	}
	return nil
}

// list decodes a list into the slice v.
func (d *decoder) list(path string, raw json.RawMessage, v reflect.Value) error {
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		return fieldError(spec.CodeDecode, path, raw, "want a list")
	}
	s := reflect.MakeSlice(v.Type(), len(items), len(items))
	for i, item := range items {
		if err := d.value(path+"["+strconv.Itoa(i)+"]", item, s.Index(i)); err != nil {
			return err
		}
	}
	v.Set(s)
	return nil
}

// table decodes an object into the map v.
func (d *decoder) table(path string, raw json.RawMessage, v reflect.Value) error {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return fieldError(spec.CodeDecode, path, raw, "want an object")
	}
	m := reflect.MakeMapWithSize(v.Type(), len(members))
	for _, k := range sorted(members) {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(join(path, k), members[k], e); err != nil {
			return err
		}
		m.SetMapIndex(reflect.ValueOf(k), e)
	}
	v.Set(m)
	return nil
}

func (d *decoder) object(path string, raw json.RawMessage, v reflect.Value) error {
	o, err := spec.ParseObject(raw)
	if err != nil {
		return fieldError(spec.CodeDecode, path, raw, "want an object")
	}
	return d.members(path, o, v)
}

// members fills a struct from the members of an object. It visits them in the order of their names, so that the same
// one of several bad values is reported each time.
func (d *decoder) members(path string, o spec.Object, v reflect.Value) error {
	fields, values := collect(v, nil), maps.Collect(o.All())
	var know []string
	for _, k := range sorted(values) {
		if path == "" {
			d.top = k
		}
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == k })
		if i < 0 {
			i = slices.IndexFunc(fields, func(f field) bool { return strings.EqualFold(f.key, k) })
			if i >= 0 && values[fields[i].key] != nil {
				continue // the exact spelling is there too, and preferred
			}
		}
		raw := values[k]
		if i < 0 {
			if know == nil {
				for _, f := range fields {
					know = append(know, f.key)
				}
				slices.Sort(know)
				if path == "" {
					know = append(know, "capabilities", "ipam", "dns")
				}
			}
			d.unknown = append(d.unknown, unknownKey{top: d.top, path: join(path, k), key: k, value: raw, know: know})
			continue
		}
		err := d.value(join(path, k), raw, fields[i].Value)
		if err == nil && !d.lax {
			err = wants.Of(fields[i].tag).Check(join(path, k), raw)
		}
		if err != nil && !d.lax {
			return err
		}
		if text := string(raw); text != "null" && text != `""` {
			fields[i].there = true
		}
	}
	for _, f := range fields {
		if lacks := f.tag.Get("lacks"); lacks != "" && !f.there && !d.lax {
			return spec.Errorf(spec.CodeConfig, "%s: is missing: want %s", join(path, f.key), lacks)
		}
	}
	return nil
}

// A field is a field of a configuration struct with its key.
type field struct {
	key   string
	tag   reflect.StructTag
	there bool
	reflect.Value
}

// collect lists the fields of a struct, including those of embedded structs. If two have the same key, the later one
// counts.
func collect(v reflect.Value, fields []field) []field {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			fields = collect(v.Field(i), fields)
		case name != "" && name != "-":
			fields = slices.DeleteFunc(fields, func(h field) bool { return h.key == name })
			fields = append(fields, field{key: name, tag: f.Tag, Value: v.Field(i)})
		}
	}
	return fields
}

// sorted returns the keys of m in order, so that the same one of several bad values is reported each time.
func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0 to " + strconv.FormatUint(1<<t.Bits()-1, 10)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	}
	return "a " + t.Kind().String()
}

// everybodys reports whether a top-level key is defined by the specification or the runtime, so that configuration
// structs need not list it.
func everybodys(key string) bool {
	switch strings.ToLower(key) {
	case "cniversion", "cniversions", "name", "type", "args", "capabilities", "runtimeconfig", "prevresult",
		"ipam", "dns", "strict", "disablecheck", "disablegc", "ipmasq":
		return true
	}
	return strings.HasPrefix(key, "cni.dev/")
}

// decode fills into from the configuration of a plugin and returns the unknown keys in the part that the plugin owns.
// An interface plugin owns everything but "ipam", an allocator only "ipam"; of runtimeConfig a plugin owns the
// capabilities that it reads. In DEL and GC, a value that cannot be decoded counts as absent (clause P12).
func decode(conf *spec.Conf, into any, allocator bool, verb string) ([]unknownKey, error) {
	d := decoder{lax: removes(verb)}
	v := reflect.ValueOf(into).Elem()
	wrong := d.members("", conf.Object, v)
	if wrong != nil { // it has stopped there, and a misspelt key may stand behind
		d = decoder{lax: true}
		_ = d.members("", conf.Object, reflect.New(v.Type()).Elem())
	}
	var own []unknownKey
	for _, u := range d.unknown {
		switch {
		case allocator && strings.EqualFold(u.top, "ipam") && u.path != u.top,
			!allocator && !everybodys(u.top),
			offered(u):
			own = append(own, u)
		}
	}
	if more := len(own) - mostUnknown; more > 0 {
		own = append(own[:mostUnknown], unknownKey{more: more})
	}
	return own, wrong
}

// unread returns the unknown keys of "ipam" for a plugin that calls no IPAM plugin: all of them, if no type is named.
func (p Plugin) unread(conf *spec.Conf) []unknownKey {
	if p.role != makesLinks || p.addresses(conf) {
		return nil
	}
	raw, ok := conf.Object.Get("ipam")
	var ipam map[string]json.RawMessage
	if !ok || json.Unmarshal(raw, &ipam) != nil || len(ipam) == 0 {
		return nil
	}
	u := unknownKey{top: "ipam", path: "ipam", key: "ipam", value: raw}
	if p.observe {
		return []unknownKey{u}
	}
	keys := sorted(ipam)
	if len(keys) == 1 && strings.EqualFold(keys[0], "type") { // an empty one, which is none
		return nil
	}
	u.know, u.lacks = []string{"type"}, "type"
	for _, k := range keys {
		if _, ok := spelling.Nearest(k, u.know); ok && !strings.EqualFold(k, "type") {
			u.path, u.key, u.value, u.lacks = "ipam."+k, k, ipam[k], ""
		}
	}
	return []unknownKey{u}
}

// offered reports whether an unknown key is inside a capability that the plugin reads, so that it was meant for this
// plugin. A misspelt allowFrom, for example, would leave a port open to all hosts. Other capabilities belong to other
// plugins.
func offered(u unknownKey) bool {
	return strings.EqualFold(u.top, "runtimeConfig") && u.path != u.top && u.path != join(u.top, u.key)
}
