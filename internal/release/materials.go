package main

import (
	"debug/buildinfo"
	"encoding/json"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// A component is a module, as CycloneDX has it.
type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
}

func module(kind, path, version string) component {
	purl := "pkg:golang/" + path + "@" + version
	return component{kind, purl, path, version, purl}
}

// materials writes the software bill of materials: what Go's linker says is in the programs.
func (r release) materials(tree string) error {
	var parts []component
	for _, name := range []string{"bin/fairlead", "lib/fairlead/cni/loopback"} {
		info, err := buildinfo.ReadFile(filepath.Join(tree, name))
		if err != nil {
			return err
		}
		parts = append(parts, module("library", "std", strings.TrimPrefix(info.GoVersion, "go")))
		for _, dep := range info.Deps {
			if dep.Replace != nil {
				dep = dep.Replace
			}
			parts = append(parts, module("library", dep.Path, dep.Version))
		}
	}
	slices.SortFunc(parts, func(a, b component) int { return strings.Compare(a.Ref, b.Ref) })
	parts = slices.Compact(parts)
	refs := []string{}
	for _, p := range parts {
		refs = append(refs, p.Ref)
	}
	this := module("application", "github.com/fairlead-cni/fairlead", r.version)
	doc := map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata":     map[string]any{"timestamp": r.date, "component": this},
		"components":   parts,
		"dependencies": []any{map[string]any{"ref": this.Ref, "dependsOn": refs}},
	}
	return r.create("fairlead-"+r.version+".cdx.json", func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(doc)
	})
}
