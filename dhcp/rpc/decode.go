package rpc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/fairlead-cni/fairlead/spec"
)

// Bounds on what is read from a socket that anybody may write to who can open it.
const (
	maxMessage  = spec.MaxFile + 1<<20 // a configuration as long as plugins take one, with room beside it for CNI_ARGS
	maxValues   = 32 << 10             // of a message; each costs many times its bytes here
	maxDescribe = 256 << 10            // bytes of descriptions of types, which stay as long as the connection
	maxTypes    = 1000
	maxDepth    = 32
)

var errMalformed = errors.New("malformed gob")

// A wire is a type as described in a stream.
type wire struct {
	kind   wireKind
	elem   int
	key    int
	fields []field
}

type wireKind int

const (
	wireStruct wireKind = iota + 1
	wireSlice
	wireArray
	wireMap
	wireOpaque // which writes bytes of its own
)

type field struct {
	name string
	id   int
}

// The ids, here, of the types that descriptions of types are made of.
const (
	idWire = -1 - iota
	idArray
	idCommon
	idSlice
	idStruct
	idField
	idFields
	idMap
	idOpaque
)

// descriptions returns the types that describe types.
func descriptions() map[int]wire {
	return map[int]wire{
		idWire: {kind: wireStruct, fields: []field{{"ArrayT", idArray}, {"SliceT", idSlice}, {"StructT", idStruct},
			{"MapT", idMap},
			{"GobEncoderT", idOpaque}, {"BinaryMarshalerT", idOpaque}, {"TextMarshalerT", idOpaque}}},
		idCommon: {kind: wireStruct, fields: []field{{"Name", idString}, {"Id", idInt}}},
		idArray:  {kind: wireStruct, fields: []field{{"CommonType", idCommon}, {"Elem", idInt}, {"Len", idInt}}},
		idSlice:  {kind: wireStruct, fields: []field{{"CommonType", idCommon}, {"Elem", idInt}}},
		idStruct: {kind: wireStruct, fields: []field{{"CommonType", idCommon}, {"Field", idFields}}},
		idField:  {kind: wireStruct, fields: []field{{"Name", idString}, {"Id", idInt}}},
		idFields: {kind: wireSlice, elem: idField},
		idMap:    {kind: wireStruct, fields: []field{{"CommonType", idCommon}, {"Key", idInt}, {"Elem", idInt}}},
		idOpaque: {kind: wireStruct, fields: []field{{"CommonType", idCommon}}},
	}
}

// A decoder reads values that encoding/gob wrote.
type decoder struct {
	r         *bufio.Reader
	types     map[int]wire
	left      int // values that the message may have yet
	described int // bytes
}

func newDecoder(r *bufio.Reader) *decoder { return &decoder{r: r, types: descriptions()} }

// value reads the next value. Structs become map[string]any, lists []any, numbers int64 or uint64.
func (d *decoder) value() (any, error) {
	for {
		n, err := d.length()
		if err != nil {
			return nil, err
		}
		b := &buffer{}
		if b.rest, err = d.take(n); err != nil {
			return nil, err
		}
		id, err := b.int()
		if err != nil {
			return nil, err
		}
		d.left = maxValues
		if id >= 0 {
			if _, ok := d.types[int(id)]; !ok || d.types[int(id)].kind != wireStruct {
				if zero, err := b.uint(); err != nil || zero != 0 { // before anything but a struct
					return nil, errMalformed
				}
			}
			return d.read(b, int(id), 0)
		}
		if d.described += n; d.described > maxDescribe {
			return nil, fmt.Errorf("%w: types are described in more than %d bytes", errMalformed, maxDescribe)
		}
		if err := d.describe(int(-id), b); err != nil {
			return nil, err
		}
	}
}

// take reads n bytes. It grows its memory as bytes arrive, because n comes from the other side.
func (d *decoder) take(n int) (b []byte, err error) {
	for have := 0; have < n && err == nil; have = len(b) {
		b = append(b, make([]byte, min(n-have, max(have, 4<<10)))...)
		if _, err = io.ReadFull(d.r, b[have:]); errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
	}
	return b, err
}

// length reads the length of the next message.
func (d *decoder) length() (int, error) {
	first, err := d.r.ReadByte()
	if err != nil {
		return 0, err
	}
	b := []byte{first}
	if n := -int(int8(first)); n > 0 {
		b = append(b, make([]byte, min(n, 8))...)
		if _, err := io.ReadFull(d.r, b[1:]); err != nil {
			return 0, err
		}
	}
	n, err := (&buffer{b}).uint()
	if err == nil && n > maxMessage {
		err = fmt.Errorf("a message of %d bytes: at most %d are taken", n, maxMessage)
	}
	return int(n), err
}

// describe reads the description of a type.
func (d *decoder) describe(id int, b *buffer) error {
	if id < idFirst-1 || len(d.types) > maxTypes {
		return errMalformed
	}
	tree, err := d.read(b, idWire, 0)
	if err != nil {
		return err
	}
	t, _ := tree.(map[string]any)
	num := func(m map[string]any, key string) int { v, _ := m[key].(int64); return int(v) }
	for name, v := range t {
		m, _ := v.(map[string]any)
		w := wire{elem: num(m, "Elem"), key: num(m, "Key")}
		switch name {
		case "ArrayT":
			w.kind = wireArray
		case "SliceT":
			w.kind = wireSlice
		case "MapT":
			w.kind = wireMap
		case "StructT":
			w.kind = wireStruct
			list, _ := m["Field"].([]any)
			for _, f := range list {
				fm, _ := f.(map[string]any)
				name, _ := fm["Name"].(string)
				w.fields = append(w.fields, field{name, num(fm, "Id")})
			}
		default:
			w.kind = wireOpaque
		}
		if w.elem < 0 || w.key < 0 {
			return errMalformed
		}
		for _, f := range w.fields {
			if f.id < 0 {
				return errMalformed
			}
		}
		d.types[id] = w
	}
	return nil
}

func (d *decoder) read(b *buffer, id, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errMalformed
	}
	if d.left--; d.left < 0 {
		return nil, fmt.Errorf("%w: a message of more than %d values", errMalformed, maxValues)
	}
	switch id {
	case idBool:
		v, err := b.uint()
		return v != 0, err
	case idInt:
		return wrap(b.int())
	case idUint, idFloat:
		return wrap(b.uint())
	case idBytes:
		return wrap(b.bytes())
	case idString:
		v, err := b.bytes()
		return string(v), err
	}
	t, ok := d.types[id]
	if !ok {
		return nil, fmt.Errorf("%w: no type %d", errMalformed, id)
	}
	switch t.kind {
	case wireOpaque:
		return wrap(b.bytes())
	case wireStruct:
		return d.fields(b, t, depth)
	}
	n, err := b.uint()
	if err != nil || n > uint64(len(b.rest)) { // an element has a byte at least
		return nil, errMalformed
	}
	list := []any{}
	for range n {
		if t.kind == wireMap { // nothing that is read here has one: it is passed over
			if _, err := d.read(b, t.key, depth+1); err != nil {
				return nil, err
			}
		}
		v, err := d.read(b, t.elem, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// fields reads a structure: of each field that is there, how many were passed over, and its value.
func (d *decoder) fields(b *buffer, t wire, depth int) (any, error) {
	m := map[string]any{}
	for i := -1; ; {
		step, err := b.uint()
		if err != nil {
			return nil, err
		}
		if step == 0 {
			return m, nil
		}
		if step > uint64(len(t.fields)-1-i) {
			return nil, errMalformed
		}
		i += int(step)
		if m[t.fields[i].name], err = d.read(b, t.fields[i].id, depth+1); err != nil {
			return nil, err
		}
	}
}

func wrap[T any](v T, err error) (any, error) { return v, err }

// A buffer is the unread rest of a message.
type buffer struct{ rest []byte }

func (b *buffer) uint() (uint64, error) {
	if len(b.rest) == 0 {
		return 0, errMalformed
	}
	first := b.rest[0]
	b.rest = b.rest[1:]
	if first < 128 {
		return uint64(first), nil
	}
	n := -int(int8(first))
	if n > 8 || n > len(b.rest) {
		return 0, errMalformed
	}
	var v uint64
	for _, c := range b.rest[:n] {
		v = v<<8 | uint64(c)
	}
	b.rest = b.rest[n:]
	return v, nil
}

func (b *buffer) int() (int64, error) {
	u, err := b.uint()
	if u&1 != 0 {
		return ^int64(u >> 1), err
	}
	return int64(u >> 1), err
}

func (b *buffer) bytes() ([]byte, error) {
	n, err := b.uint()
	if err != nil || n > uint64(len(b.rest)) {
		return nil, errMalformed
	}
	v := b.rest[:n]
	b.rest = b.rest[n:]
	return v, nil
}

// fill copies decoded values into a Go value, structs by the names of their fields. Values that do not fit are ignored.
func fill(v reflect.Value, from any) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), from)
	case reflect.Struct:
		m, _ := from.(map[string]any)
		for i := range v.NumField() {
			if f, ok := m[v.Type().Field(i).Name]; ok {
				fill(v.Field(i), f)
			}
		}
	case reflect.Slice:
		if b, ok := from.([]byte); ok && v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(b)
		} else if list, ok := from.([]any); ok && v.Type().Elem().Kind() != reflect.Uint8 {
			v.Set(reflect.MakeSlice(v.Type(), len(list), len(list)))
			for i, e := range list {
				fill(v.Index(i), e)
			}
		}
	default:
		if from == nil {
			return
		}
		n, ok := from.(int64)
		if u, isUint := from.(uint64); isUint && u <= 1<<62 {
			n, ok = int64(u), true
		}
		switch {
		case v.CanInt() && ok && !v.OverflowInt(n):
			v.SetInt(n)
		case v.CanUint() && ok && n >= 0 && !v.OverflowUint(uint64(n)):
			v.SetUint(uint64(n))
		case reflect.TypeOf(from) == v.Type():
			v.Set(reflect.ValueOf(from))
		}
	}
}
