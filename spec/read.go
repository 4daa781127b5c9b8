package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// A document is JSON that is decoded into one of the protocol's types. Its errors contain the position.
type document struct {
	src  []byte
	root node
}

// open parses b as JSON of any type.
func open(b []byte) (*document, *FileError) {
	root, err := parse(b)
	d := &document{src: b, root: root}
	if err != nil {
		return nil, d.bad(CodeDecode, err.at, "", "%s", err.msg)
	}
	return d, nil
}

// openObject parses b as a JSON object. What describes it in error messages.
func openObject(b []byte, what string) (*document, *FileError) {
	d, err := open(b)
	if err == nil && d.root.kind != '{' {
		err = d.bad(CodeDecode, d.root.start, "", "%s is %s: it has to be an object", what, d.describe(d.root))
	}
	return d, err
}

// bad returns an error about the value at an offset and its path of keys.
func (d *document) bad(code Code, at int, path, format string, args ...any) *FileError {
	line, column := position(d.src, at)
	if path != "" {
		format = "%s: " + format
		args = append([]any{path}, args...)
	}
	return &FileError{Line: line, Column: column, Err: Errorf(code, format, args...)}
}

// shape returns the error about a value of the wrong type.
func (d *document) shape(n node, path, want string) *FileError {
	is := d.describe(n)
	if n.kind == '"' && (want == "an integer" || want == "true or false") {
		if _, err := strconv.Atoi(text(d.raw(n))); err == nil || want == "true or false" {
			want += " without quotation marks"
		}
	}
	return d.bad(CodeDecode, n.start, path, "is %s, and has to be %s", is, want)
}

// describe returns n in words, such as `the string "x"`.
func (d *document) describe(n node) string {
	switch n.kind {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "the string " + shorten(d.raw(n))
	case '0':
		return "the number " + shorten(d.raw(n))
	}
	return shorten(d.raw(n))
}

func (d *document) raw(n node) []byte { return d.src[n.start:n.end:n.end] }

// asError converts e to the error document of a plugin, whose message contains the position.
func (e *FileError) asError() *Error {
	out := AsError(e.Err, CodeDecode)
	return &Error{Code: out.Code, Msg: e.Error(), cause: e}
}

// exact returns the member with exactly this key.
func (n node) exact(key string) (member, bool) {
	for i := len(n.members) - 1; i >= 0; i-- {
		if n.members[i].key == key {
			return n.members[i], true
		}
	}
	return member{}, false
}

// fold returns the member with this key in any case, as Go programs decode configurations: the last one counts, and
// null counts as absent.
func (n node) fold(key string) (member, bool) {
	for i := len(n.members) - 1; i >= 0; i-- {
		if m := n.members[i]; m.node.kind != 'n' && (m.key == key || strings.EqualFold(m.key, key)) {
			return m, true
		}
	}
	return member{}, false
}

// keys returns the keys of an object.
func (n node) keys() []string {
	ks := make([]string, len(n.members))
	for i, m := range n.members {
		ks[i] = m.key
	}
	return ks
}

// The readers below set *v to what n says; null leaves it.

func (d *document) str(n node, path string, v *string) *FileError {
	switch n.kind {
	case 'n':
	case '"':
		*v = text(d.raw(n))
	default:
		return d.shape(n, path, "a string")
	}
	return nil
}

func (d *document) integer(n node, path string, v *int) *FileError {
	if n.kind == 'n' {
		return nil
	}
	i, err := strconv.Atoi(string(d.raw(n)))
	if n.kind != '0' || err != nil {
		return d.shape(n, path, "an integer")
	}
	*v = i
	return nil
}

// pointed converts a reader of a number into one for an optional number.
func pointed(read func(n node, path string, v *int) *FileError) func(n node, path string, v **int) *FileError {
	return func(n node, path string, v **int) *FileError {
		var i int
		err := read(n, path, &i)
		if err == nil && n.kind != 'n' {
			*v = &i
		}
		return err
	}
}

// within reads a number from 0 to most, which is what the kernel has bits for: it would cut off a larger one.
func (d *document) within(most int) func(n node, path string, v *int) *FileError {
	return func(n node, path string, v *int) *FileError {
		i := *v
		if err := d.integer(n, path, &i); err != nil {
			return err
		}
		if i < 0 || i > most {
			return d.bad(CodeConfig, n.start, path, "%d: want 0 to %d", i, most)
		}
		*v = i
		return nil
	}
}

func (d *document) boolean(n node, path string, v *bool) *FileError {
	switch n.kind {
	case 'n':
	case 't':
		*v = d.src[n.start] == 't'
	default:
		return d.shape(n, path, "true or false")
	}
	return nil
}

// flag reads a boolean that may also be written as a string (clause C6). An empty string means the default.
func (d *document) flag(n node, path string, v *bool) *FileError {
	if n.kind == '"' {
		switch s := text(d.raw(n)); {
		case s == "":
			return nil
		case strings.EqualFold(s, "true"), strings.EqualFold(s, "false"):
			*v = strings.EqualFold(s, "true")
			return nil
		}
	}
	return d.boolean(n, path, v)
}

// each calls f for the items of an array.
func (d *document) each(n node, path, what string, f func(node, string) *FileError) *FileError {
	if n.kind == 'n' {
		return nil
	}
	if n.kind != '[' {
		return d.shape(n, path, "an array of "+what)
	}
	for i, item := range n.items {
		if err := f(item, fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	return nil
}

// readers are the functions that read the values of an object, by their keys in lower case.
type readers map[string]func(n node, path string) *FileError

// into returns a reader that stores the value in v.
func into[T any](read func(n node, path string, v *T) *FileError, v *T) func(node, string) *FileError {
	return func(n node, path string) *FileError { return read(n, path, v) }
}

// fields reads an object. Keys without a reader are ignored.
func (d *document) fields(n node, path string, of readers) *FileError {
	return d.object(n, path, func(key string, n node, path string) *FileError {
		if read := of[strings.ToLower(key)]; read != nil {
			return read(n, path)
		}
		return nil
	})
}

// object calls f for the members of an object.
func (d *document) object(n node, path string, f func(key string, v node, path string) *FileError) *FileError {
	if n.kind == 'n' {
		return nil
	}
	if n.kind != '{' {
		return d.shape(n, path, "an object")
	}
	for _, m := range n.members {
		if err := f(m.key, m.node, join(path, m.key)); err != nil {
			return err
		}
	}
	return nil
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func (d *document) strings(n node, path string, v *[]string) *FileError {
	if n.kind == 'n' {
		return nil
	}
	*v = []string{} // an empty list says something: of dns, that there are none (clause C11)
	return d.each(n, path, "strings", func(item node, path string) *FileError {
		if item.kind != '"' {
			return d.shape(item, path, "a string")
		}
		*v = append(*v, text(d.raw(item)))
		return nil
	})
}

// prefix reads an address with its prefix length. An IPv4-mapped address becomes IPv4.
func (d *document) prefix(n node, path string, v *netip.Prefix) *FileError {
	var s string
	if err := d.str(n, path, &s); err != nil || n.kind == 'n' {
		return err
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if a, err := netip.ParseAddr(s); err == nil {
			bits := a.BitLen()
			if a.IsUnspecified() { // all that there is
				bits = 0
			}
			return d.bad(CodeDecode, n.start, path, "%q has no prefix length, such as %s/%d", s, a, bits)
		}
		return d.bad(CodeDecode, n.start, path, "%q is not an address with a prefix length, such as 10.1.2.3/24", s)
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return d.bad(CodeDecode, n.start, path, "%q is an IPv4 address with the prefix length of an IPv6 network",
				s)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	*v = p
	return nil
}

// addr reads an address; an empty string means none.
func (d *document) addr(n node, path string, v *netip.Addr) *FileError {
	var s string
	if err := d.str(n, path, &s); err != nil || s == "" {
		return err
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		hint := ""
		if p, err := netip.ParsePrefix(s); err == nil {
			hint = fmt.Sprintf(": write %s, without the prefix length", p.Addr())
		}
		return d.bad(CodeDecode, n.start, path, "%q is not an IP address%s", s, hint)
	}
	*v = a.Unmap()
	return nil
}

func (d *document) dns(n node, path string, v *DNS) *FileError {
	return d.fields(n, path, readers{
		"nameservers": into(d.strings, &v.Nameservers), "domain": into(d.str, &v.Domain),
		"search": into(d.strings, &v.Search), "options": into(d.strings, &v.Options),
	})
}

// encode is like json.Marshal, but leaves <, > and & alone.
func encode(v any) ([]byte, error) {
	switch v := v.(type) {
	case int:
		return strconv.AppendInt(nil, int64(v), 10), nil
	case Version:
		return encode(string(v))
	case string:
		if strings.IndexFunc(v, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) < 0 {
			return append(append(append(make([]byte, 0, len(v)+2), '"'), v...), '"'), nil
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// indent formats JSON as plugins print it: four spaces, no newline at the end.
func indent(b []byte) []byte {
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "    "); err != nil {
		return b
	}
	return out.Bytes()
}
