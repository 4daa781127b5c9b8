package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"testing"
)

// seeds are the examples of the specification, as they are and made plain, and what is nasty.
func seeds(f *testing.F, more ...string) {
	for _, e := range examples(f) {
		f.Add([]byte(e.text))
		f.Add([]byte(plain(e.text)))
	}
	for _, s := range append(more, "", "{", "null", "{}", `{"a":1,"a":2}`, `{"\ud800":1,"\udfff":2}`, "{\"\xff\":\"\xfe\"}", `{"name":"n","Name":"m"}`,
		"\xef\xbb\xbf{}", `{"a":1e999,"b":-0,"c":9007199254740993}`, "[[[[[[", "\"\\u0000\"", "\"\x7f\u2028\"", "1.e5", "-", "tru", "{\"a\"\x00:1}") {
		f.Add([]byte(s))
	}
}

// Our parser and encoding/json agree on what is JSON, and every position lies in the text.
func FuzzParse(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := parse(b)
		if (err == nil) != json.Valid(b) {
			t.Fatalf("%q: %v, and encoding/json finds it valid: %v", b, err, json.Valid(b))
		}
		if err != nil && (err.at < 0 || err.at > len(b) || err.msg == "") {
			t.Fatalf("%q: %+v", b, err)
		}
		if err == nil && !bytes.Equal(b[n.start:n.end], bytes.Trim(b, " \t\r\n")) {
			t.Fatalf("%q: %d to %d", b, n.start, n.end)
		}
	})
}

// clause: C3
func FuzzObject(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ParseObject(b)
		var want map[string]json.RawMessage
		if err != nil {
			if json.Unmarshal(b, &want) == nil && want != nil {
				t.Fatalf("%q: %v", b, err)
			}
			return
		}
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
		check := func(o Object) {
			keys := o.Keys()
			if len(keys) != len(want) {
				t.Fatalf("%q: keys %q", b, keys)
			}
			for _, k := range keys {
				if got, ok := o.Get(k); !ok || !bytes.Equal(got, want[k]) {
					t.Fatalf("%q: %q is %q, want %q", b, k, got, want[k])
				}
			}
		}
		check(o)
		sameBytes(t, marshal(t, o), bytes.Trim(b, " \t\r\n"))
		if err := o.Set("name", "<n>"); err != nil {
			t.Fatal(err)
		}
		want["name"] = json.RawMessage(`"<n>"`)
		check(o)
		again, err := ParseObject(marshal(t, o))
		if err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		check(again)
		if !slices.Equal(again.Keys(), o.Keys()) {
			t.Fatalf("%q: order %q, want %q", b, again.Keys(), o.Keys())
		}
		delete(want, "name")
		again.Delete("name")
		check(again)
	})
}

func FuzzParseConf(f *testing.F) {
	seeds(f, `{"name":"n","type":"t","cniVersion":"1.1.0","cni.dev/valid-attachments":[{"containerID":"c","ifname":"e"}]}`)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseConf(b)
		var e *Error
		var pos *FileError
		switch {
		case err != nil && (!errors.As(err, &e) || e.Code != CodeDecode && e.Code != CodeConfig && e.Code != CodeVersion):
			t.Fatalf("%q: %#v", b, err)
		case err != nil && (!errors.As(err, &pos) || pos.Line < 1 || pos.Column < 1 || pos.Line > 1+
			bytes.Count(b, []byte("\n"))):
			t.Fatalf("%q: %#v", b, pos)
		case c == nil:
			return
		case ValidName(c.Name) != nil || c.CNIVersion == "":
			t.Fatalf("%q: %+v", b, c)
		case c.CNIVersion.Known() && (ValidType(c.Type) != nil || c.IPAMType != "" && ValidType(c.IPAMType) != nil):
			t.Fatalf("%q: %+v", b, c)
		}
		sameBytes(t, marshal(t, c.Object), bytes.Trim(b, " \t\r\n"))
	})
}

func FuzzParseList(f *testing.F) {
	seeds(f, `{"name":"n","cniVersions":["1.0.0"],"disableGC":"true","plugins":[{"type":"t"}]}`, `{"name":"n","type":"t"}`)
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseList(b)
		if err != nil {
			var e *Error
			if pos, ok := err.(*FileError); !ok || !errors.As(err, &e) || pos.Line < 1 || pos.Column < 1 {
				t.Fatalf("%q: %#v", b, err)
			}
			return
		}
		again, err := ParseList(l.Raw)
		if err != nil || again.Name != l.Name || again.CNIVersion != l.CNIVersion || len(again.Plugins) != len(l.Plugins) ||
			ValidName(l.Name) != nil {
			t.Fatalf("%q: %+v, %v: want %+v", b, again, err, l)
		}
		for i, p := range l.Plugins {
			if q := again.Plugins[i]; ValidType(p.Type) != nil || p.Type != q.Type || p.IPAMType != q.IPAMType ||
				p.Name != l.Name || len(p.Capabilities) != len(q.Capabilities) {
				t.Fatalf("%q: plugins[%d]: %+v, want %+v", b, i, q, p)
			}
		}
	})
}

// What was read once in a version can be written in it, and then nothing changes any more.
// clause: V7
func FuzzDecodeResult(f *testing.F) {
	seeds(f, nastyResults(f)...)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeResult(b, V040)
		var e *Error
		if err != nil {
			if !errors.As(err, &e) || e.Code != CodeDecode && e.Code != CodeVersion {
				t.Fatalf("%q: %#v", b, err)
			}
			return
		}
		for _, v := range Versions() {
			once, err := r.Encode(v)
			if err != nil {
				if !errors.As(err, &e) || e.Code != CodeVersion || v.AtLeast(V030) || len(r.IPs) > 0 {
					t.Fatalf("%q in %s: %v", b, v, err)
				}
				continue
			}
			read, err := DecodeResult(once, Newest)
			if err != nil || read.CNIVersion != v {
				t.Fatalf("%q in %s: %v in %s", b, v, err, once)
			}
			twice, err := read.Encode(v)
			if err != nil || !bytes.Equal(once, twice) {
				t.Fatalf("%q in %s: %s, and then %s, %v", b, v, once, twice, err)
			}
			for _, ip := range read.IPs {
				read.InterfaceOf(ip)
			}
		}
		sameBytes(t, marshal(t, r.Clone()), marshal(t, r))
	})
}

func nastyResults(f *testing.F) (all []string) {
	for _, v := range []string{"1.1.0 to 1.1.0", "1.1.0 to 0.1.0", "1.1.0 to 0.3.0"} {
		all = append(all, sections(f, "testdata/conversions.txtar")[v])
	}
	return append(all, `{"cniVersion":"0.2.0","ips":[{"address":"::ffff:1.2.3.4/128"}],"x":{"a" : 1}}`, `{"cniVersion":"1.0.0","ip4":{},"Dns":{"search":[""]}}`)
}

// clause: P5
func FuzzParseArgs(f *testing.F) {
	for _, s := range []string{"", "a=b", "a=b;c=", "IgnoreUnknown=1;IP=10.1.2.3/24", ";", "a", "a==", "=\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		pairs, err := ParseArgs(s)
		if err != nil {
			return
		}
		if back, err := FormatArgs(pairs); err != nil || back != s {
			if bytes.IndexByte([]byte(s), 0) < 0 { // an environment variable has no NUL
				t.Fatalf("%q becomes %q, %v", s, back, err)
			}
		}
	})
}
