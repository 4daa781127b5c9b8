package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
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

	Licenses []licence `json:"licenses"`
}

// A licence is named as SPDX does.
type licence struct {
	License struct {
		ID string `json:"id"`
	} `json:"license"`
}

func module(kind, path, version, spdx string) component {
	purl := "pkg:golang/" + path + "@" + version
	c := component{Type: kind, Ref: purl, Name: path, Version: version, PURL: purl, Licenses: make([]licence, 1)}
	c.Licenses[0].License.ID = spdx
	return c
}

// licences are the names of the modules' licences, by path and version, as they stand in NOTICE.
func licences(tree string) (map[string]string, error) {
	notice, err := os.ReadFile(filepath.Join(tree, "share/doc/fairlead/NOTICE"))
	if err != nil {
		return nil, err
	}
	heading := regexp.MustCompile(`(?m)^={80}\n(\S+(?: \S+)?)\nSPDX-License-Identifier: (\S+)$`)
	all := map[string]string{}
	for _, m := range heading.FindAllStringSubmatch(string(notice), -1) {
		all[m[1]] = m[2]
	}
	return all, nil
}

// materials writes the software bill of materials: what Go's linker says is in the programs.
func (r release) materials(tree string) error {
	licence, err := licences(tree)
	if err != nil {
		return err
	}
	var parts []component
	for _, name := range []string{"bin/fairlead", "bin/fairlead-agent", "bin/fairlead-store", "bin/fairlead-conformance",
		"lib/fairlead/cni/loopback"} {
		info, err := buildinfo.ReadFile(filepath.Join(tree, name))
		if err != nil {
			return err
		}
		parts = append(parts, module("library", "std", strings.TrimPrefix(info.GoVersion, "go"), licence["std"]))
		for _, dep := range info.Deps {
			if dep.Path == "github.com/fairlead-cni/fairlead" { // which the agent uses from another module
				continue
			}
			if dep.Replace != nil {
				dep = dep.Replace
			}
			spdx, ok := licence[dep.Path+" "+dep.Version]
			if !ok {
				return fmt.Errorf("NOTICE lacks the licence of %s %s: make generate", dep.Path, dep.Version)
			}
			parts = append(parts, module("library", dep.Path, dep.Version, spdx))
		}
	}
	slices.SortFunc(parts, func(a, b component) int { return strings.Compare(a.Ref, b.Ref) })
	parts = slices.CompactFunc(parts, func(a, b component) bool { return a.Ref == b.Ref })
	refs := []string{}
	for _, p := range parts {
		refs = append(refs, p.Ref)
	}
	this := module("application", "github.com/fairlead-cni/fairlead", r.version, "Apache-2.0")
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
