package docgen

import (
	"encoding"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"path"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/wants"
)

// A shape is a type of a configuration as people and JSON see it.
type shape struct {
	words  string   // for people
	kind   string   // JSON's: string, integer, boolean, array, object; empty is anything
	enum   []string // the only values
	elem   *shape   // of an array, or of an object with keys of any name
	fields []field  // of an object with keys of its own
	most   uint64   // of a number that is not negative; zero: it has no such bound
	schema map[string]any
}

// A field is a key of an object.
type field struct {
	key, doc string
	shape    shape
	want     wants.Want
}

// own are the types that read their JSON themselves, and so have to be told.
func own() map[string]shape {
	return map[string]shape{
		"net/netip.Addr":   {words: "address", schema: matches(addressPattern)},
		"net/netip.Prefix": {words: "subnet", schema: matches(prefixPattern)},
		Module + "/resource.MTU": {words: `number, or "auto"`, schema: map[string]any{
			"anyOf": []any{map[string]any{"type": "integer"}, map[string]any{"enum": []any{"auto", ""}}},
		}},
		Module + "/internal/ipam/sticky.Duration": {words: `duration such as "30s", or seconds`, schema: map[string]any{
			"anyOf": []any{map[string]any{"type": "number", "minimum": 0}, matches("^(" + elapses + ")?$")},
		}},
		Module + "/plugin/bridge.vlanRange": {words: `number, or range such as "10-20"`, schema: map[string]any{
			"anyOf": []any{map[string]any{"type": "integer", "minimum": 1, "maximum": 4094},
				matches("^ *0*" + vlanID + " *(- *0*" + vlanID + " *)?$")},
		}},
		Module + "/plugin/bandwidth.bits": {words: "number", schema: map[string]any{"type": "integer", "minimum": 0}},
		Module + "/plugin/alias.aliases": {words: "list of names, or object of lists by network",
			schema: map[string]any{
				"anyOf": []any{aliases(), map[string]any{"type": "object", "additionalProperties": aliases()}},
			}},
		Module + "/plugin/tuning.sysctls": {words: "object: string by name", kind: "object",
			elem: &shape{words: "string", kind: "string"}},
		Module + "/spec.Route": {words: "object", kind: "object", fields: route()},
		Module + "/sdk.Inner": {words: "object", kind: "object", fields: []field{
			{"type", "Name of the plugin. Its own page describes the other keys.",
				shape{words: "string", kind: "string"}, wants.Want{}},
		}},
		Module + "/plugin/debug.argv": {words: "list of string", schema: object{
			"type": "array", "items": object{"type": "string"}, "prefixItems": []any{object{"type": "string",
				"minLength": 1}}, "minItems": 1,
		}},
		"encoding/json.RawMessage": {words: "anything"},
	}
}

// aliases is a list of DNS labels.
func aliases() map[string]any {
	return map[string]any{"type": "array", "items": map[string]any{
		"type": "string", "pattern": "^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$",
	}}
}

// route is spec.Route as the specification writes it.
func route() []field {
	number := shape{words: "number", kind: "integer", most: math.MaxUint32}
	scope := shape{words: "number", kind: "integer", most: math.MaxUint8}
	subnet := shape{words: "subnet", schema: object{"type": "string", "pattern": prefixPattern, "minLength": 1}}
	address := shape{words: "address", schema: matches(addressPattern)}
	return []field{
		{key: "dst", doc: "Destination, as a subnet. Required.", shape: subnet, want: wants.Want{Lacks: "a subnet"}},
		{key: "gw", doc: "Address of the next hop; with 0.0.0.0 or :: the destination is on the link. " +
			"Default: the gateway of the container's address of that family.", shape: address},
		{key: "mtu", doc: "MTU of the route in bytes. Default: that of the interface.", shape: number},
		{key: "advmss", doc: "Maximum segment size that TCP advertises, in bytes. Default: derived from the MTU.",
			shape: number},
		{key: "priority", doc: "Metric of the route; a lower one is preferred. Default: the kernel's, " +
			"0 for IPv4 and 1024 for IPv6.", shape: number},
		{key: "table", doc: "Number of the routing table. Default: main (254).", shape: number},
		{key: "scope", doc: "Number of the scope: 0 universe, 253 link, 254 host. 253 without gw: " +
			"the destination is on the link. 253 with " +
			"gw: gw is on the link (onlink), even if no address is in its subnet. Default: the kernel's choice.",
			shape: scope},
	}
}

// Module is the path of this module.
const Module = "github.com/fairlead-cni/fairlead"

// A reader joins what reflection knows of a type, its keys and kinds, with what only the source says:
// comments and constants.
type reader struct {
	root string
	pkgs map[string]*source
}

type source struct {
	doc    string
	types  map[string]ast.Expr
	consts map[string][]string // the values of string constants, by type
}

// source parses the package at an import path of this module.
func (r *reader) source(importPath string) (*source, error) {
	if s, ok := r.pkgs[importPath]; ok {
		return s, nil
	}
	dir, ours := strings.CutPrefix(importPath, Module+"/")
	if !ours {
		return nil, fmt.Errorf("%s is no package of this module", importPath)
	}
	files, err := filepath.Glob(filepath.Join(r.root, dir, "*.go"))
	if err != nil {
		return nil, err
	}
	s := &source{types: map[string]ast.Expr{}, consts: map[string][]string{}}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		s.read(f)
	}
	if r.pkgs == nil {
		r.pkgs = map[string]*source{}
	}
	r.pkgs[importPath] = s
	return s, nil
}

func (s *source) read(f *ast.File) {
	if f.Doc != nil {
		s.doc = strings.TrimSpace(f.Doc.Text())
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, sp := range g.Specs {
			switch sp := sp.(type) {
			case *ast.TypeSpec:
				s.types[sp.Name.Name] = sp.Type
			case *ast.ValueSpec:
				s.constant(sp)
			}
		}
	}
}

// constant keeps the values of `const Bridge Mode = "bridge"`.
func (s *source) constant(v *ast.ValueSpec) {
	typ, ok := v.Type.(*ast.Ident)
	if !ok {
		return
	}
	for _, e := range v.Values {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				s.consts[typ.Name] = append(s.consts[typ.Name], text)
			}
		}
	}
}

// shape describes t, whose source is expr in the package at pkg where t has no name of its own.
func (r *reader) shape(t reflect.Type, expr ast.Expr, pkg string) (shape, error) {
	if t.Kind() == reflect.Pointer {
		return r.shape(t.Elem(), unwrap(expr), pkg)
	}
	var consts []string
	if t.Name() != "" && t.PkgPath() != "" {
		if s, ok := own()[t.PkgPath()+"."+t.Name()]; ok {
			return s, nil
		}
		p := reflect.PointerTo(t)
		if p.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
			p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
			return shape{}, fmt.Errorf("%v reads its JSON itself: docgen has to be told what it takes", t)
		}
		src, err := r.source(t.PkgPath())
		if err != nil {
			return shape{}, err
		}
		expr, pkg, consts = src.types[t.Name()], t.PkgPath(), src.consts[t.Name()]
	}
	switch t.Kind() {
	case reflect.Bool:
		return shape{words: "true or false", kind: "boolean"}, nil
	case reflect.String:
		return shape{words: "string", kind: "string", enum: consts}, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return shape{words: "number", kind: "integer"}, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return shape{words: "number", kind: "integer", most: 1<<t.Bits() - 1}, nil
	case reflect.Slice, reflect.Array, reflect.Map:
		elem, err := r.shape(t.Elem(), unwrap(expr), pkg)
		s := shape{words: "list of " + elem.words, kind: "array", elem: &elem}
		if t.Kind() == reflect.Map {
			s.words, s.kind = "object: "+elem.words+" by name", "object"
		}
		return s, err
	case reflect.Struct:
		st, ok := expr.(*ast.StructType)
		if !ok {
			return shape{}, fmt.Errorf("%v: no source for it", t)
		}
		fields, err := r.fields(t, st, pkg)
		return shape{words: "object", kind: "object", fields: fields}, err
	case reflect.Interface:
		return shape{words: "anything"}, nil
	}
	return shape{}, fmt.Errorf("%v: no way to say this in JSON Schema", t)
}

// unwrap is the element of a pointer, list or map in the source.
func unwrap(e ast.Expr) ast.Expr {
	switch e := e.(type) {
	case *ast.StarExpr:
		return e.X
	case *ast.ArrayType:
		return e.Elt
	case *ast.MapType:
		return e.Value
	}
	return e
}

// fields are the keys of t in the order of the source, those of embedded structs in their place.
func (r *reader) fields(t reflect.Type, st *ast.StructType, pkg string) (fields []field, err error) {
	i := 0 // reflection lists "a, b int" as two fields, the source as one
	for _, f := range st.Fields.List {
		for range max(len(f.Names), 1) {
			rf := t.Field(i)
			i++
			key, _, _ := strings.Cut(rf.Tag.Get("json"), ",")
			if key == "-" || key == "" && !rf.Anonymous {
				continue
			}
			s, err := r.shape(rf.Type, f.Type, pkg)
			if err != nil {
				return nil, fmt.Errorf("%s.%s: %w", path.Base(pkg), rf.Name, err)
			}
			if key == "" {
				fields = append(fields, s.fields...)
				continue
			}
			w := wants.Of(rf.Tag)
			if s.kind == "string" && s.enum == nil {
				s.enum = w.Words
			}
			fields = append(fields, field{key, comment(f, rf.Name), s, w})
		}
	}
	return fields, nil
}

// comment is what the source says of a field, above it or behind it, on one line, without the name of the
// field that Go's comments begin with.
func comment(f *ast.Field, name string) string {
	text := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
	for _, verb := range []string{" is ", " are "} {
		if rest, ok := strings.CutPrefix(text, name+verb); ok {
			return rest
		}
	}
	return text
}
