package rpc

import (
	"bytes"
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

// A wireType describes a type in a stream: one of its fields is set. The types that it consists of are encoding/gob's.
type wireType struct {
	ArrayT  *struct{}
	SliceT  *sliceType
	StructT *structType
}

type sliceType struct {
	CommonType commonType
	Elem       int
}

type structType struct {
	CommonType commonType
	Field      []field
}

type commonType struct {
	Name string
	Id   int
}

type field struct {
	Name string
	Id   int
}

// An encoder writes values as encoding/gob does: it describes each type before the first value of that type. It knows
// the kinds of types that the messages of this package consist of.
type encoder struct {
	w   io.Writer
	ids map[reflect.Type]int
}

func newEncoder(w io.Writer) *encoder { return &encoder{w, map[reflect.Type]int{}} }

// encode writes the struct v, or the struct that v points to, by one write.
func (e *encoder) encode(v any) error {
	rv := reflect.Indirect(reflect.ValueOf(v))
	var out bytes.Buffer
	id := e.id(rv.Type(), &out)

	body := appendValue(appendInt(nil, id), rv)
	if len(body) > maxMessage {
		return spec.Errorf(spec.CodeConfig,
			"configuration and CNI_ARGS have %d bytes: the DHCP daemon takes at most %d", len(body), maxMessage)
	}
	message(&out, body)
	_, err := e.w.Write(out.Bytes())
	return err
}

func message(out *bytes.Buffer, body []byte) {
	out.Write(appendUint(nil, uint64(len(body))))
	out.Write(body)
}

// id returns the number of a type. If the type is new, its description is written to out first.
func (e *encoder) id(t reflect.Type, out *bytes.Buffer) int {
	v := reflect.Zero(t)
	switch {
	case t.Kind() == reflect.Pointer:
		return e.id(t.Elem(), out)
	case t.Kind() == reflect.Bool:
		return idBool
	case v.CanInt():
		return idInt
	case v.CanUint():
		return idUint
	case t.Kind() == reflect.String:
		return idString
	case t == reflect.TypeFor[[]byte]():
		return idBytes
	}
	if id, ok := e.ids[t]; ok {
		return id
	}
	id := idFirst + len(e.ids)
	e.ids[t] = id

	var parts bytes.Buffer
	var w wireType
	common := commonType{t.Name(), id}
	if t.Kind() == reflect.Slice {
		w.SliceT = &sliceType{common, e.id(t.Elem(), &parts)}
	} else {
		w.StructT = &structType{CommonType: common}
		for f := range t.Fields() {
			w.StructT.Field = append(w.StructT.Field, field{f.Name, e.id(f.Type, &parts)})
		}
	}
	message(out, appendValue(appendInt(nil, -id), reflect.ValueOf(w)))
	out.Write(parts.Bytes())
	return id
}

func appendValue(b []byte, v reflect.Value) []byte {
	v = reflect.Indirect(v)
	switch {
	case v.Kind() == reflect.Bool && v.Bool():
		return append(b, 1)
	case v.Kind() == reflect.Bool:
		return append(b, 0)
	case v.CanInt():
		return appendInt(b, int(v.Int()))
	case v.CanUint():
		return appendUint(b, v.Uint())
	case v.Kind() == reflect.String:
		return append(appendUint(b, uint64(v.Len())), v.String()...)
	case v.Type() == reflect.TypeFor[[]byte]():
		return append(appendUint(b, uint64(v.Len())), v.Bytes()...)
	case v.Kind() == reflect.Slice:
		b = appendUint(b, uint64(v.Len()))
		for i := range v.Len() {
			b = appendValue(b, v.Index(i))
		}
		return b
	}
	last := -1
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() == reflect.Pointer && !f.IsNil() {
			f = f.Elem()
		}
		zero := f.Kind() != reflect.Struct && f.IsZero() || f.Kind() == reflect.Slice && f.Len() == 0
		if !zero { // what is zero is left out, behind a pointer too
			b = appendValue(appendUint(b, uint64(i-last)), f)
			last = i
		}
	}
	return append(b, 0)
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

func appendInt(b []byte, v int) []byte {
	if v < 0 {
		return appendUint(b, uint64(^v)<<1|1)
	}
	return appendUint(b, uint64(v)<<1)
}
