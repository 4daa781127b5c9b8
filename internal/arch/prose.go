package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// proseFields are the fields whose text people alone read, by package, type and field.
func proseFields() []string {
	return []string{"spec.Error.Msg", "spec.Error.Details", "spec.Error.Hint", "spec.Difference.Resource",
		"spec.Difference.Text", "trace.Answer.Why", "trace.Answer.Packet", "trace.Answer.Result",
		"trace.Hop.Text", "trace.Advice.Fix", "trace.Advice.Look", "packetfilter.Verdict.Rule",
		"packetfilter.Verdict.Owner", "cli/doctor.Diagnosed.What", "cli/doctor.Diagnosed.Why",
		"cli/doctor.affected.Details", "cli/netconf.FileProblem.Problem", "cli/app.Failure.Hint"}
}

// readers are the functions that may read a text of people, each with its reason.
func readers() map[string]string {
	const pathFirst = "an error about a value begins with the path of its key, also that of others' plugins"
	return map[string]string{
		"cli/validate locate":              pathFirst,
		"cli/validate lead":                pathFirst,
		"spec origin":                      pathFirst,
		"invoke said":                      "it puts an IPAM plugin's details beside its message",
		"invoke Versions":                  "a plugin older than VERSION refuses it by this sentence",
		"resource/filter/forward answered": "firewalld names its exceptions in the text of its answer",
		"cli/attached Named":               "it writes names beside IDs, and decides nothing",
		"cli/term Lines":                   "it lays out lines",
		"cli/term clean":                   "it escapes what a terminal would execute",
		"support line":                     "it removes secrets, wherever they stand",
	}
}

// stated reports whether String of a type of this module is for people. An owner's is a key.
func stated(f *types.Func) bool {
	name := f.FullName()
	_, own := rel(f.Pkg().Path())
	return name == "(fmt.Stringer).String" || f.Name() == "String" && own && name != "("+Module+"/spec.Owner).String"
}

// A checked package has the syntax and the types of its files.
type checked struct {
	name  string
	files []*ast.File
	info  *types.Info
}

// A prose is what is known of texts that people alone read: the variables, parameters and functions that have one.
type prose struct {
	*callGraph
	has     map[types.Object]bool
	changed bool
}

// readProse are the places of this module where code decides by the text of an error, of a String or of a field of
// proseFields. It follows the text into variables, parameters and results, but not through fields.
func (g *callGraph) readProse() (bad []string) {
	p := &prose{callGraph: g, has: map[types.Object]bool{}}
	for p.changed = true; p.changed; {
		p.changed = false
		p.walk(p.follow)
	}
	unused := readers()
	p.walk(func(c checked, fn *types.Func, n ast.Node) {
		if strings.HasPrefix(c.name, "internal/") || c.name == "sdk/sdktest" { // which test what is said
			return
		}
		where := c.name
		if fn != nil {
			where += " " + fn.Name()
		}
		what := p.reads(c, n)
		excepted := readers()[where] != ""
		if what != "" && excepted {
			delete(unused, where)
		} else if what != "" {
			at := g.fset.Position(n.Pos())
			bad = append(bad, fmt.Sprintf("%s: %s:%d: %s reads the text of an error or of another thing that is for "+
				"people: code decides by a value", where, at.Filename, at.Line, what))
		}
	})
	for where := range unused {
		bad = append(bad, where+": reads no text, and is excepted from the rule")
	}
	return bad
}

// unknownFields are those of proseFields that do not exist.
func (g *callGraph) unknownFields() (bad []string) {
	known := map[string]bool{}
	for _, c := range g.checked {
		for id, o := range c.info.Defs {
			t, ok := o.(*types.TypeName)
			if !ok {
				continue
			}
			if s, ok := t.Type().Underlying().(*types.Struct); ok {
				for f := range s.Fields() {
					known[c.name+"."+id.Name+"."+f.Name()] = true
				}
			}
		}
	}
	for _, name := range proseFields() {
		if !known[name] {
			bad = append(bad, name+": there is no such field")
		}
	}
	return bad
}

// walk calls do with each node, and the function around it.
func (p *prose) walk(do func(checked, *types.Func, ast.Node)) {
	for _, c := range p.checked {
		for _, f := range c.files {
			for _, d := range f.Decls {
				fn, _ := d.(*ast.FuncDecl)
				var of *types.Func
				if fn != nil {
					of = c.info.Defs[fn.Name].(*types.Func)
				}
				ast.Inspect(d, func(n ast.Node) bool {
					do(c, of, n)
					return true
				})
			}
		}
	}
}

// follow marks what a node gives a text to.
func (p *prose) follow(c checked, fn *types.Func, n ast.Node) {
	switch n := n.(type) {
	case *ast.AssignStmt:
		for i, lhs := range n.Lhs {
			if id, ok := lhs.(*ast.Ident); ok && len(n.Lhs) == len(n.Rhs) && p.is(c, n.Rhs[i]) {
				p.mark(c.info.ObjectOf(id))
			}
		}
	case *ast.CallExpr:
		f := callee(c.info, n)
		if f == nil || f.Pkg() == nil || !strings.HasPrefix(f.Pkg().Path(), Module) {
			return
		}
		params := f.Signature().Params()
		for i, arg := range n.Args {
			if i < params.Len() && types.Identical(params.At(i).Type(), types.Typ[types.String]) && p.is(c, arg) {
				p.mark(params.At(i))
			}
		}
	case *ast.ReturnStmt:
		text := func(e ast.Expr) bool { return p.is(c, e) }
		if fn != nil && fn.Signature().Results().Len() == 1 && slices.ContainsFunc(n.Results, text) {
			p.mark(fn)
		}
	}
}

func (p *prose) mark(o types.Object) {
	if o != nil && !p.has[o] {
		p.has[o], p.changed = true, true
	}
}

// is reports whether an expression is a text for people.
func (p *prose) is(c checked, e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return p.is(c, e.X)
	case *ast.Ident:
		return p.has[c.info.ObjectOf(e)]
	case *ast.BinaryExpr:
		return e.Op == token.ADD && (p.is(c, e.X) || p.is(c, e.Y))
	case *ast.SelectorExpr:
		s := c.info.Selections[e]
		return s != nil && s.Kind() == types.FieldVal && slices.Contains(proseFields(), field(s))
	case *ast.CallExpr:
		f := callee(c.info, e)
		if f == nil {
			return false
		}
		arg := func(a ast.Expr) bool { return p.is(c, a) || isError(c.info.TypeOf(a)) }
		switch name := f.FullName(); {
		case f.Signature().Recv() != nil && f.Signature().Params().Len() == 0:
			return f.Name() == "Error" || stated(f) || p.has[f.Origin()]
		case strings.HasPrefix(name, "fmt.Sprint"):
			return slices.ContainsFunc(e.Args, arg)
		case strings.HasPrefix(name, "strings.To"), strings.HasPrefix(name, "strings.Trim"),
			strings.HasPrefix(name, "strings.Replace"):
			return p.is(c, e.Args[0])
		}
		return p.has[f.Origin()]
	}
	return false
}

// reads names the function or operator by which a node decides by a text; empty: it does not.
func (p *prose) reads(c checked, n ast.Node) string {
	literal := func(e ast.Expr) bool {
		v := c.info.Types[e].Value
		return v != nil && v.ExactString() != `""`
	}
	switch n := n.(type) {
	case *ast.CallExpr:
		f := callee(c.info, n)
		if f == nil || len(n.Args) == 0 || !p.is(c, n.Args[0]) {
			return ""
		}
		decides := func(prefix string) bool { return strings.HasPrefix(f.Name(), prefix) }
		matches := strings.HasPrefix(f.FullName(), "(*regexp.Regexp).") || f.FullName() == "regexp.MatchString"
		if f.Pkg() != nil && f.Pkg().Path() == "strings" && slices.ContainsFunc([]string{"HasPrefix", "HasSuffix",
			"Contains", "Cut", "Split", "Index", "Fields", "EqualFold"}, decides) || matches {
			return f.FullName()
		}
	case *ast.BinaryExpr:
		equals := n.Op == token.EQL || n.Op == token.NEQ
		if equals && (p.is(c, n.X) && literal(n.Y) || p.is(c, n.Y) && literal(n.X)) {
			return n.Op.String()
		}
	case *ast.SwitchStmt:
		if n.Tag != nil && p.is(c, n.Tag) {
			return "switch"
		}
	}
	return ""
}

// callee returns the function that a call names, or nil.
func callee(info *types.Info, call *ast.CallExpr) *types.Func {
	var id *ast.Ident
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return nil
	}
	f, _ := info.Uses[id].(*types.Func)
	return f
}

// field is the name of a field as in proseFields. A field of an embedded type is that type's.
func field(s *types.Selection) string {
	t := s.Recv()
	for i, index := range s.Index() {
		if ptr, ok := t.Underlying().(*types.Pointer); ok {
			t = ptr.Elem()
		}
		f := t.Underlying().(*types.Struct).Field(index)
		named, ok := types.Unalias(t).(*types.Named)
		if i == len(s.Index())-1 && ok && named.Obj().Pkg() != nil {
			pkg, _ := rel(named.Obj().Pkg().Path())
			return pkg + "." + named.Obj().Name() + "." + f.Name()
		}
		t = f.Type()
	}
	return ""
}

func isError(t types.Type) bool {
	return t != nil && types.Implements(t, types.Universe.Lookup("error").Type().Underlying().(*types.Interface))
}
