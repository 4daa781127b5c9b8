package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// An Object is a JSON object whose members keep their order and, until they are set, their bytes (clause C3). It is a
// value: setting a member of a copy does not change the original. Keys must match exactly.
type Object struct {
	whole  []byte // as it was parsed, until a member is set
	fields []field
}

type field struct {
	key      string
	spelling []byte // of the key, with its quotation marks
	val      json.RawMessage
}

// ParseObject reads a JSON object. The error is an *Error with code 6.
func ParseObject(b []byte) (Object, error) {
	d, err := openObject(b, "the document")
	if err != nil {
		return Object{}, err.asError()
	}
	return d.members(d.root), nil
}

// members returns n as an Object.
func (d *document) members(n node) Object {
	o := Object{whole: bytes.Clone(d.raw(n)), fields: make([]field, len(n.members))}
	at := func(from, to int) []byte { return o.whole[from-n.start : to-n.start : to-n.start] }
	for i, m := range n.members {
		o.fields[i] = field{m.key, at(m.at, m.end), at(m.node.start, m.node.end)}
	}
	return o
}

func (o Object) index(key string) int {
	for i := len(o.fields) - 1; i >= 0; i-- {
		if o.fields[i].key == key {
			return i
		}
	}
	return -1
}

// Get returns the value of key as it is written. If the key occurs several times, it is the last value.
func (o Object) Get(key string) (json.RawMessage, bool) {
	i := o.index(key)
	if i < 0 {
		return nil, false
	}
	return bytes.Clone(o.fields[i].val), true
}

// Set replaces the value of key in its place, or appends it. A json.RawMessage and an Object are stored unchanged; any
// other value is encoded as by json.Marshal, with <, > and & left alone. If encoding fails, Set changes nothing and
// returns the error.
//
// Most plugins match keys in any case and use the last of several. So a key that is followed by another spelling of
// itself is moved to the end, where plugins find it.
func (o *Object) Set(key string, value any) error {
	raw, err := rawValue(value)
	if err != nil {
		return fmt.Errorf("set %q: %w", key, err)
	}
	spelling, _ := encode(key) // a string can be encoded
	at := o.index(key)
	if at >= 0 && slices.ContainsFunc(o.fields[at+1:], func(f field) bool { return strings.EqualFold(f.key, key) }) {
		at = -1
	}
	var fields []field
	for i, f := range o.fields {
		switch {
		case i == at:
			fields = append(fields, field{key, f.spelling, raw})
		case f.key != key:
			fields = append(fields, f)
		}
	}
	if at < 0 {
		fields = append(fields, field{key, spelling, raw})
	}
	*o = Object{fields: fields}
	return nil
}

func rawValue(value any) (json.RawMessage, error) {
	switch v := value.(type) {
	case Object:
		return v.MarshalJSON()
	case json.RawMessage:
		n, err := parse(v)
		if err != nil {
			return nil, err
		}
		return bytes.Clone(v[n.start:n.end]), nil
	}
	return encode(value)
}

// Delete removes key.
func (o *Object) Delete(key string) {
	if o.index(key) < 0 {
		return
	}
	var fields []field
	for _, f := range o.fields {
		if f.key != key {
			fields = append(fields, f)
		}
	}
	*o = Object{fields: fields}
}

// Keys returns the keys in their order.
func (o Object) Keys() []string {
	var keys []string
	for key := range o.All() {
		keys = append(keys, key)
	}
	return keys
}

// All iterates over the keys in their order, each with its value as returned by Get. It takes time linear in their
// number. The values must not be changed.
func (o Object) All() iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		last := make(map[string]int, len(o.fields))
		for i, f := range o.fields {
			last[f.key] = i
		}
		for _, f := range o.fields {
			if i, first := last[f.key]; first {
				if delete(last, f.key); !yield(f.key, o.fields[i].val) {
					return
				}
			}
		}
	}
}

// MarshalJSON returns the object as it was written, or without white space between its members if one of them was set.
// json.Marshal strips white space from this result, and escapes <, > and &.
func (o Object) MarshalJSON() ([]byte, error) {
	if o.whole != nil {
		return bytes.Clone(o.whole), nil
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range o.fields {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(f.spelling)
		b.WriteByte(':')
		b.Write(f.val)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// UnmarshalJSON does the same as ParseObject.
func (o *Object) UnmarshalJSON(b []byte) (err error) {
	*o, err = ParseObject(b)
	return err
}
