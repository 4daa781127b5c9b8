package rpc

import (
	"bytes"
	"fmt"
	"io"
	"math/bits"
	"reflect"

	"github.com/fairlead-cni/fairlead/spec"
)

// The ids of gob's own types.
const (
	idBool   = 1
	idInt    = 2
	idUint   = 3
	idFloat  = 4
	idBytes  = 5
	idString = 6
	idFirst  = 65 // of the types that a stream describes
)

// An encoder writes values as encoding/gob does: it describes each type before the first value of that type.
type encoder struct {
	w   io.Writer
	ids map[reflect.Type]int
}

func newEncoder(w io.Writer) *encoder { return &encoder{w, map[reflect.Type]int{}} }

// encode writes the struct v by one write.
func (e *encoder) encode(v any) error {
	rv := reflect.ValueOf(v)
	for rv.Kind() == reflect.Pointer {
		rv = rv.Elem()
	}
	var out bytes.Buffer
	id, err := e.id(rv.Type(), &out)
	if err != nil {
		return err
	}
	var body []byte
	body = appendInt(body, int64(id))
	if body, err = appendValue(body, rv); err != nil {
		return err
	}
	if len(body) > maxMessage {
		return spec.Errorf(spec.CodeConfig,
			"configuration and CNI_ARGS have %d bytes: the DHCP daemon takes at most %d", len(body), maxMessage)
	}
	message(&out, body)
	_, err = e.w.Write(out.Bytes())
	return err
}

func message(out *bytes.Buffer, body []byte) {
	out.Write(appendUint(nil, uint64(len(body))))
	out.Write(body)
}

// id returns the number of a type. If the type is new, its description is written to out first.
func (e *encoder) id(t reflect.Type, out *bytes.Buffer) (int, error) {
	switch t.Kind() {
	case reflect.Pointer:
		return e.id(t.Elem(), out)
	case reflect.Bool:
		return idBool, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return idInt, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return idUint, nil
	case reflect.String:
		return idString, nil
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return idBytes, nil
		}
	case reflect.Struct:
	default:
		return 0, fmt.Errorf("encode %v: no gob for it here", t)
	}
	if id, ok := e.ids[t]; ok {
		return id, nil
	}
	id := idFirst + len(e.ids)
	e.ids[t] = id
	// A wireType with one of its pointers set: 1 is SliceT, 2 is StructT, and both begin with a CommonType.
	b := appendInt(nil, -int64(id))
	common := func(b []byte) []byte {
		b = append(b, 1) // CommonType
		step := byte(1)
		if t.Name() != "" {
			b = appendString(append(b, step), t.Name())
		} else {
			step = 2
		}
		return append(appendInt(append(b, step), int64(id)), 0)
	}
	var nested bytes.Buffer
	if t.Kind() == reflect.Slice {
		elem, err := e.id(t.Elem(), &nested)
		if err != nil {
			return 0, err
		}
		b = appendInt(append(common(append(b, 2)), 1), int64(elem))
	} else {
		b = common(append(b, 3))
		if n := t.NumField(); n > 0 {
			b = appendUint(append(b, 1), uint64(n))
			for i := range n {
				f, err := e.id(t.Field(i).Type, &nested)
				if err != nil {
					return 0, err
				}
				b = appendString(append(b, 1), t.Field(i).Name)
				b = append(appendInt(append(b, 1), int64(f)), 0)
			}
		}
	}
	message(out, append(b, 0, 0))
	out.Write(nested.Bytes())
	return id, nil
}

func appendValue(b []byte, v reflect.Value) (_ []byte, err error) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil, fmt.Errorf("encode %v: gob has no nil in a list", v.Type())
		}
		return appendValue(b, v.Elem())
	case reflect.Bool:
		if v.Bool() {
			return append(b, 1), nil
		}
		return append(b, 0), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return appendInt(b, v.Int()), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return appendUint(b, v.Uint()), nil
	case reflect.String:
		return appendString(b, v.String()), nil
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return appendString(b, string(v.Bytes())), nil
		}
		b = appendUint(b, uint64(v.Len()))
		for i := range v.Len() {
			if b, err = appendValue(b, v.Index(i)); err != nil {
				return nil, err
			}
		}
		return b, nil
	case reflect.Struct:
		last := -1
		for i := range v.NumField() {
			f := v.Field(i)
			for f.Kind() == reflect.Pointer && !f.IsNil() {
				f = f.Elem()
			}
			if f.Kind() != reflect.Struct && f.IsZero() || f.Kind() == reflect.Slice && f.Len() == 0 {
				continue // what is zero is left out, behind a pointer too
			}
			if b, err = appendValue(appendUint(b, uint64(i-last)), f); err != nil {
				return nil, err
			}
			last = i
		}
		return append(b, 0), nil
	}
	return nil, fmt.Errorf("encode %v: no gob for it here", v.Type())
}

// appendUint writes a small number as one byte, and a larger one as the negated number of bytes and the bytes.
func appendUint(b []byte, v uint64) []byte {
	if v < 128 {
		return append(b, byte(v))
	}
	n := (bits.Len64(v) + 7) / 8
	b = append(b, byte(-n))
	for ; n > 0; n-- {
		b = append(b, byte(v>>(8*(n-1))))
	}
	return b
}

func appendInt(b []byte, v int64) []byte {
	if v < 0 {
		return appendUint(b, uint64(^v)<<1|1)
	}
	return appendUint(b, uint64(v)<<1)
}

func appendString(b []byte, s string) []byte {
	return append(appendUint(b, uint64(len(s))), s...)
}
