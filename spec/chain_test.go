package spec

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

const longhand = `{"cniVersion":"1.0.0","cniVersions":["1.1.0"],"name":"n","disableCheck":true,"x":{"y":1},"plugins":[
	{"type":"a","capabilities":{"ips":true,"mac":false},"args":{"cni":{"k":"own"}},"z":[1, 2]},{"type":"b"},{"type":"c","capabilities":{"portMappings":true}}]}`

func parsed(t *testing.T, doc string) *List {
	t.Helper()
	l, err := ParseList([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// clause: C3 C4 R7
func TestChain(t *testing.T) {
	l := parsed(t, longhand)
	doc, folded, err := l.Chain()
	if err != nil || folded {
		t.Fatal(folded, err)
	}
	chain := parsed(t, string(doc))
	if len(chain.Plugins) != 1 || !chain.Plugins[0].IsChain() || !chain.DisableCheck ||
		len(chain.CNIVersions) != 1 ||
		!reflect.DeepEqual(chain.Plugins[0].Capabilities, map[string]bool{"ips": true, "portMappings": true}) {
		t.Errorf("the chain is %s", doc)
	}
	if err := chain.Plugins[0].Undeclared(); err != nil {
		t.Error(err)
	}
	back, _, err := chain.WriteOut()
	var was, is any
	if err != nil || json.Unmarshal([]byte(longhand), &was) != nil || json.Unmarshal(back, &is) != nil ||
		!reflect.DeepEqual(was, is) {
		t.Errorf("back it is %s, %v", back, err)
	}
	if again, _, err := chain.Chain(); err != nil || string(again) != string(doc) {
		t.Errorf("a chain of a chain is %s, %v", again, err)
	}
	if l.WrittenOut() != l {
		t.Error("a list without a chain is not itself")
	}
}

// A plugin of a chain has no capability that the chain has not, and the args that the chain is given.
//
// clause: R7 C9
func TestWrittenOut(t *testing.T) {
	l := parsed(t, `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"first"},{"type":"chain","capabilities":{"ips":true},"args":{"cni":{"k":"v"}},"Plugins":[
		{"type":"a","capabilities":{"ips":true,"mac":true},"args":{"cni":{"k":"own"}}},{"type":"b"}]}]}`)
	out := l.WrittenOut()
	if len(out.Plugins) != 3 || out.Plugins[0].Type != "first" || out.Plugins[2].Name != "n" ||
		out.Plugins[2].CNIVersion != V100 {
		t.Fatalf("it is %v", out.Plugins)
	}
	a := out.Plugins[1]
	if args, _ := a.Object.Get("args"); !a.Capabilities["ips"] || a.Capabilities["mac"] || string(args) != `{"cni":{"k":"v"}}` {
		t.Errorf("it has %v and %s", a.Capabilities, args)
	}
	if err := l.Plugins[1].Undeclared(); err == nil || !strings.HasPrefix(err.Error(), `capabilities: lacks "mac", which plugins[0] (a) has`) {
		t.Errorf("it says %v", err)
	}
	for _, bad := range []string{`5`, `[]`, `[5]`, `[{}]`} {
		l := parsed(t, `{"name":"n","plugins":[{"type":"chain","plugins":`+bad+`}]}`)
		if out := l.WrittenOut(); len(out.Plugins) != 1 || !out.Plugins[0].IsChain() {
			t.Errorf("plugins %s: it is %v", bad, out.Plugins)
		}
	}
}

// A list without plugins, or of a text that is none, becomes no document.
func TestChainOfNothing(t *testing.T) {
	plugins := []*Conf{{Type: "a"}}
	for _, l := range []*List{{Name: "n"}, {Name: "n", Raw: []byte(`{`), Plugins: plugins},
		{Name: "n", Raw: []byte(`{"plugins":5}`), Plugins: plugins}} {
		if doc, _, err := l.Chain(); err == nil {
			t.Errorf("%s becomes %s", l.Raw, doc)
		}
	}
}

// Plugins of a drop-in directory become part of the document, which asks for no directory then.
//
// clause: C8
func TestChainFoldsDropIns(t *testing.T) {
	for _, plugins := range []string{`, "plugins": [{"type": "x"}]`, ``} {
		dir := confDir(t, "a.conflist", `{"cniVersion": "1.0.0", "name": "n"`+plugins+`}`, "n/10.conf", `{"type": "y"}`)
		l, err := Load(dir, "n")
		if err != nil {
			t.Fatal(err)
		}
		doc, folded, err := l.Chain()
		if err != nil || !folded {
			t.Fatal(folded, err)
		}
		chain := parsed(t, string(doc))
		out := chain.WrittenOut()
		if !chain.LoadOnlyInlinedPlugins || len(chain.Plugins) != 1 || len(out.Plugins) != len(l.Plugins) || out.Plugins[len(out.Plugins)-1].Type != "y" {
			t.Errorf("%s", doc)
		}
		if !strings.Contains(string(doc), "\n") {
			t.Errorf("it is no document for people: %s", doc)
		}
	}
}

// What a chain gives a plugin is what a runtime would give it: both make it here.
//
// clause: C9 R7
func TestGiven(t *testing.T) {
	conf := parsed(t, longhand).Plugins[0]
	g := Given{Version: V110, Name: "n", Capabilities: map[string]any{"ips": []string{"192.0.2.1"},
		"mac": "02:00:00:00:00:01"},
		Args: json.RawMessage(`{"cni":{}}`), Prev: &Result{}}
	b, err := g.Stdin("ADD", conf)
	if err != nil {
		t.Fatal(err)
	}
	var is map[string]any
	if err := json.Unmarshal(b, &is); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"type": "a", "z": []any{1.0, 2.0}, "cniVersion": "1.1.0", "name": "n",
		"args":          map[string]any{"cni": map[string]any{}},
		"runtimeConfig": map[string]any{"ips": []any{"192.0.2.1"}}, "prevResult": is["prevResult"]}
	if is["prevResult"] == nil || !reflect.DeepEqual(is, want) {
		t.Errorf("it is %s", b)
	}

	g.Valid = []Attachment{{"c", "eth0"}}
	b, err = g.Stdin("GC", conf)
	for _, key := range []string{keyValid, keyValidOld} {
		if !strings.Contains(string(b), `"`+key+`":[{"containerID":"c","ifname":"eth0"}]`) || err != nil {
			t.Errorf("GC gets %s, %v", b, err)
		}
	}
	for what, bad := range map[string]Given{
		"runtimeConfig": {Capabilities: map[string]any{"ips": func() {}}},
		"args":          {Args: func() {}},
		"the result":    {Version: V110, Prev: &Result{Extra: map[string]json.RawMessage{"x": json.RawMessage(`{`)}}},
	} {
		_, err := bad.Stdin("ADD", conf)
		wantError(t, err, what)
	}
	lost := Given{Version: V010, Prev: &Result{}} // a result without an address has no form in 0.1.0
	if _, err := lost.Stdin("ADD", conf); err == nil {
		t.Error("a plugin gets no previous result")
	}
	if b, err := lost.Stdin("DEL", conf); err != nil || strings.Contains(string(b), "prevResult") {
		t.Errorf("DEL gets %s, %v", b, err)
	}
}

// A document comes back from a chain as it was, keys, order and white space, if each of its plugins begins a line.
//
// clause: C3
func TestChainLayout(t *testing.T) {
	pretty, err := json.MarshalIndent(json.RawMessage(longhand), "", "    ")
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{
		"{\n  \"cniVersion\": \"1.0.0\", \"cniVersions\": [\"1.0.0\", \"1.1.0\"],\n  \"name\": \"n\",\n  \"plugins\": [\n" +
			"    {\"type\": \"a\", \"capabilities\": {\"ips\": true},\n     \"z\": [1,  2]},\n    {\"type\": \"b\"}\n  ]\n}",
		"{\"cniVersion\": \"1.0.0\", \"name\": \"n\", \"plugins\": [\n\t{\"type\": \"a\"},\n\t{\"type\": \"b\"}\n]}",
		"{\"plugins\": [\n  {\"type\": \"a\"}\n],\n  \"name\": \"n\", \"x\":  {\"y\" : 1}}",
		string(pretty),
	} {
		chain, _, err := parsed(t, doc).Chain()
		if err != nil {
			t.Fatal(err)
		}
		back, _, err := parsed(t, string(chain)).WriteOut()
		if err != nil || string(back) != doc {
			t.Errorf("chained it is %s\nand back %s\nand not %s: %v", chain, back, doc, err)
		}
	}
}
