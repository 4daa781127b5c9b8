package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/fairlead-cni/fairlead/spec"
)

// What the goldens of the plugins take, validate takes in a list, and what they refuse it refuses: without an
// attachment it knows less, but of what a file says it says the same.
func TestValidateGoldens(t *testing.T) {
	files, err := filepath.Glob("../plugin/*/testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	refused := 0
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		part := map[string]string{}
		for _, f := range ar.Files {
			part[f.Name] = string(f.Data)
		}
		if part["conf"] == "" || strings.HasPrefix(part["call"], "DEL") {
			continue
		}
		attached := ofAttachment(part["conf"] + part["call"] + part["error"])
		said := ""
		for _, r := range examine("x.conflist", asList(t, part["conf"]), true).remarks {
			if r.Severity == grave {
				said += fmt.Sprintf("  %v\n", r)
			}
		}
		switch name := strings.TrimPrefix(file, "../plugin/"); {
		case attached || strings.Contains(said, "ipam: has no range"): // the plugin was not to ask its allocator
		case part["error"] == "" && said != "":
			t.Errorf("%s: the plugin takes it:\n%s", name, said)
		case part["error"] == "":
		case said == "":
			t.Errorf("%s: the plugin refuses it: %s", name, part["error"])
		default:
			refused++
		}
	}
	if refused < 50 {
		t.Errorf("only %d goldens were refused", refused)
	}
}

// ofAttachment reports whether a golden is about what a runtime or a plugin before says.
func ofAttachment(text string) bool {
	for _, word := range []string{"prevResult", "CNI_ARGS", "runtimeConfig", "ipam: gave", "\nip ", "\nlink ",
		"\nroute ", "\nargs ", "STATUS"} {
		if strings.Contains(text, word) {
			return true
		}
	}
	return false
}

// asList is the configuration of a plugin in a list.
func asList(t *testing.T, conf string) []byte {
	o, err := spec.ParseObject([]byte(conf))
	if err != nil {
		t.Fatal(err)
	}
	list := map[string]any{"cniVersion": "1.0.0", "name": "x"}
	for _, key := range []string{"name", "cniVersion"} {
		if raw, ok := o.Get(key); ok {
			list[key] = json.RawMessage(raw)
		}
		o.Delete(key)
	}
	for _, key := range []string{"prevResult", "runtimeConfig"} {
		o.Delete(key)
	}
	raw, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	plugins := []json.RawMessage{raw}
	var typ struct{ Type string }
	if err := json.Unmarshal(raw, &typ); err != nil {
		t.Fatal(err)
	}
	if p := ofType(typ.Type); p != nil && p.Chained() { // it needs one before
		const before = `{"type":"ptp","ipam":{"type":"host-local","subnet":"10.1.0.0/16"}}`
		plugins = append([]json.RawMessage{json.RawMessage(before)}, raw)
	}
	list["plugins"] = plugins
	b, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
