package rpc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
)

// Bounds on what is read from a socket that each program may write to that can open it.
const (
	maxMessage  = plainfile.MaxSize + 1<<20 // a configuration as long as plugins take one, with room for CNI_ARGS
	maxValues   = 32 << 10                  // of a message; each costs many times its bytes here
	maxDescribe = 256 << 10                 // bytes of descriptions of types, which stay as long as the connection
	maxTypes    = 1000
	maxDepth    = 32
)

var errMalformed = errors.New("malformed gob")

// A wire is a type as described in a stream.
type wire struct {
	kind   int    // the field of gob's wireType that describes it
	parts  [3]int // of a list, the type of its elements is the second one; of a map, those of its keys and values
	fields []field
}

// The kinds of types. What comes after maps writes bytes of its own.
const (
	wireArray = iota
	wireSlice
	wireStruct
	wireMap
)

// A decoder reads values that encoding/gob wrote.
type decoder struct {
	r         *bufio.Reader
	types     map[int]wire
	described int // bytes
}

func newDecoder(r *bufio.Reader) *decoder { return &decoder{r: r, types: map[int]wire{}} }

// decode reads the next value, a struct, into the struct that into points to. Values that do not fit are ignored.
func (d *decoder) decode(into any) error {
	for {
		n, err := d.length()
		if err != nil {
			return err
		}
		text, err := d.take(n)
		if err != nil {
			return err
		}
		b := &buffer{rest: text, left: maxValues}
		id := int(b.int())
		if id >= 0 {
			if t, ok := d.types[id]; !ok || t.kind != wireStruct {
				return errMalformed
			}
			d.read(b, id, reflect.ValueOf(into).Elem(), 0)
			return b.err
		}
		if d.described += n; d.described > maxDescribe {
			return fmt.Errorf("%w: types are described in more than %d bytes", errMalformed, maxDescribe)
		}
		d.types[-id] = describe(b)
		if b.err != nil || -id < idFirst-1 || len(d.types) > maxTypes {
			return errMalformed
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
	size := max(-int(int8(first)), 0)
	rest, err := d.take(min(size, 8))
	if err != nil {
		return 0, err
	}
	b := &buffer{rest: append([]byte{first}, rest...)}
	n := b.uint()
	if b.err == nil && n > maxMessage {
		return 0, fmt.Errorf("a message of %d bytes: at most %d are taken", n, maxMessage)
	}
	return int(n), b.err
}

// describe reads the description of a type: a wireType with one field.
func describe(b *buffer) (t wire) {
	b.fields(func(kind int) {
		t.kind = kind
		b.fields(func(i int) {
			switch {
			case i == 0: // CommonType
				b.field()
			case kind == wireStruct:
				for n := b.uint(); n > 0 && b.err == nil; n-- {
					t.fields = append(t.fields, b.field())
				}
			case i < len(t.parts):
				t.parts[i] = int(b.int())
			default:
				b.err = errMalformed
			}
		})
	})
	return t
}

// read reads a value of a type into v. It skips the value if v is invalid or does not fit.
func (d *decoder) read(b *buffer, id int, v reflect.Value, depth int) {
	if b.left--; b.left < 0 {
		b.err = fmt.Errorf("%w: a message of more than %d values", errMalformed, maxValues)
	}
	if depth > maxDepth {
		b.err = errMalformed
	}
	if b.err != nil {
		return
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() { // it is not where two fields of a type have one name
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	switch id {
	case idBool:
		if is := b.uint() != 0; v.Kind() == reflect.Bool {
			v.SetBool(is)
		}
	case idInt:
		if n := b.int(); v.CanInt() && !v.OverflowInt(n) {
			v.SetInt(n)
		}
	case idUint, idFloat:
		if n := b.uint(); v.CanUint() && !v.OverflowUint(n) {
			v.SetUint(n)
		}
	case idBytes:
		if text := b.bytes(); v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(append(v.Bytes()[:0], text...))
		}
	case idString:
		if text := b.bytes(); v.Kind() == reflect.String {
			v.SetString(string(text))
		}
	default:
		d.readParts(b, id, v, depth+1)
	}
}

// readParts reads a value that consists of values.
func (d *decoder) readParts(b *buffer, id int, v reflect.Value, depth int) {
	t, ok := d.types[id]
	switch {
	case !ok:
		b.err = fmt.Errorf("%w: no type %d", errMalformed, id)
	case t.kind > wireMap:
		b.bytes()
	case t.kind == wireStruct:
		b.fields(func(i int) {
			if i >= len(t.fields) {
				b.err = errMalformed
				return
			}
			var to reflect.Value
			if v.Kind() == reflect.Struct {
				to = v.FieldByName(t.fields[i].Name)
			}
			d.read(b, t.fields[i].Id, to, depth)
		})
	default:
		n := int(min(b.uint(), maxMessage))
		fits := v.Kind() == reflect.Slice && t.kind != wireMap && n <= b.left
		switch {
		case fits && v.Cap() < n:
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		case fits:
			v.SetLen(n) // no list stays no list
		}
		for i := 0; i < n && b.err == nil; i++ {
			var to reflect.Value
			if fits {
				to = v.Index(i)
			}
			d.read(b, t.parts[1], to, depth)
			if t.kind == wireMap {
				d.read(b, t.parts[2], reflect.Value{}, depth)
			}
		}
	}
}

// A buffer is the unread rest of a message, and how many values it may have. After an error, all that is read is zero.
type buffer struct {
	rest []byte
	left int
	err  error
}

// take returns the next n bytes.
func (b *buffer) take(n uint64) []byte {
	if n > uint64(len(b.rest)) {
		b.err = errMalformed
	}
	if b.err != nil {
		return nil
	}
	v := b.rest[:n]
	b.rest = b.rest[n:]
	return v
}

func (b *buffer) uint() (v uint64) {
	first := b.take(1)
	if b.err != nil {
		return 0
	}
	if first[0] < 128 {
		return uint64(first[0])
	}
	n := -int(int8(first[0]))
	if n > 8 {
		b.err = errMalformed
	}
	for _, c := range b.take(uint64(n)) {
		v = v<<8 | uint64(c)
	}
	return v
}

func (b *buffer) int() int64 {
	u := b.uint()
	if u&1 != 0 {
		return ^int64(u >> 1)
	}
	return int64(u >> 1)
}

func (b *buffer) bytes() []byte { return b.take(b.uint()) }

// fields calls f with the number of each field of a structure, before the value of the field: a structure has of each
// field that is not zero how many fields were left out, and its value.
func (b *buffer) fields(f func(i int)) {
	for i := -1; ; {
		step := b.uint()
		if step > maxTypes {
			b.err = errMalformed
		}
		if step == 0 || b.err != nil {
			return
		}
		i += int(step)
		f(i)
	}
}

// field reads a structure of a name and a number.
func (b *buffer) field() (f field) {
	b.fields(func(i int) {
		if i == 0 {
			f.Name = string(b.bytes())
		} else {
			f.Id = int(b.int())
		}
	})
	return f
}
