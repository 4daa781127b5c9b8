package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// How many lines a production file, a test and the body of a function may have.
const (
	longest     = 400
	longestTest = 500
	longestFunc = 60
)

// tables are the functions that may be longer, for they are nothing but rows or text.
func tables() []string {
	return []string{"internal/arch rows", "cli/doctor hostKinds", "cli/doctor networkKinds",
		"cli/doctor containerKinds", "cli/doctor Page", "bench cases"}
}

// calls are functions that production code reaches only where they are the matter itself.
func calls() []restriction {
	// Of kernel, one file: the backends that iptables is the only way in for. Of DHCP, one: "startDaemon".
	runs := []string{"invoke", "cli/run", "cli/demo", "cli/calllog", "cli/support", "bench", "conformance",
		"internal/**", "sdk/sdktest", "kernel/xtables/exec.go", "dhcp/rpc/start.go"}
	return []restriction{
		{"time.Sleep", nil, "nothing sleeps: it waits for the kernel's event, with a bound"},
		{"exec.Command", runs, "no program is executed unless the configuration asks for it"},
		{"exec.CommandContext", runs, "no program is executed unless the configuration asks for it"},
	}
}

// variables are the package-level variables that may exist besides sentinels, assertions and plugin
// declarations, each with its reason.
func variables() map[string]string {
	return map[string]string{
		"cmd/fairlead version":    "set by the linker (make build)",
		"cmd/cni version":         "set by the linker (make build)",
		"cli/explain references":  "what docgen wrote of the plugins' keys, embedded by the compiler",
		"cli/doctor introduction": "the page before its findings, embedded by the compiler",
		"cli/scaffold templates":  "files of a new plugin, embedded by the compiler",
	}
}

// Code is what the rules forbid inside one production file of the package called name.
func Code(name, file string, src []byte) (bad []string) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return []string{err.Error()}
	}
	at := func(n ast.Node, format string, args ...any) {
		pos := fset.Position(n.Pos())
		bad = append(bad, fmt.Sprintf("%s/%s:%d: %s", name, path.Base(file), pos.Line, fmt.Sprintf(format, args...)))
	}
	if !ast.IsGenerated(f) {
		bad = append(bad, Length(name, file, src)...)
		bad = append(bad, columns(fset, f, src)...)
	}
	tests := strings.HasPrefix(name, "internal/")
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			n := fset.Position(d.End()).Line - fset.Position(d.Pos()).Line - 1
			if n > longestFunc && !slices.Contains(tables(), name+" "+d.Name.Name) {
				at(d, "%s: %d lines: a function has at most %d", d.Name.Name, n, longestFunc)
			}
			if d.Recv == nil && d.Name.Name == "init" {
				at(d, "init runs before main in every call, and cannot be told not to")
			}
		case *ast.GenDecl:
			if d.Tok != token.VAR || tests {
				continue
			}
			for _, s := range d.Specs {
				for _, v := range mutable(name, s.(*ast.ValueSpec)) {
					at(s, "var %s: no mutable state at package level (a function can return it)", v)
				}
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		for _, c := range calls() {
			if pkg.Name+"."+sel.Sel.Name == c.imp && !matchAny(c.by, name) &&
				!matchAny(c.by, name+"/"+path.Base(file)) {
				at(n, "%s: %s", c.imp, c.why)
			}
		}
		return true
	})
	return bad
}

// Length is the complaint about a file that is too long.
func Length(name, file string, src []byte) []string {
	most := longest
	if strings.HasSuffix(file, "_test.go") {
		most = longestTest
	}
	if n := strings.Count(string(src), "\n"); n > most {
		return []string{fmt.Sprintf("%s/%s: %d lines: a file has at most %d", name, path.Base(file), n, most)}
	}
	return nil
}

// columns returns the complaints about lines of more than 120 columns, a tab being four. Lines with a raw string are
// exempt: help texts, expressions and tags of fields cannot be broken.
func columns(fset *token.FileSet, f *ast.File, src []byte) (bad []string) {
	raw := map[int]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.BasicLit); ok && s.Value[0] == '`' {
			for l := fset.Position(s.Pos()).Line; l <= fset.Position(s.End()).Line; l++ {
				raw[l] = true
			}
		}
		return true
	})
	for i, line := range strings.Split(string(src), "\n") {
		if !raw[i+1] && utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) > 120 {
			bad = append(bad, fmt.Sprintf("%s:%d: more than 120 columns", fset.Position(f.Pos()).Filename, i+1))
		}
	}
	return bad
}

// mutable are the variables of s that are neither sentinels (errors.New), interface assertions, plugin
// declarations (sdk.Interface and the like, in plugin/) nor listed.
func mutable(name string, s *ast.ValueSpec) (vars []string) {
	for i, id := range s.Names {
		if id.Name == "_" || variables()[name+" "+id.Name] != "" {
			continue
		}
		if i < len(s.Values) {
			if fn := called(s.Values[i]); fn == "errors.New" || strings.HasPrefix(name, "plugin/") &&
				strings.HasPrefix(fn, "sdk.") {
				continue
			}
		}
		vars = append(vars, id.Name)
	}
	return vars
}

// called is the name of the function that e calls, as in "errors.New"; of a chain of calls, the first.
func called(e ast.Expr) string {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return ""
	}
	fun := call.Fun
	if ix, ok := fun.(*ast.IndexExpr); ok { // an explicit type argument
		fun = ix.X
	}
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if pkg, ok := sel.X.(*ast.Ident); ok {
		return pkg.Name + "." + sel.Sel.Name
	}
	return called(sel.X)
}
