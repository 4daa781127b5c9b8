package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// A Count is how much there is of a package: its Go source without tests.
type Count struct {
	Package string // its folder in the repository
	Tokens  int    // without comments and ends of lines
	Lines   int
}

// Counts counts the packages of all modules, largest first, by the source that read returns for a file's path.
func Counts(files []string, read func(string) ([]byte, error)) ([]Count, error) {
	by := map[string]*Count{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "testdata/") {
			continue
		}
		src, err := read(file)
		if err != nil {
			return nil, err
		}
		dir := path.Dir(file)
		if by[dir] == nil {
			by[dir] = &Count{Package: dir}
		}
		by[dir].Tokens += tokens(src)
		by[dir].Lines += bytes.Count(src, []byte("\n"))
	}

	var all []Count
	for _, c := range by {
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b Count) int { return b.Tokens - a.Tokens })
	return all, nil
}

func tokens(src []byte) (n int) {
	var s scanner.Scanner
	fset := token.NewFileSet()
	s.Init(fset.AddFile("", -1, len(src)), src, nil, 0)
	for {
		switch _, tok, text := s.Scan(); {
		case tok == token.EOF:
			return n
		case tok != token.SEMICOLON || text != "\n":
			n++
		}
	}
}

// goFiles are the paths of the Go files of the repository, which has several modules.
func goFiles(root string) ([]string, error) {
	list := exec.Command("git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.go")
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	return strings.Fields(string(out)), nil
}

// Exported are the exported names that a file declares: functions, types, constants and variables. A method is counted
// with its type.
func Exported(src []byte) (names []string, err error) {
	f, err := parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	add := func(ids ...*ast.Ident) {
		for _, id := range ids {
			if id.IsExported() {
				names = append(names, id.Name)
			}
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				add(d.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					add(s.Name)
				case *ast.ValueSpec:
					add(s.Names...)
				}
			}
		}
	}
	return names, nil
}
