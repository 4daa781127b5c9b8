package docgen

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
)

// Every configuration that the plugins' goldens accept is valid by the schema, and what is not of the right
// type is not.
func TestSchema(t *testing.T) {
	files := generated(t)
	compiler := jsonschema.NewCompiler()
	for _, p := range plugin.All() {
		t.Run(p.Name, func(t *testing.T) {
			doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(files["docs/schema/"+p.Name+".schema.json"]))
			if err != nil {
				t.Fatal(err)
			}
			if err := compiler.AddResource(p.Name, doc); err != nil {
				t.Fatal(err)
			}
			schema, err := compiler.Compile(p.Name)
			if err != nil {
				t.Fatal(err)
			}
			valid := func(conf string) error {
				v, err := jsonschema.UnmarshalJSON(strings.NewReader(conf))
				if err != nil {
					return err
				}
				return schema.Validate(v)
			}
			goldens, err := filepath.Glob(filepath.Join(root, "plugin", strings.ReplaceAll(p.Name, "-", ""), "testdata", "*.txtar"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range goldens {
				src, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				parts := sections(string(src))
				if parts["conf"] == "" || parts["error"] != "" || strings.HasPrefix(parts["call"], "DEL") {
					continue // refused, or forgiven
				}
				if err := valid(parts["conf"]); err != nil {
					t.Errorf("%s: %v", filepath.Base(file), err)
				}
			}
			list, err := spec.ParseList(files["docs/examples/"+p.Name+".conflist"])
			if err != nil {
				t.Fatal(err)
			}
			shown := false
			for _, conf := range list.Plugins {
				raw, err := conf.Object.MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				if shown = shown || conf.Type == p.Name || conf.IPAMType == p.Name; conf.Type == p.Name && valid(string(raw)) != nil {
					t.Errorf("the example: %v", valid(string(raw)))
				}
			}
			if !shown {
				t.Error("the example is about other plugins")
			}
			if err := valid(`{"type":"` + p.Name + `","ipam":{"type":"` + p.Name + `"},"unknown":1}`); err != nil {
				t.Errorf("a minimal configuration: %v", err)
			}
			if valid(`{"type":"`+p.Name+`","ipam":[]}`) == nil || valid(`{"ipam":{}}`) == nil {
				t.Error("anything goes")
			}
		})
	}
}
