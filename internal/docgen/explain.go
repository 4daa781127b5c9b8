package docgen

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/fairlead-cni/fairlead/internal/command/cli/explain"
	"github.com/fairlead-cni/fairlead/plugin"
)

// explained writes what `fairlead explain` says of lists, plugins and their keys, which the program has in itself.
func explained(root string, files Files) error {
	r := &reader{root: root}
	all := []explain.Reference{listReference()}
	for _, p := range plugin.All() {
		ref, err := r.reference(p)
		if err != nil {
			return fmt.Errorf("plugin %s: %w", p.Name, err)
		}
		out := explain.Reference{Name: p.Name, Synopsis: p.Synopsis, Doc: ref.doc}
		walk(ref.fields, "", func(path string, f field) {
			out.Keys = append(out.Keys, explain.ReferenceKey{Path: path, Value: f.shape.values(), Doc: f.doc})
		})
		all = append(all, out)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "\t")
	err := e.Encode(all)
	files["internal/command/cli/explain/reference.json"] = b.Bytes()
	return err
}
