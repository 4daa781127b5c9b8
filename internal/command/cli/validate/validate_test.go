package validate

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/txtar"
	"github.com/fairlead-cni/fairlead/spec"
)

// What the goldens of the plugins take, validate takes in a list, and what they refuse it refuses: without an
// attachment it knows less, but of what a file says it says the same.
func TestValidateGoldens(t *testing.T) {
	files, err := filepath.Glob("../../../../plugin/*/testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	refused := 0
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		part := ar.Parts()
		if part["conf"] == "" || strings.HasPrefix(part["call"], "DEL") {
			continue
		}
		attached := ofAttachment(part["conf"] + part["call"] + part["error"])
		said := ""
		for _, r := range Examine("x.conflist", asList(t, part["conf"]), true).Remarks {
			if r.Severity == Error {
				said += fmt.Sprintf("  %v\n", r)
			}
		}
		switch name := strings.TrimPrefix(file, "../../../../plugin/"); {
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
	if p := netconf.OfType(typ.Type); p != nil && p.Chained() { // it needs one before
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

// A long file, and a directory of many, cost in proportion: nothing is read again for each mistake, plugin or network.
func TestValidateLinear(t *testing.T) {
	plugins := func(plugin string) func(n int) float64 {
		return func(n int) float64 {
			doc := `{"cniVersion":"1.0.0","name":"n","plugins":[` + strings.Repeat(plugin+",", n) + plugin + `]}`
			return testing.AllocsPerRun(1, func() { Examine("x.conflist", []byte(doc), true) })
		}
	}
	within := func(from, each, to string) func(n int) float64 {
		return func(n int) float64 {
			doc := `{"cniVersion":"1.0.0","name":"n","plugins":[` + from + strings.Repeat(each+",", n) + each + to + `]}`
			return testing.AllocsPerRun(1, func() { Examine("x.conflist", []byte(doc), true) })
		}
	}
	networks := func(n int) float64 {
		dir, all := t.TempDir(), []*spec.List{}
		for i := range n {
			doc := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"n%d","plugins":[{"type":"bridge","bridge":"b%d","isGateway":true,
				"ipam":{"type":"host-local","subnet":"10.%d.%d.0/24"}}]}`, i, i, i/256, i%256)
			file := filepath.Join(dir, fmt.Sprintf("%d.conflist", i))
			if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
				t.Fatal(err)
			}
			all = append(all, Examine(file, []byte(doc), true).list)
		}
		return testing.AllocsPerRun(1, func() { among(dir, all) })
	}
	for name, cost := range map[string]func(n int) float64{
		"plugins":         plugins(`{"type":"tuning"}`),
		"faulty plugins":  plugins(`{"type":"bridge","mtu":"x"}`),
		"repeated faults": within(`{"type":"bridge",`, `"mtu":1`, `}`),
		"faulty routes":   within(`{"type":"bridge","ipam":{"type":"static","routes":[`, `{"dst":"x"}`, `]}}`),
		"networks":        networks,
	} {
		if few, many := cost(300), cost(900); many > 4*few {
			t.Errorf("%s: 3 times as many take %.1f times as much", name, many/few)
		}
	}
}
