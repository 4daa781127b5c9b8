// Command render writes the manifests of packaging/kubernetes with some of their components as one file for `kubectl
// apply -f`. It is of a module of its own, so that kustomize is no dependency of the product.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func main() {
	manifests := flag.String("manifests", "packaging/kubernetes", "`DIR` with base and the components")
	tag := flag.String("tag", "", "`TAG` of the image fairlead")
	flag.Parse()
	text, err := render(*manifests, *tag, flag.Args())
	if err == nil {
		_, err = os.Stdout.Write(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

// render builds the base with components, as a cluster's own kustomization names them.
func render(manifests, tag string, components []string) ([]byte, error) {
	own, err := os.MkdirTemp("", "render")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(own)
	base, err := filepath.Abs(manifests)
	if err != nil {
		return nil, err
	}
	relative, err := filepath.Rel(own, base)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, c := range components {
		names = append(names, filepath.Join(relative, c))
	}
	doc, err := yaml.Marshal(map[string]any{"resources": []string{filepath.Join(relative, "base")}, "components": names,
		"images": []map[string]string{{"name": "fairlead", "newTag": tag}}})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(own, "kustomization.yaml"), doc, 0o600); err != nil {
		return nil, err
	}
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), own)
	if err != nil {
		return nil, err
	}
	return all.AsYaml()
}
