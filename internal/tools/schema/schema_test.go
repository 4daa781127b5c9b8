package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/fairlead-cni/fairlead/internal/docgen"
	"github.com/fairlead-cni/fairlead/internal/txtar"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

const root = "../../.."

// generated is all documents, made where no plugin is installed.
func generated(t *testing.T) docgen.Files {
	t.Helper()
	t.Setenv("CNI_PATH", "")
	files, err := docgen.Generate(root)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// schemas are the compiled ones, by the names of the plugins; that of a list is "list".
func schemas(t *testing.T) map[string]*jsonschema.Schema {
	t.Helper()
	compiler := jsonschema.NewCompiler()
	var names []string
	for path, text := range generated(t) {
		name, is := strings.CutPrefix(path, "docs/schema/")
		if !is {
			continue
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := compiler.AddResource("https://schema.test/"+name, doc); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	all := map[string]*jsonschema.Schema{}
	for _, name := range names {
		s, err := compiler.Compile("https://schema.test/" + name)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(name, ".schema.json")] = s
	}
	return all
}

func valid(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return s.Validate(v)
}

// A golden is a configuration of a plugin and the call that it is tried by.
type golden struct{ file, plugin, conf, call, refused string }

func goldens(t *testing.T) (all []golden) {
	for _, p := range plugin.All() {
		files, err := filepath.Glob(filepath.Join(root, "plugin", strings.ReplaceAll(p.Name, "-", ""), "testdata", "*.txtar"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			parts := archive.Parts()
			if parts["conf"] != "" && !strings.HasPrefix(parts["call"], "DEL") { // DEL forgives
				all = append(all, golden{p.Name + "/" + filepath.Base(file), p.Name, parts["conf"], parts["call"], parts["error"]})
			}
		}
	}
	for i, ipam := range []string{ // of which no golden has all keys
		`{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","rangeEnd":"10.1.0.99","gateway":"10.1.0.1"}]],
			"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1","mtu":1400,"table":7,"scope":0}],"dataDir":"/x","releaseCooldown":"30s",
			"reserved":["10.1.0.50","10.1.0.64/28"],"sticky":{"key":["K8S_POD_NAME"],"ttl":60}}`,
		`{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["10.1.0.1"]}}`,
		`{"type":"dhcp","ipv4":"dhcp","ipv6":"dhcpv6","prefixDelegation":64,"duid":"00:01:02:03","provide":[{"option":"host-name","value":"x"}],
			"request":[{"option":"3","skipDefault":false}],"provide6":[{"option":"15","value":"x"}],"priority":5,"broadcast":true,"hostname":"h"}`,
	} {
		all = append(all, golden{fmt.Sprintf("bridge/ipam%d", i), "bridge", `{"cniVersion":"1.1.0","name":"n","type":"bridge","ipam":` + ipam + `}`, "", ""})
	}
	return all
}

// otherCase are the goldens with keys in another case, as some runtimes write them: a schema has one spelling.
func otherCase() []string {
	return []string{"bridge/case.txtar", "bandwidth/containerd.txtar", "ptp/case.txtar", "host-device/key-case.txtar",
		"portmap/ports.txtar", "vlan/key-case.txtar"}
}

// Every example and every golden that its plugin takes is valid, by the schema of the plugin and by that of a list.
func TestSchema(t *testing.T) {
	all := schemas(t)
	for _, g := range goldens(t) {
		if g.refused != "" {
			continue
		}
		err := valid(t, all[g.plugin], g.conf)
		switch {
		case slices.Contains(otherCase(), g.file):
			if err == nil {
				t.Errorf("%s: is valid, and need not be an exception", g.file)
			}
		case err != nil:
			t.Errorf("%s: %v", g.file, err)
		}
	}
	for path, text := range generated(t) {
		if !strings.HasPrefix(path, "docs/examples/") {
			continue
		}
		if err := valid(t, all["list"], string(text)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		list, err := spec.ParseList(text)
		if err != nil {
			t.Fatal(err)
		}
		name, shown := strings.TrimSuffix(filepath.Base(path), ".conflist"), false
		for _, conf := range list.Plugins {
			raw, err := conf.Object.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if s := all[conf.Type]; s != nil && valid(t, s, string(raw)) != nil {
				t.Errorf("%s: %v", path, valid(t, s, string(raw)))
			}
			shown = shown || conf.Type == name || conf.IPAMType == name
		}
		if !shown {
			t.Errorf("%s: is about other plugins", path)
		}
	}
}

// What the schemas refuse in a list, and what they let pass.
func TestListSchema(t *testing.T) {
	all := schemas(t)
	in := func(plugins string) string {
		return `{"cniVersion":"1.0.0","cniVersions":["1.1.0"],"name":"n","plugins":[` + plugins + `]}`
	}
	const bridge = `{"type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/16"}}`
	for _, good := range []string{
		in(bridge), in(bridge + `,{"type":"portmap","capabilities":{"portMappings":true}}`), `{"name":"n"}`,
		in(`{"type":"calico","anything":[1],"ipam":{"type":"calico-ipam","x":{}}}`), in(`{"type":"macvlan","ipam":{"type":"whereabouts","range":"10.1.0.0/24"}}`),
		in(`{"type":"chain","plugins":[` + bridge + `,{"type":"firewall"}]}`), in(`{"type":"bridge","cni.dev/x":1,"args":{"cni":{"labels":[]},"other":1}}`),
		in(`{"type":"bridge","ipam":{}}`),
	} {
		if err := valid(t, all["list"], good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		`{}`, in(""), in(`{"type":"portmap"},` + bridge), in(`{"type":"bridge","isGatway":true}`), in(bridge + `,{"mtu":1400}`),
		in(`{"type":"bridge","ipam":{"type":"host-local","subnte":"10.1.0.0/16"}}`), in(`{"type":"bridge","ipam":{"subnet":"10.1.0.0/16"}}`),
		in(`{"type":"bridge","ipam":{"type":"ptp"}}`), in(`{"type":"host-local"}`), in(`{"type":"bridge","capabilities":{"mac":"yes"}}`),
		in(`{"type":"chain","plugins":[{"type":"bridge","mtu":3}]}`), in(`{"type":"chain","plugins":[]}`), `{"name":"a b","plugins":[` + bridge + `]}`,
		`{"cniVersion":"2.0.0","name":"n","plugins":[` + bridge + `]}`, `{"name":"n","loadOnlyInlinedPlugins":true}`, `{"name":"n","disableGC":"yes"}`,
	} {
		if valid(t, all["list"], bad) == nil {
			t.Errorf("%s: is valid", bad)
		}
	}
}

// unsayable is where a schema cannot say what the plugin does, by plugin and path, with the reason.
var unsayable = []struct{ at, reason string }{
	{`=1\.0$`, "JSON Schema takes 1.0 for an integer"},
	{`="::[^"]`, "no regular expression of moderate length counts the groups of an IPv6 address"},
	{`^(tap|alias)/args=`, "to a plugin that reads nothing of it, args of another shape are as good as absent (clause C12)"},
	{`^bridge/(bridge|vlanTrunk\[\])=|^route/neighbours\[\]=|^ovs/trunk\[\]=`, "depends on other keys"},
	{`^route/rules\[\]\.fwmark=".*/99"$`, "arithmetic with bits"},
	{`^alias/domainName=`, "is read without regard to case and to a dot at the end, and counted in bytes of each label"},
	{`^host-device/(kernelpath|pciBusID)=`, "a path is cleaned before it is looked at, and an address depends on its bus"},
}

// Each mutation of a golden that a plugin refuses for the value that was put there, its schema refuses, too; and what
// the plugin takes, the schema takes.
func TestSchemaMutations(t *testing.T) {
	all := schemas(t)
	byName := map[string]sdk.Plugin{}
	for _, p := range plugin.All() {
		byName[p.Name] = p
	}
	excused := make([]bool, len(unsayable))
	tried, refused, wrong := 0, 0, map[string]bool{}
	for _, g := range goldens(t) {
		if g.refused != "" || slices.Contains(otherCase(), g.file) {
			continue
		}
		var conf map[string]any
		d := json.NewDecoder(strings.NewReader(g.conf))
		d.UseNumber()
		if err := d.Decode(&conf); err != nil {
			t.Fatal(err)
		}
		delete(conf, "prevResult") // is the runtime's
		delete(conf, "runtimeConfig")
		if valid(t, all[g.plugin], text(conf)) != nil || syntax(byName[g.plugin], text(conf), "") != nil {
			continue
		}
		mutate(conf, "", func(path, value string) {
			if path == "type" || path == "name" || path == "cniVersion" || path == "ipam.type" || path == "strict" {
				return
			}
			tried++
			err := syntax(byName[g.plugin], text(conf), path)
			schema := valid(t, all[g.plugin], text(conf))
			if err != nil {
				refused++
			}
			any := syntax(byName[g.plugin], text(conf), "")
			if schema != nil && any != nil || schema == nil && err == nil {
				return
			}
			at := g.plugin + "/" + regexp.MustCompile(`\[\d+\]`).ReplaceAllString(path, "[]") + "=" + value
			for i, u := range unsayable {
				if regexp.MustCompile(u.at).MatchString(at) {
					excused[i] = true
					return
				}
			}
			if !wrong[at] {
				wrong[at] = true
				t.Errorf("%s: the plugin: %v; the schema: %v", at, any, strings.ReplaceAll(fmt.Sprint(schema), "\n", " "))
			}
		})
	}
	t.Logf("%d mutations, %d refused", tried, refused)
	if refused < 500 {
		t.Errorf("only %d of %d mutations are refused", refused, tried)
	}
	for i, u := range unsayable {
		if !excused[i] {
			t.Errorf("the exception %s is not needed", u.at)
		}
	}
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// syntax is why a plugin refuses a configuration, if that is the value at a path alone; of the empty path whatever it
// is.
func syntax(p sdk.Plugin, conf, path string) error {
	c, err := spec.ParseConf([]byte(conf))
	if err == nil {
		var r *sdk.Request
		if r, err = p.NewRequest("ADD", spec.Owner{Network: c.Name, ContainerID: "c1", IfName: "eth0"}, "/run/netns/c1", c,
			nil); err == nil {
			_, _, err = p.Plan(c, r)
			for _, q := range plugin.All() {
				if err == nil && q.Name == c.IPAMType && q.Name != p.Name {
					_, _, err = q.Plan(c, r)
				}
			}
		}
	}
	if f := (*spec.FileError)(nil); err != nil && errors.As(err, &f) {
		err = f.Err
	}
	if err == nil || path == "" {
		return err
	}
	// An error about the value names the path, or one below it, and the value.
	rest, is := strings.CutPrefix(err.Error(), path)
	if !is || rest == "" || !strings.ContainsRune(":.[", rune(rest[0])) || strings.Contains(rest, "is missing") {
		return nil
	}
	return err
}

// mutate puts other values in each place of v, one at a time, and calls try with each.
func mutate(v any, path string, try func(path, value string)) {
	replace := func(path string, old any, put func(any)) {
		values := []any{"zz", true, json.Number("-1"), json.Number("99999999999"), json.Number("1.5"), []any{},
			map[string]any{}, json.Number("1.0")}
		switch old := old.(type) {
		case string:
			values = append(values, old+"e", json.Number("7"), old+"/99", "::"+old)
		case json.Number:
			values = append(values, json.Number("0"), old.String())
		}
		for _, value := range values {
			if put(value); text(value) != text(old) {
				try(path, text(value))
			}
		}
		put(old)
	}
	switch v := v.(type) {
	case map[string]any:
		for _, key := range sorted(v) {
			old, at := v[key], strings.TrimPrefix(path+"."+key, ".")
			replace(at, old, func(x any) { v[key] = x })
			mutate(old, at, try)
		}
	case []any:
		for i, old := range v {
			at := fmt.Sprintf("%s[%d]", path, i)
			replace(at, old, func(x any) { v[i] = x })
			mutate(old, at, try)
		}
	}
}

func sorted(m map[string]any) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
