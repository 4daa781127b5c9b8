package docgen

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
)

// storeSource is the program fairlead-store. It is a module of its own, which this one must not import.
const storeSource = "cluster/store/cmd/fairlead-store/main.go"

// storeManual writes the manual page of fairlead-store: its constant usage, and the flags that it defines.
func storeManual(root string, files Files) error {
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, storeSource), nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	var usage string
	var options manual
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if n.Names[0].Name == "usage" {
				usage = textOf(n.Values[0])
			}
		case *ast.CallExpr:
			defines, _ := n.Fun.(*ast.SelectorExpr)
			if defines == nil || len(n.Args) != 3 {
				return true
			}
			if kind := defines.Sel.Name; kind == "String" || kind == "Bool" {
				name, says := textOf(n.Args[0]), textOf(n.Args[2])
				options.item(bold("--"+name)+value(says), strings.ReplaceAll(says, "`", ""))
			}
		}
		return true
	})
	short, long, ok := strings.Cut(strings.TrimSuffix(usage, "\nFlags:\n"), "\n\n")
	if !ok || options.Len() == 0 {
		return fmt.Errorf("%s: has no usage, or no flags", storeSource)
	}
	m := newManual("fairlead-store", "1", lower(strings.TrimSuffix(short, ".")))
	m.section("SYNOPSIS")
	m.lines(bold("fairlead-store") + " [" + italic("option") + "...]")
	m.section("DESCRIPTION")
	m.text(long)
	m.section("OPTIONS")
	m.Write(options.Bytes())
	m.section("SEE ALSO")
	m.lines(bold("fairlead-cluster-init") + "(1), " + bold("fairlead-cluster-members") + "(1), and " + docDir +
		"/fleet.md")
	files["docs/man/fairlead-store.1"] = m.Bytes()
	return nil
}

// value returns the name of a flag's value, which stands between grave accents in its help.
func value(says string) string {
	if parts := strings.Split(says, "`"); len(parts) > 2 {
		return " " + italic(parts[1])
	}
	return ""
}

// textOf returns the text of literals that are added to each other.
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return textOf(e.X) + textOf(e.Y)
	case *ast.BasicLit:
		s, _ := strconv.Unquote(e.Value) // what the compiler takes
		return s
	}
	return ""
}
