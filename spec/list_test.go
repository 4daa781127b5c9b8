package spec

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

const bridgeOnly = `"plugins":[{"type":"bridge"}]`

// clause: C1 C2 C3 C4 C5 C6 C7 C8 C9
func TestParseList(t *testing.T) {
	for _, tc := range []struct {
		name, doc string
		bad       string   // of the error
		warnings  []string // in order
	}{
		{"least", `{"name":"n",` + bridgeOnly + `}`, "", nil},
		{"no plugins yet", `{"name":"n"}`, "", nil},
		{"flags", `{"name":"n","disableCheck":"TRUE","disableGC":true,"loadOnlyInlinedPlugins":"",` + bridgeOnly + `}`, "", nil},
		{"single", `{"name":"n","type":"bridge","cniVersion":"0.4.0"}`, "", nil},
		{"single of 1.0.0", `{"name":"n","type":"bridge","cniVersion":"1.0.0"}`, "",
			[]string{`line 1, column 29: cniVersion: from 1.0.0 on there are only lists: put the plugin into {"cniVersion"`}},
		{"single in any case", `{"NAME":"n","TYPE":"bridge"}`, "", nil},
		{"what the runtime sets", `{"name":"n","cni.dev/x":1,"plugins":[{"type":"a","args":{"cni":{}},"runtimeConfig":{}},{"type":"b","prevResult":{},"CNI.dev/valid-attachments":[]}]}`, "",
			[]string{"line 1, column 13: cni.dev/x: is for the runtime", "plugins[0].runtimeConfig: is for",
				"plugins[1].prevResult: is for", "plugins[1].CNI.dev/valid-attachments: is for"}},
		{"misspelt", `{"name":"n","cniVersoin":"1.0.0","disablecheck":true,"_comment":"x","plugins":[{"type":"a","capabilites":{"ips":true}}]}`, "",
			[]string{`line 1, column 13: cniVersoin: is not read: is it meant to be "cniVersion"?`, `disablecheck: is not read: is it meant to be "disableCheck"?`, `plugins[0].capabilites: is not read: is it meant to be "capabilities"?`}},
		{"args beside the plugins", `{"name":"n","args":{"cni":{"ips":["10.1.0.5"]}},` + bridgeOnly + `}`, "",
			[]string{`line 1, column 13: args: is not read here: is it meant to be in a plugin, plugins[0].args?`}},
		{"what podman keeps beside them", `{"name":"n","args":{"podman_labels":{"a":"b"},"podman_options":{}},` + bridgeOnly + `}`, "", nil},
		{"misspelt beside the right one", `{"name":"n","names":1,"plugins":[{"type":"a","capabilities":{}, "Capabilities":{}}]}`, "", nil},

		{"not JSON", "{\n\"name\" \"n\"}", `line 2, column 8: "n" where the colon after the key "name" is expected`, nil},
		{"no name", `{` + bridgeOnly + `}`, "line 1, column 1: name: is missing", nil},
		{"name in another case", `{"Name":"n",` + bridgeOnly + `}`, `name: is missing: a network needs one (is "Name" at line 1, column 2 meant to be it?)`, nil},
		{"bad name", `{"name":"a/b",` + bridgeOnly + `}`, `line 1, column 9: name: name "a/b" has the character '/'`, nil},
		{"name of a wrong kind", `{"name":{},` + bridgeOnly + `}`, `name: is an object, and has to be a string`, nil},
		{"bad version", `{"name":"n","cniVersion":"0.4.O",` + bridgeOnly + `}`, `cniVersion: "0.4.O" is not a CNI version, such as "1.1.0" (did you mean "0.4.0"?)`, nil},
		{"bad versions", `{"name":"n","cniVersions":["1.0.0","1.0.0-rc1"],` + bridgeOnly + `}`, `cniVersions[1]: "1.0.0-rc1" is not a CNI version`, nil},
		{"versions of a wrong kind", `{"name":"n","cniVersions":"1.0.0",` + bridgeOnly + `}`, `cniVersions: is the string "1.0.0", and has to be an array of versions`, nil},
		{"flag of a wrong kind", `{"name":"n","disableGC":"yes",` + bridgeOnly + `}`, `disableGC: is the string "yes", and has to be true or false`, nil},
		{"no plugins, and none elsewhere", `{"name":"n","loadOnlyInlinedPlugins":true}`, "plugins: is missing: with loadOnlyInlinedPlugins all plugins stand here", nil},
		{"empty plugins", `{"name":"n","plugins":[]}`, "line 1, column 23: plugins: is empty", nil},
		{"plugins of a wrong kind", `{"name":"n","plugins":{}}`, "plugins: is an object, and has to be an array of plugins", nil},
		{"plugin of a wrong kind", `{"name":"n","plugins":["bridge"]}`, `plugins[0]: is the string "bridge", and has to be an object`, nil},
		{"plugin without type", `{"name":"n","plugins":[{"type":"a"},{"typ":"b"}]}`, `line 1, column 37: plugins[1].type: is missing: it names the plugin (is "typ" at line 1, column 38 meant to be it?)`, nil},
		{"type that is a path", `{"name":"n","plugins":[{"type":"/bin/sh"}]}`, `plugins[0].type: type "/bin/sh" is not a plain file name`, nil},
		{"ipam type that is a path", `{"name":"n","plugins":[{"type":"a","ipam":{"type":".."}}]}`, `plugins[0].ipam.type: type ".." is not a plain file name`, nil},
		{"single without name", `{"type":"bridge"}`, "name: is missing", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := ParseList([]byte(tc.doc))
			wantError(t, err, tc.bad)
			if err != nil {
				var f *FileError
				var e *Error
				if !errors.As(err, &f) || !errors.As(err, &e) || f.Line == 0 || e.Code != CodeDecode && e.Code != CodeConfig {
					t.Errorf("%#v has no position or code", err)
				}
				return
			}
			if l.Name != "n" {
				t.Errorf("name %q", l.Name)
			}
			if len(l.Warnings) != len(tc.warnings) {
				t.Fatalf("warnings %v, want %q", l.Warnings, tc.warnings)
			}
			for i, w := range l.Warnings {
				wantError(t, w, tc.warnings[i])
			}
		})
	}
}

func TestListFields(t *testing.T) {
	const doc = ` {"cniVersion":"0.4.0","cniVersions":["1.0.0","0.3.1"],"name":"n","disableCheck":"true","plugins":[
		{"type":"bridge","name":"other","cniVersion":"0.1.0","capabilities":{"ips":true,"mac":false}, "big": 9007199254740993},
		{"type":"portmap","capabilities":{"portMappings":true,"ips":false}}]} `
	l, err := ParseList([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	sameBytes(t, l.Raw, []byte(doc))
	if !l.DisableCheck || l.DisableGC || l.LoadOnlyInlinedPlugins || l.CNIVersion != V040 ||
		!slices.Equal(l.CNIVersions, []Version{V100, V031}) {
		t.Errorf("%+v", l)
	}
	if p := l.Plugins[0]; p.Name != "n" || p.CNIVersion != V040 { // clause C4
		t.Errorf("%+v", p)
	}
	sameBytes(t, marshal(t, l.Plugins[0].Object), []byte(`{"type":"bridge","name":"other","cniVersion":"0.1.0","capabilities":{"ips":true,"mac":false}, "big": 9007199254740993}`))
	same(t, l.Capabilities(), map[string]bool{"ips": true, "portMappings": true})
}

// A single configuration becomes a list that others can read from the cache.
// clause: C5
func TestListOfOne(t *testing.T) {
	l, err := ParseList([]byte(`{"type": "bridge", "name": "n", "x": [9007199254740993, "<"]}`))
	if err != nil {
		t.Fatal(err)
	}
	sameBytes(t, l.Raw, []byte(`{"cniVersion":"0.1.0","name":"n","plugins":[{"type":"bridge","name":"n","x":[9007199254740993,"<"]}]}`))
	again, err := ParseList(l.Raw)
	if err != nil || len(again.Plugins) != 1 || again.Plugins[0].Type != "bridge" || again.Name != "n" ||
		!json.Valid(l.Raw) {
		t.Errorf("%+v, %v", again, err)
	}
}

// clause: V10 V5
func TestSelect(t *testing.T) {
	all := Versions()
	for _, tc := range []struct {
		name   string
		l      List
		speaks [][]Version
		want   Version
	}{
		{"the only one", List{CNIVersion: V031}, nil, V031},
		{"none is 0.1.0", List{}, [][]Version{all}, V010},
		{"the highest", List{CNIVersion: V040, CNIVersions: []Version{V100, V031}}, nil, V100},
		{"cniVersion counts", List{CNIVersion: V110, CNIVersions: []Version{V100, V031}}, nil, V110},
		{"one to come is passed over", List{CNIVersion: V040, CNIVersions: []Version{"1.2.0", V100}}, nil, V100},
		{"a plugin is older", List{CNIVersion: V040, CNIVersions: []Version{V100, V110}},
			[][]Version{all, {V031, V040, V100}}, V100},
		{"two plugins", List{CNIVersion: V040, CNIVersions: []Version{V100, V110}}, [][]Version{{V100, V040}, {V110, V040}},
			V040},
		{"no common one", List{Name: "n", CNIVersion: V040}, [][]Version{{V100}}, ""},
		{"not the protocol's", List{Name: "n", CNIVersion: "2.0.0"}, nil, ""},
		{"text, not number", List{Name: "n", CNIVersion: "1.0"}, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Select(&tc.l, tc.speaks...)
			if got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("%q, %v: want %q", got, err, tc.want)
			}
			var e *Error
			if err != nil && (!errors.As(err, &e) || e.Code != CodeVersion || !strings.Contains(e.Msg, `network "n" offers CNI `+string(tc.l.CNIVersion))) {
				t.Errorf("%v", err)
			}
		})
	}
}
