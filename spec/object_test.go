package spec

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// clause: C3
func TestObjectKeepsBytes(t *testing.T) {
	const doc = "{\n  \"z\" : 9007199254740993,\n\t\"a\\u0062\": {\"n\": 1.50, \"u\": 18446744073709551615},\r\n \"html\":\"<&>\\u003c\", \"é\":[ ] }"
	o, err := ParseObject([]byte(" " + doc + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	sameBytes(t, marshal(t, o), []byte(doc))
	if !slices.Equal(o.Keys(), []string{"z", "ab", "html", "é"}) {
		t.Errorf("keys %q", o.Keys())
	}
	if v, ok := o.Get("ab"); !ok || string(v) != `{"n": 1.50, "u": 18446744073709551615}` {
		t.Errorf("%s %v", v, ok)
	}
	if _, ok := o.Get("Z"); ok {
		t.Error("keys are exact")
	}
	before := o
	if err := o.Set("name", "<n>"); err != nil {
		t.Fatal(err)
	}
	o.Delete("é")
	o.Delete("never there")
	sameBytes(t, marshal(t, o), []byte(`{"z":9007199254740993,"a\u0062":{"n": 1.50, "u": 18446744073709551615},"html":"<&>\u003c","name":"<n>"}`))
	sameBytes(t, marshal(t, before), []byte(doc))

	var read struct{ Raw Object } // inside another document
	if err := json.Unmarshal([]byte(`{"raw": {"big": 9007199254740993} }`), &read); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, marshal(t, read), []byte(`{"Raw":{"big":9007199254740993}}`))
}

func TestObjectSet(t *testing.T) {
	inner, err := ParseObject([]byte(`{"n": 1.0}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, doc, key string
		value          any
		want, bad      string
	}{
		{"in its place", `{"a":1,"b":2,"c":3}`, "b", "x", `{"a":1,"b":"x","c":3}`, ""},
		{"at the end", `{"a":1}`, "b", []int{1}, `{"a":1,"b":[1]}`, ""},
		{"the only one", `{}`, "b", nil, `{"b":null}`, ""},
		{"duplicates become one", `{"b":1,"a":1,"b":2}`, "b", 3, `{"a":1,"b":3}`, ""},
		{"raw", `{}`, "b", json.RawMessage(" {\"n\": 9007199254740993} "), `{"b":{"n": 9007199254740993}}`, ""},
		{"object", `{}`, "b", inner, `{"b":{"n": 1.0}}`, ""},
		{"behind another spelling", `{"name":"a","x":1,"Name":"b"}`, "name", "c", `{"x":1,"Name":"b","name":"c"}`, ""},
		{"after another spelling", `{"Name":"b","name":"a"}`, "name", "c", `{"Name":"b","name":"c"}`, ""},
		{"raw that is none", `{"a":1}`, "b", json.RawMessage(`{`), `{"a":1}`, `set "b": the text ends inside the object`},
		{"not JSON's", `{"a":1}`, "b", func() {}, `{"a":1}`, `set "b": json: unsupported type`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, err := ParseObject([]byte(tc.doc))
			if err != nil {
				t.Fatal(err)
			}
			wantError(t, o.Set(tc.key, tc.value), tc.bad)
			sameBytes(t, marshal(t, o), []byte(tc.want))
		})
	}
	for _, doc := range []string{`[]`, `null`, `"x"`, `{"a":}`} {
		if _, err := ParseObject([]byte(doc)); err == nil {
			t.Errorf("%s is no object", doc)
		}
	}
}

// What a person gets to read who has made a mistake in a file.
func TestSyntaxErrors(t *testing.T) {
	for _, tc := range []struct {
		doc          string
		line, column int
		msg          string
	}{
		{"\n\n", 3, 1, "there is no JSON here, the text is empty"},
		{"\xef\xbb\xbf{}", 1, 1, "the text begins with a byte-order mark: save it as UTF-8 without one"},
		{"{\n \"a\": 1\n \"b\": 2}", 3, 2, "a comma is missing before this member"},
		{"[1 \"x\"]", 1, 4, "a comma is missing before this value"},
		{"[1 2]", 1, 4, "2 where a comma or ] is expected"},
		{"{\"a\": 1,\n}", 2, 1, "a comma stands before } and no member follows it"},
		{"[1,]", 1, 4, "a comma stands before ] and no value follows it"},
		{"{\"a\":1,,\"b\":2}", 1, 8, "there is one comma too many"},
		{"[1,,2]", 1, 4, "there is one comma too many"},
		{"{\"a\": }", 1, 7, "a value is missing before '}'"},
		{"{\"a\" 1}", 1, 6, "1 where the colon after the key \"a\" is expected"},
		{"{\"a\"", 1, 5, "the text ends inside the object that begins at line 1, column 1"},
		{"{\"a\":", 1, 6, "the text ends inside the object that begins at line 1, column 1"},
		{"[[1,\n2", 2, 2, "the text ends inside the array that begins at line 1, column 2"},
		{"[1,", 1, 4, "the text ends inside the array that begins at line 1, column 1"},
		{"{a: 1}", 1, 2, "a where a key in quotation marks is expected"},
		{"{'a': 1}", 1, 2, "'\\'' is no quotation mark of JSON: write \""},
		{"{\"é\": “x”}", 1, 7, "'“' is no quotation mark of JSON: write \""},
		{"{\"a\": \"x\ny\"}", 1, 7, "the string \"x is not closed on its line"},
		{"{\"a\": \"x", 1, 9, "the text ends inside the string that begins at line 1, column 7"},
		{"{\"a\": \"C:\\net\\x\"}", 1, 14, "\\x is no escape of JSON: a backslash itself is written \\\\"},
		{"{\"a\": \"\\u12g4\"}", 1, 12, "\\u takes four hexadecimal digits"},
		{"{\"a\": \"\\u09af\\uAF09\\x\"}", 1, 20, "\\x is no escape of JSON: a backslash itself is written \\\\"},
		{"{\"a\": \"\x01\"}", 1, 8, "the character '\\x01' has to be written as an escape in a string"},
		{"{\"a\": True}", 1, 7, "True is no JSON value: did you mean true?"},
		{"{\"a\": Nul}", 1, 7, "Nul is no JSON value: did you mean null?"},
		{"{\"a\": eth0}", 1, 7, "eth0 is no JSON value: a string stands in quotation marks"},
		{"{\"a\": 10.1.0.0/16}", 1, 7, "10.1.0.0/16 is no number: a string stands in quotation marks"},
		{"{\"a\": 007}", 1, 7, "007 is no number: a string stands in quotation marks"},
		{"{\"a\": 0x1f}", 1, 7, "0x1f is no number: a string stands in quotation marks"},
		{"{\"a\": -}", 1, 7, "- is no number: a string stands in quotation marks"},
		{"{\"a\": 1. }", 1, 7, "1. is no number: a string stands in quotation marks"},
		{"{\"a\": +1}", 1, 7, "'+' where a value is expected"},
		{"{\"a\": 1 // one\n}", 1, 9, "JSON has no comments"},
		{"{\"a\": 1/* one */}", 1, 8, "JSON has no comments"},
		{"# a\n{}", 1, 1, "JSON has no comments"},
		{"{} {}", 1, 4, "{ where the end of the document is expected"},
		{"{} {\"a\":1}", 1, 4, "{ where the end of the document is expected"},
		{"{} [\"a\"]", 1, 4, "[ where the end of the document is expected"},
		{"{\"a\": <value>}", 1, 7, "<value> is a placeholder where a value is expected"},
		{"{\"a\": <your value>}", 1, 7, "<your value> is a placeholder where a value is expected"},
		{"{\"a\": <>x}", 1, 7, "<> is a placeholder where a value is expected"},
		{"{\"a\": " + strings.Repeat("x", 41) + "}", 1, 7, strings.Repeat("x", 40) + "… is no JSON value: a string stands in quotation marks"},
		{"{\"a\" 1, \"b\": \">\"}", 1, 6, "1 where the colon after the key \"a\" is expected"},
		{"\x00", 1, 1, "'\\x00' where a value is expected"},
	} {
		if json.Valid([]byte(tc.doc)) {
			t.Errorf("%q is valid", tc.doc)
		}
		_, err := open([]byte(tc.doc))
		if err == nil || err.Line != tc.line || err.Column != tc.column || err.Err.Error() != tc.msg {
			t.Errorf("%q:\ngot  %v\nwant line %d, column %d: %s", tc.doc, err, tc.line, tc.column, tc.msg)
		}
	}
	for _, depth := range []int{maxDepth, maxDepth + 1} {
		doc := make([]byte, 2*depth)
		for i := range doc {
			doc[i] = "[]"[i/depth]
		}
		if _, err := parse(doc); (err == nil) != (depth <= maxDepth) || (err == nil) != json.Valid(doc) {
			t.Errorf("depth %d: %v, and encoding/json finds it valid: %v", depth, err, json.Valid(doc))
		}
	}
}
