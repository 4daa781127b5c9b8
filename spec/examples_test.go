package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// An example is a JSON example of one of the specification's documents.
type example struct {
	file, kind, section string
	bad, stillBad       string // "line:column message" as it is, and once comments and typography are gone
	text                string
}

func (e example) version() Version {
	return Version(strings.SplitN(strings.TrimSuffix(e.file, ".txtar"), "-", 2)[0])
}

// examples reads testdata/examples.
func examples(t testing.TB) (all []example) {
	t.Helper()
	files, err := filepath.Glob("testdata/examples/*.txtar")
	if err != nil || len(files) != 5 {
		t.Fatalf("%d documents (%v), want 5", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(string(b), "\n-- ")[1:] {
			header, text, _ := strings.Cut(part, " --\n")
			f := append(strings.Split(header, " | "), "", "")
			all = append(all, example{filepath.Base(file), f[0], f[1], f[2], f[3], text + "\n"})
		}
	}
	return all
}

// plain takes out comments and makes quotation marks straight.
func plain(s string) string {
	var out []string
	for line := range strings.Lines(s) {
		inString := false
		for i, r := range line {
			if r == '"' {
				inString = !inString
			}
			if !inString && strings.HasPrefix(line[i:], "//") {
				line = line[:i] + "\n"
				break
			}
		}
		out = append(out, line)
	}
	return strings.NewReplacer("“", `"`, "”", `"`).Replace(strings.Join(out, ""))
}

// clause: V4 V5 C3 C4 C11 C12 P7
func TestExamples(t *testing.T) {
	complete, templates := 0, 0
	for _, e := range examples(t) {
		t.Run(e.file+"/"+e.section, func(t *testing.T) {
			err := golden(t, e, e.text)
			if got := place(err); !matches(got, e.bad) {
				t.Fatalf("got  %s\nwant %s", got, e.bad)
			}
			if clean := plain(e.text); clean != e.text {
				if got := place(golden(t, e, clean)); !matches(got, e.stillBad) {
					t.Fatalf("without comments and with straight quotation marks:\ngot  %s\nwant %s", got, e.stillBad)
				}
			}
			if err == nil {
				complete++
			} else {
				templates++
			}
		})
	}
	if complete < 20 || templates < 40 {
		t.Errorf("%d complete examples, %d others: are they all here?", complete, templates)
	}
}

func matches(got, want string) bool {
	return got == want || want != "" && strings.HasPrefix(got, want)
}

// place is err as an example's header has it.
func place(err error) string {
	if err == nil {
		return ""
	}
	var f *FileError
	if !errors.As(err, &f) {
		return err.Error()
	}
	return fmt.Sprintf("%d:%d %v", f.Line, f.Column, f.Err)
}

// golden reads one example, writes it and compares. It returns what makes it no valid document.
func golden(t *testing.T, e example, text string) error {
	t.Helper()
	b := []byte(text)
	switch e.kind {
	case "conf":
		c, err := ParseConf(b)
		if err != nil {
			return err
		}
		sameBytes(t, marshal(t, c.Object), bytes.TrimSpace(b))
		if prev, ok := c.Object.Get("prevResult"); ok {
			sameResult(t, c.PrevResult, prev, c.CNIVersion)
		}
	case "list", "plugin":
		if e.kind == "plugin" {
			if _, err := ParseObject(b); err != nil {
				return err
			}
			b = fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "x", "plugins": [%s]}`, text)
		}
		l, err := ParseList(b)
		if err != nil {
			return err
		}
		sameBytes(t, l.Raw, b)
		var doc struct{ Plugins []json.RawMessage }
		if err := json.Unmarshal(b, &doc); err != nil || len(doc.Plugins) != len(l.Plugins) {
			t.Fatalf("%d plugins, want %d (%v)", len(l.Plugins), len(doc.Plugins), err)
		}
		for i, p := range l.Plugins {
			sameBytes(t, marshal(t, p.Object), doc.Plugins[i])
		}
	case "result":
		r, err := DecodeResult(b, e.version())
		if err != nil {
			return err
		}
		sameResult(t, r, b, e.version())
	case "error":
		if _, err := ParseObject(b); err != nil {
			return err
		}
		doc, ok := DecodeError(b)
		if !ok {
			t.Fatal("is no error document")
		}
		same(t, decode(t, doc.Encode(doc.CNIVersion)), decode(t, b))
	case "versions":
		if _, err := ParseObject(b); err != nil {
			return err
		}
		var info VersionInfo
		if err := json.Unmarshal(b, &info); err != nil {
			return err
		}
		same(t, decode(t, marshal(t, info)), decode(t, b))
	case "value":
		if d, err := open(b); err != nil {
			return err
		} else if !json.Valid(d.src) {
			t.Fatal("encoding/json finds it invalid")
		}
	default:
		t.Fatalf("kind %q", e.kind)
	}
	return nil
}

// sameResult holds r against the document it was read from.
func sameResult(t *testing.T, r *Result, doc []byte, v Version) {
	t.Helper()
	want := decode(t, doc).(map[string]any)
	want["cniVersion"] = string(v)
	same(t, decode(t, marshal(t, r)), want)
	b, err := r.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	same(t, decode(t, b), want)
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	if o, ok := v.(Object); ok { // json.Marshal would strip the white space
		v = rawer{o}
	}
	if m, ok := v.(rawer); ok {
		b, err := m.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type rawer struct{ json.Marshaler }

// decode reads JSON without rounding numbers.
func decode(t *testing.T, b []byte) (v any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return v
}

func same(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		g, _ := json.MarshalIndent(got, "", "  ")
		w, _ := json.MarshalIndent(want, "", "  ")
		t.Fatalf("got %s\nwant %s", g, w)
	}
}

func sameBytes(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("got %s\nwant %s", got, want)
	}
}

// The runtime's examples: every request of the chains follows from the list, the answers and what the
// runtime knows.
// clause: C3 C4
func TestExampleChains(t *testing.T) {
	know := map[string]json.RawMessage{
		"mac":          json.RawMessage(`"00:11:22:33:44:66"`),
		"portMappings": json.RawMessage(`[{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]`),
		"bandwidth":    json.RawMessage(`{"ingressRate": 1}`), // no plugin asks for it
	}
	chains := map[string]map[string]example{}
	for _, e := range examples(t) {
		if name, ok := strings.CutPrefix(e.section, "chain "); ok {
			if chains[e.file] == nil {
				chains[e.file] = map[string]example{}
			}
			chains[e.file][name] = e
		}
	}
	if len(chains) != 4 {
		t.Fatalf("%d documents with a chain, want 4", len(chains))
	}
	requests := 0
	for file, chain := range chains {
		l, err := ParseList([]byte(plain(chain["list"].text)))
		if err != nil {
			t.Fatal(err)
		}
		for name, e := range chain {
			f := strings.Fields(name)
			if len(f) != 3 { // the list, or an answer
				continue
			}
			requests++
			t.Run(file+"/"+name, func(t *testing.T) {
				p := plugin(t, l, f[2])
				prev := previous(t, l, chain, f[0], p)
				want := decode(t, []byte(plain(e.text)))
				same(t, decode(t, request(t, file, l, p, prev, know)), want)
				if _, err := ParseConf(request(t, file, l, p, prev, know)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if requests != 6+4+4+9 {
		t.Errorf("%d requests", requests)
	}
}

func plugin(t *testing.T, l *List, typ string) int {
	for i, p := range l.Plugins {
		if p.Type == typ {
			return i
		}
	}
	t.Fatalf("no plugin %q", typ)
	return 0
}

// previous is the result that a request carries: for ADD that of the plugin before, for CHECK and DEL
// the last one, and for DEL before 0.4.0 none.
func previous(t *testing.T, l *List, chain map[string]example, verb string, i int) *Result {
	if verb == "ADD" && i == 0 || verb == "DEL" && !l.CNIVersion.AtLeast(V040) {
		return nil
	}
	answer := "ADD 1 bridge, answer" // portmap changes nothing
	if verb != "ADD" || i == 2 {
		answer = "ADD 2 tuning, answer"
	}
	if e, ok := chain[answer]; ok {
		r, err := DecodeResult([]byte(e.text), l.CNIVersion)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	c, err := ParseConf([]byte(chain["ADD 2 tuning"].text)) // where the document shows no answers
	if err != nil {
		t.Fatal(err)
	}
	return c.PrevResult
}

func request(t *testing.T, file string, l *List, i int, prev *Result, know map[string]json.RawMessage) []byte {
	o := l.Plugins[i].Object
	set := func(key string, v any) {
		if err := o.Set(key, v); err != nil {
			t.Fatal(err)
		}
	}
	set("cniVersion", l.CNIVersion)
	set("name", l.Name)
	o.Delete("capabilities")
	given := maps.Clone(know)
	maps.DeleteFunc(given, func(k string, _ json.RawMessage) bool { return !l.Plugins[i].Capabilities[k] })
	if len(given) > 0 {
		set("runtimeConfig", given)
	}
	if prev != nil {
		p, err := ParseObject(marshal(t, prev))
		if err != nil {
			t.Fatal(err)
		}
		p.Delete("cniVersion") // the examples leave it out
		set("prevResult", p)
	}
	if ipam, ok := o.Get("ipam"); ok && file == "1.0.0.txtar" { // that document's requests forget the list's routes
		io, err := ParseObject(ipam)
		if err != nil {
			t.Fatal(err)
		}
		io.Delete("routes")
		set("ipam", io)
	}
	return marshal(t, o)
}
