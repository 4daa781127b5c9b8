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

	"github.com/fairlead-cni/fairlead/spec"
)

// A decoder fills a configuration struct and remembers the keys that no field wanted. It differs from
// encoding/json in its errors, which say the path down to the element, and in nothing else: keys match
// without regard to case, null leaves the default, the last of two equal keys wins.
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
	lacks string          // the key without which nobody reads what is there
	more  int             // no key, but how many more there are
}

// mostUnknown is how many unknown keys of a plugin's configuration are named. Parts of it a pod's owner may write, and
// each is a line of the runtime's log.
const mostUnknown = 20

func (u unknownKey) String() string {
	if u.more > 0 {
		return fmt.Sprintf("and %d more unknown keys", u.more)
	}
	if u.lacks != "" {
		return fmt.Sprintf("%s: %s: has no %q, so nobody reads it", u.path, shown(u.value), u.lacks) + u.near(", ")
	}
	return "unknown key " + shown([]byte(strconv.Quote(u.path))) + u.near(", ")
}

// refused is the error where "strict" is set.
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
	near, ok := spec.Nearest(u.key, u.know)
	if !ok {
		return ""
	}
	return before + "did you mean " + strconv.Quote(near) + "?"
}

// fieldError says what is wrong with one value.
func fieldError(code spec.Code, path string, raw json.RawMessage, format string, args ...any) error {
	if path == "" {
		path = "configuration"
	}
	return spec.Errorf(code, "%s: %s: %w", path, shown(raw), fmt.Errorf(format, args...))
}

// shown is a value in a line of moderate length.
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
	case reflect.Map:
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
	if json.Unmarshal(raw, v.Addr().Interface()) != nil {
		return fieldError(spec.CodeDecode, path, raw, "want %s", kindName(v.Type()))
	}
	return nil
}

func (d *decoder) object(path string, raw json.RawMessage, v reflect.Value) error {
	o, err := spec.ParseObject(raw)
	if err != nil {
		return fieldError(spec.CodeDecode, path, raw, "want an object")
	}
	return d.members(path, o, v)
}

// members fills a struct from an object's members, in the order of their names, so that of several bad values the same
// one is named every time.
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
			err = WantOf(fields[i].tag).check(join(path, k), raw)
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

// A field of a configuration struct, and its key.
type field struct {
	key   string
	tag   reflect.StructTag
	there bool
	reflect.Value
}

// collect lists a struct's fields, those of embedded structs included. Of two with one key it is the later one.
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

// sorted are m's keys in order, so that of several bad values the same one is named every time.
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

// everybodys reports whether a top-level key is one that the specification or the runtime defines, which
// no plugin's configuration struct has to list.
func everybodys(key string) bool {
	switch strings.ToLower(key) {
	case "cniversion", "cniversions", "name", "type", "args", "capabilities", "runtimeconfig", "prevresult",
		"ipam", "dns", "strict", "disablecheck", "disablegc", "ipmasq":
		return true
	}
	return strings.HasPrefix(key, "cni.dev/")
}

// decode fills into from a plugin's whole configuration and reports the unknown keys of the part that the plugin owns:
// all but "ipam" for an interface plugin, "ipam" alone for an allocator, and of runtimeConfig the inside of what it
// reads, also where a value is wrong. For DEL and GC, which work with less, a value that cannot be read is as good as
// absent (clause P12).
func decode(conf *spec.Conf, into any, allocator bool, verb string) ([]unknownKey, error) {
	d := decoder{lax: verb == "DEL" || verb == "GC"}
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

// unread is what p leaves of "ipam": all of it where it asks nobody for addresses, or does not say whom.
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
		if _, ok := spec.Nearest(k, u.know); ok && !strings.EqualFold(k, "type") {
			u.path, u.key, u.value, u.lacks = "ipam."+k, k, ipam[k], ""
		}
	}
	return []unknownKey{u}
}

// offered reports whether a key stands inside a capability that the plugin understands, so that it was meant for the
// plugin: a misspelt allowFrom would leave a port open. Other capabilities are other plugins'.
func offered(u unknownKey) bool {
	return strings.EqualFold(u.top, "runtimeConfig") && u.path != u.top && u.path != join(u.top, u.key)
}
