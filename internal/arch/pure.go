package arch

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// reads are the functions whose answer depends on the machine or the moment, by package; "*" are all of a package. A
// plan function reaches none of them.
func reads() map[string][]string {
	return map[string][]string{
		"os":                    {"*"},
		"os/exec":               {"*"},
		"os/user":               {"*"},
		"syscall":               {"*"},
		"golang.org/x/sys/unix": {"*"},
		"math/rand":             {"*"},
		"math/rand/v2":          {"*"},
		"crypto/rand":           {"*"},
		"log/slog":              {"*"},
		"path/filepath":         {"Abs", "EvalSymlinks", "Glob", "Walk", "WalkDir"},
		"time":                  {"Now", "Since", "Until", "After", "Sleep"},
		"net": {"Dial", "DialTimeout", "Listen", "ListenPacket", "Interfaces", "InterfaceByName", "InterfaceByIndex",
			"InterfaceAddrs", "LookupHost", "LookupIP", "LookupAddr", "ResolveIPAddr"},
	}
}

// A callGraph has, of each function of this module, the functions that its body mentions. Calls through an interface or
// a variable are not followed.
type callGraph struct {
	fset     *token.FileSet
	mentions map[*types.Func][]*types.Func
	plans    []planFunc
	users    map[types.Object][]string // the packages that use an exported name of package sdk
	checked  []checked
}

// A planFunc is the plan function that a plugin is declared with.
type planFunc struct {
	plugin   string
	mentions []*types.Func
}

// impure are the ways by which plan functions reach a function of reads, one for each plan function.
func (g *callGraph) impure() (bad []string) {
	for _, p := range g.plans {
		if way := g.way(p.mentions); way != nil {
			bad = append(bad, fmt.Sprintf("plugin/%s: a plan function is pure, and this one reads the machine: %s",
				p.plugin, strings.Join(way, " calls ")))
		}
	}
	return bad
}

// way is the shortest way from one of the functions to one of reads; nil: there is none.
func (g *callGraph) way(from []*types.Func) []string {
	type step struct {
		f    *types.Func
		from *step
	}
	var queue []*step
	seen := map[*types.Func]bool{}
	add := func(fs []*types.Func, by *step) {
		for _, f := range fs {
			if !seen[f] {
				seen[f] = true
				queue = append(queue, &step{f, by})
			}
		}
	}
	for add(from, nil); len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		if s.f.Pkg() != nil {
			if names := reads()[s.f.Pkg().Path()]; slices.Contains(names, "*") || slices.Contains(names, s.f.Name()) {
				var way []string
				for ; s != nil; s = s.from {
					way = append([]string{strings.ReplaceAll(s.f.FullName(), Module+"/", "")}, way...)
				}
				return way
			}
		}
		add(g.mentions[s.f], s)
	}
	return nil
}

// loadCalls type-checks the packages of this module that the patterns name or need; of others, what the compiler
// exported has to do.
func loadCalls(patterns ...string) (*callGraph, error) {
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
	}
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps",
		"-json=ImportPath,Dir,Export,GoFiles"}, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	g := &callGraph{fset: token.NewFileSet(), mentions: map[*types.Func][]*types.Func{},
		users: map[types.Object][]string{}}
	exports, ours := map[string]string{}, map[string]*types.Package{}
	compiled := importer.ForCompiler(g.fset, "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	check := types.Config{Importer: importing(func(path string) (*types.Package, error) {
		if p := ours[path]; p != nil {
			return p, nil
		}
		return compiled.Import(path)
	})}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return g, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[p.ImportPath] = p.Export
		name, own := rel(p.ImportPath)
		if !own {
			continue
		}
		var files []*ast.File
		for _, f := range p.GoFiles {
			file, err := parser.ParseFile(g.fset, filepath.Join(p.Dir, f), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files = append(files, file)
		}
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
			Types: map[ast.Expr]types.TypeAndValue{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
		pkg, err := check.Check(p.ImportPath, g.fset, files, info)
		if err != nil {
			return nil, err
		}
		ours[p.ImportPath] = pkg
		g.checked = append(g.checked, checked{name, files, info})
		for _, f := range files {
			g.add(name, f, info)
		}
		g.use(name, info)
	}
}

// importing is a types.Importer.
type importing func(path string) (*types.Package, error)

// Import implements types.Importer.
func (i importing) Import(path string) (*types.Package, error) { return i(path) }

// add takes over the functions of a file, and in a plugin's the plan functions that it declares.
func (g *callGraph) add(pkg string, file *ast.File, info *types.Info) {
	for _, d := range file.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
			f := info.Defs[d.Name].(*types.Func)
			g.mentions[f] = mentioned(d.Body, info)
		}
	}
	plugin, ok := strings.CutPrefix(pkg, "plugin/")
	if !ok {
		return
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 3 {
			return true
		}
		for _, f := range mentioned(call.Fun, info) {
			if name := f.FullName(); name == Module+"/sdk.Interface" || name == Module+"/sdk.Chained" {
				g.plans = append(g.plans, planFunc{plugin, mentioned(call.Args[2], info)})
			}
		}
		return true
	})
}

// mentioned are the functions that a piece of code calls or takes as a value.
func mentioned(n ast.Node, info *types.Info) (fs []*types.Func) {
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			if f, ok := info.Uses[id].(*types.Func); ok {
				fs = append(fs, f.Origin())
			}
		}
		return true
	})
	return fs
}
