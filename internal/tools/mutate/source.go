package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A mutant is one small change of a file, which the tests of its package should notice.
type mutant struct {
	dir, file  string // of the package, relative to the root; of the file inside
	function   string
	line       int
	start, end int    // bytes of the file
	text       string // what stands there instead
	old, new   string // the lines of the change, before and after, each on one line
}

// String names a mutant without its line, so the name lasts while the rest of the file changes.
func (m *mutant) String() string {
	return fmt.Sprintf("%s/%s %s: %s => %s", m.dir, m.file, m.function, m.old, cmp.Or(m.new, "nothing"))
}

// A source finds the mutants of one file.
type source struct {
	dir, name string
	bytes     []byte
	file      *token.File
	negated   map[ast.Expr]bool // conditions that are negated as a whole
	kept      map[ast.Stmt]bool // statements that are not dropped
	functions []*ast.FuncType   // around the node, the innermost last
	function  string
	found     []*mutant
}

// mutantsOf returns the mutants of a package's files that this platform builds, tests excepted.
func mutantsOf(root, dir string) (all []*mutant, err error) {
	pkg, err := build.ImportDir(filepath.Join(root, dir), 0)
	if err != nil {
		return nil, err
	}
	for _, name := range pkg.GoFiles {
		text, err := os.ReadFile(filepath.Join(root, dir, name))
		if err != nil {
			return nil, err
		}
		found, err := mutantsIn(dir, name, text)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func mutantsIn(dir, name string, text []byte) ([]*mutant, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	s := &source{dir: dir, name: name, bytes: text, file: set.File(file.FileStart), negated: map[ast.Expr]bool{},
		kept: map[ast.Stmt]bool{}}
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil {
			s.function = f.Name.Name
			if f.Recv != nil {
				s.function = "(" + s.text(f.Recv.List[0].Type) + ")." + s.function
			}
			s.in(f.Type, f.Body)
		}
	}
	return s.found, nil
}

// in looks for mutants in the body of a function.
func (s *source) in(f *ast.FuncType, body *ast.BlockStmt) {
	s.functions = append(s.functions, f)
	ast.Inspect(body, func(n ast.Node) bool {
		if inner, ok := n.(*ast.FuncLit); ok {
			s.in(inner.Type, inner.Body)
			return false
		}
		s.visit(n)
		return true
	})
	s.functions = s.functions[:len(s.functions)-1]
}

func (s *source) visit(n ast.Node) {
	switch n := n.(type) {
	case *ast.IfStmt:
		s.negate(n.Cond)
	case *ast.ForStmt:
		s.negate(n.Cond)
		s.kept[n.Post] = true // without it the loop has no end, which is no finding
	case *ast.BinaryExpr:
		s.swap(n)
	case *ast.BasicLit:
		if i, err := strconv.Atoi(n.Value); n.Kind == token.INT && err == nil {
			s.replace(n.Pos(), n.End(), strconv.Itoa(i+1))
		}
	case *ast.ReturnStmt:
		s.succeed(n)
	case *ast.DeferStmt:
		s.replace(n.Pos(), n.Call.Pos(), "")
		s.drop(n)
	case *ast.ExprStmt:
		if !logs.MatchString(s.text(n)) {
			s.drop(n)
		}
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			s.drop(n)
		}
	case *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt:
		s.drop(n.(ast.Stmt))
	}
}

// logs matches a statement that only writes a line of a log.
var logs = regexp.MustCompile(`(?i)^[\w.]*log(ger)?(\(\))?\.\w+\(`)

func (s *source) negate(cond ast.Expr) {
	if cond != nil {
		s.negated[cond] = true
		s.replace(cond.Pos(), cond.End(), "!("+s.text(cond)+")")
	}
}

func (s *source) swap(b *ast.BinaryExpr) {
	others := map[token.Token]token.Token{token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ,
		token.GEQ: token.GTR, token.LAND: token.LOR, token.LOR: token.LAND, token.EQL: token.NEQ, token.NEQ: token.EQL}
	other, ok := others[b.Op]
	equality := b.Op == token.EQL || b.Op == token.NEQ
	if !ok || equality && s.negated[b] {
		return
	}
	s.replace(b.OpPos, b.OpPos+token.Pos(len(b.Op.String())), other.String())
}

// succeed returns nil where the function returns an error.
func (s *source) succeed(r *ast.ReturnStmt) {
	results := s.functions[len(s.functions)-1].Results
	if results == nil || len(r.Results) != results.NumFields() {
		return
	}
	typ, isIdent := results.List[len(results.List)-1].Type.(*ast.Ident)
	last := r.Results[len(r.Results)-1]
	if !isIdent || typ.Name != "error" || s.text(last) == "nil" {
		return
	}
	s.replace(last.Pos(), last.End(), "nil")
}

func (s *source) drop(n ast.Stmt) {
	if !s.kept[n] {
		s.replace(n.Pos(), n.End(), "")
	}
}

func (s *source) replace(from, to token.Pos, text string) {
	start, end := s.file.Offset(from), s.file.Offset(to)
	first, last := start, end
	for first > 0 && s.bytes[first-1] != '\n' {
		first--
	}
	for last < len(s.bytes) && s.bytes[last] != '\n' {
		last++
	}
	old := string(s.bytes[first:last])
	changed := old[:start-first] + text + old[end-first:]
	s.found = append(s.found, &mutant{dir: s.dir, file: s.name, function: s.function, line: s.file.Line(from),
		start: start, end: end, text: text, old: oneLine(old), new: oneLine(changed)})
}

func (s *source) text(n ast.Node) string {
	return string(s.bytes[s.file.Offset(n.Pos()):s.file.Offset(n.End())])
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// apply returns the file with the mutant's change.
func (m *mutant) apply(text []byte) []byte {
	return slices.Concat(text[:m.start], []byte(m.text), text[m.end:])
}
