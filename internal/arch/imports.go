package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// A Package is what `go list -json` says of one.
type Package struct {
	Dir, ImportPath, Name, Doc string
	Standard                   bool
	GoFiles                    []string
	TestGoFiles, XTestGoFiles  []string
	Imports, Deps              []string
}

// List is every package of this module.
func List() ([]Package, error) {
	cmd := exec.Command("go", "list",
		"-json=Dir,ImportPath,Name,Doc,Standard,GoFiles,TestGoFiles,XTestGoFiles,Imports,Deps", Module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	var pkgs []Package
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p Package
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return pkgs, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		}
		pkgs = append(pkgs, p)
	}
}

// rel is what the tables call a package, and whether it is of this module at all: its path in the module, without the
// folders internal and command, which say who may import it. What makes and watches the tree keeps its whole path.
func rel(importPath string) (string, bool) {
	name, ours := strings.CutPrefix(importPath, Module+"/")
	inside, _ := strings.CutPrefix(name, "internal/")
	if room, _, _ := strings.Cut(inside, "/"); slices.Contains(workshop(), room) {
		return name, ours
	}
	return strings.TrimPrefix(inside, "command/"), ours
}

// workshop are the folders of internal that are no part of what is shipped.
func workshop() []string {
	return []string{"arch", "contract", "dist", "docgen", "nstest", "txtar", "vm"}
}

// leaves are packages that know neither networks nor the protocol. Every package may import them, and they import none
// of this module.
func leaves() []string { return []string{"dnslabel", "hostview", "plainfile", "spelling"} }

func leafRows() (rows []row) {
	for _, leaf := range leaves() {
		rows = append(rows, row{leaf, nil, map[string]string{"*": "every package may import it, spec too"}})
	}
	return rows
}

// Imports is what the import table forbids and p does.
func Imports(p Package) (bad []string) {
	name, _ := rel(p.ImportPath)
	if len(p.GoFiles) == 0 {
		return nil // tests alone: they may import what they like
	}
	i := slices.IndexFunc(rows(), func(r row) bool { return match(r.pkg, name) })
	if i < 0 {
		return []string{fmt.Sprintf("%s has no row in the import table", name)}
	}
	r := rows()[i]
	for _, imp := range p.Imports {
		if target, ours := rel(imp); ours {
			if !matchAny(r.may, target) && !slices.Contains(leaves(), target) {
				bad = append(bad, fmt.Sprintf("%s imports %s: %s", name, target, r.reason(target)))
			}
			continue
		}
		bad = append(bad, restricted(name, imp)...)
	}
	return bad
}

// reason is the most particular reason that r has against target.
func (r row) reason(target string) string {
	if why, ok := r.why[target]; ok {
		return why
	}
	for pattern, why := range r.why {
		if pattern != "*" && match(pattern, target) {
			return why
		}
	}
	return r.why["*"]
}

// restricted judges an import from outside this module.
func restricted(name, imp string) (bad []string) {
	known := false
	for _, r := range outside() {
		if imp != r.imp && !strings.HasPrefix(imp, r.imp+"/") {
			continue
		}
		known = true
		if !matchAny(r.by, name) {
			bad = append(bad, fmt.Sprintf("%s imports %s: %s", name, imp, r.why))
		}
	}
	if host, _, _ := strings.Cut(imp, "/"); !known && strings.Contains(host, ".") {
		bad = append(bad, fmt.Sprintf("%s imports %s: a new module needs a row and a reason", name, imp))
	}
	return bad
}

// Clusters is what p brings of the libraries that only the module cluster may have.
func Clusters(p Package) (bad []string) {
	for _, dep := range p.Deps {
		for _, lib := range clusterLibraries() {
			if dep == lib || strings.HasPrefix(dep, lib+"/") {
				bad = append(bad, fmt.Sprintf("%s reaches %s: the plugins, the command and the packages for runtimes "+
					"and authors know no cluster; fairlead-agent is a module of its own", p.ImportPath, dep))
			}
		}
	}
	return bad
}

// Closure is what p brings into a plugin's process that costs too much at the start of every call.
func Closure(p Package) (bad []string) {
	name, _ := rel(p.ImportPath)
	if !matchAny([]string{"sdk", "plugin", "plugin/*", "cmd/cni"}, name) {
		return nil
	}
	for _, dep := range p.Deps {
		if why, ok := heavy()[dep]; ok {
			bad = append(bad, fmt.Sprintf("%s reaches %s: %s", name, dep, why))
		}
	}
	return bad
}

// Named is what is wrong with p's name and its comment.
func Named(p Package) (bad []string) {
	name, _ := rel(p.ImportPath)
	switch p.Name {
	case "util", "utils", "common", "helper", "helpers", "base", "types":
		bad = append(bad, fmt.Sprintf("%s: a package called %s says nothing of what is in it", name, p.Name))
	case "main":
		if !strings.HasPrefix(name, "cmd/") && name != "bench" && name != "bench/floor" && name != "internal/vm" {
			bad = append(bad, fmt.Sprintf("%s: one program is shipped, from cmd/", name))
		}
	}
	if len(p.GoFiles) > 0 && p.Doc == "" {
		bad = append(bad, fmt.Sprintf("%s has no package comment", name))
	}
	return bad
}
