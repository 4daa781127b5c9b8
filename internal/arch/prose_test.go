package arch

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"strings"
	"testing"
)

// TestProseBites plants readers of prose, and code that decides by values.
func TestProseBites(t *testing.T) {
	fset := token.NewFileSet()
	std := importer.ForCompiler(fset, "gc", nil)
	for name, tc := range map[string]struct{ body, want string }{
		"an error":         {`func f(err error) bool { return strings.Contains(err.Error(), "is missing") }`, "strings.Contains"},
		"a prefix":         {`func f(err error) bool { return strings.HasPrefix(err.Error(), "x: ") }`, "strings.HasPrefix"},
		"a part":           {`func f(err error) string { s, _, _ := strings.Cut(err.Error(), ": "); return s }`, "strings.Cut"},
		"a variable":       {`func f(err error) []string { text := "x" + err.Error(); return strings.Fields(text) }`, "strings.Fields"},
		"a parameter":      {`func f(err error) bool { return g(err.Error()) }; func g(s string) bool { return strings.HasSuffix(s, "!") }`, "g: "},
		"a result":         {`func f(err error) bool { return g(err) == "gone" }; func g(err error) string { return err.Error() }`, "=="},
		"printed":          {`func f(err error) bool { return strings.Contains(fmt.Sprint(err), "x") }`, "strings.Contains"},
		"a String":         {`type T int; func (T) String() string { return "t" }; func f(t T) int { return strings.Index(t.String(), "t") }`, "strings.Index"},
		"a field":          {`func f(a *Answer) bool { return strings.HasSuffix(a.Why, "dropped") }`, "strings.HasSuffix"},
		"an embedded one":  {`func f(a struct{ Answer }) bool { return a.Why == "dropped" }`, "=="},
		"a switch":         {`func f(err error) int { switch err.Error() { case "a": return 1 }; return 0 }`, "switch"},
		"an expression":    {`func f(re *regexp.Regexp, err error) bool { return re.MatchString(err.Error()) }`, "MatchString"},
		"a value":          {`func f(err, e error) bool { return err == e }`, ""},
		"another text":     {`func f(s string) bool { return strings.Contains(s, "x") }`, ""},
		"another field":    {`func f(a Answer) bool { return strings.Contains(a.Path, "/") }`, ""},
		"whether there is": {`func f(a Answer, err error) bool { return a.Why != "" && err.Error() != "" }`, ""},
		"a builder":        {`func f(b *strings.Builder) bool { return strings.Contains(b.String(), "x") }`, ""},
		"what it prints":   {`func f(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bad := planted(t, fset, std, tc.body).readProse()
			bad = bad[:len(bad)-len(readers())] // what is excepted is not in the source
			if tc.want == "" && len(bad) > 0 || tc.want != "" && (len(bad) != 1 || !strings.Contains(bad[0], tc.want)) {
				t.Errorf("%q, want %q", bad, tc.want)
			}
		})
	}
}

// planted is a call graph with a package trace that has a body.
func planted(t *testing.T, fset *token.FileSet, std types.Importer, body string) *callGraph {
	g := &callGraph{fset: fset}
	src := "package trace\nimport (\"fmt\"; \"regexp\"; \"strings\")\ntype Answer struct{ Why, Path string }\n" +
		"var _, _, _ = fmt.Sprint, regexp.MatchString, strings.Cut\n" + body
	f, err := parser.ParseFile(g.fset, "x.go", src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	c := checked{"trace", []*ast.File{f}, &types.Info{Uses: map[*ast.Ident]types.Object{},
		Defs: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{},
		Selections: map[*ast.SelectorExpr]*types.Selection{}}}
	conf := types.Config{Importer: std}
	if _, err := conf.Check(Module+"/trace", g.fset, c.files, c.info); err != nil {
		t.Fatal(err)
	}
	g.checked = []checked{c}
	return g
}
