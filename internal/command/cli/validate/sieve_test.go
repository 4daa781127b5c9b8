package validate

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

// All mistakes of a file are found, each at its place, by a check that stops at the first one. What follows from one
// that is known is no mistake of its own.
func TestSift(t *testing.T) {
	for _, tc := range []struct {
		doc  string
		good bool
		want string
	}{
		{`{"name": "n", "plugins": [{"type": "a"}]}`, true, ""},
		{"{\n\"name\": \"-n\",\n\"cniVersion\": 7,\n\"plugins\": [{\"type\": 5}, {\"type\": \"b\", \"capabilities\": {\"x\": 1 , \"y\" : 2 }}]}",
			true, "2:9 name: name \"-n\" begins with '-': a letter or a digit has to come first\n" +
				"3:15 cniVersion: is the number 7, and has to be a string\n" +
				"4:22 plugins[0].type: is the number 5, and has to be a string\n" +
				"4:62 plugins[1].capabilities.x: is the number 1, and has to be true or false\n" +
				"4:72 plugins[1].capabilities.y: is the number 2, and has to be true or false\n"},
		{`{"name": "n", "plugins": [7, {}, {"type": "a"}, null]}`, true, // the places of items change with those before them
			"1:27 plugins[0]: is the number 7, and has to be an object\n" +
				"1:30 plugins[1].type: is missing: it names the plugin\n" +
				"1:49 plugins[3]: is null, and has to be an object\n"},
		{`{"plugins": [{"type": "a"}, {"type": "../b"}]}`, false, "1:1 name: is missing: a network needs one\n"},
		{`{"name": "-", "plugins": [{"type": 5}]}`, false, "1:10 name: name \"-\" begins with '-': a letter or a digit has to come first\n" +
			"1:36 plugins[0].type: is the number 5, and has to be a string\n"},
		{`{"name": "", "plugins": [{"type": "a"}]}`, false, "1:10 name: name is empty\n"},
		{`{"name": "n", "plugins": 5}`, true, "1:26 plugins: is the number 5, and has to be an array of plugins\n"},
	} {
		s, err := newSieve([]byte(tc.doc))
		if err != nil {
			t.Fatal(err)
		}
		good := s.sift("", func(part []byte) error { _, err := spec.ParseFile("x.conflist", part); return err }, nil)
		var said strings.Builder
		for _, f := range s.faults {
			fmt.Fprintf(&said, "%d:%d %v\n", f.Line, f.Column, f.Err)
			if f.Path != "" && !strings.HasPrefix(f.Err.Error(), f.Path) {
				t.Errorf("%v is about %s", f.Err, f.Path)
			}
		}
		if said.String() != tc.want || good != tc.good {
			t.Errorf("%s: %v, it says\n%swant\n%s", tc.doc, good, &said, tc.want)
		}
	}
	if _, err := newSieve([]byte(`[]`)); err == nil {
		t.Error("an array was sifted")
	}
}

// A mistake is said once. Of a doubtful one about a missing key nothing is said, and not even a hundred mistakes hang
// the sieve.
func TestSieve(t *testing.T) {
	items := strings.TrimSuffix(strings.Repeat(`7,`, mostFaults+2), ",")
	s, err := newSieve([]byte("{\n \"x\": {\"y\": [" + items + "]}}"))
	if err != nil {
		t.Fatal(err)
	}
	if s.count("x.y") != mostFaults+2 || s.count("x.z") != 0 {
		t.Errorf("the lists have %d and %d items", s.count("x.y"), s.count("x.z"))
	}
	if at := s.key("x.y"); at.path != "x.y" || at.line != 2 || at.column != 8 {
		t.Errorf("the key is at %d:%d %s", at.line, at.column, at.path)
	}
	for range 2 {
		s.fault("x", errors.New("y: has too many"))
	}
	if len(s.faults) != 1 || s.faults[0].Path != "x.y" || s.faults[0].Err.Error() != "x.y: has too many" {
		t.Errorf("faults: %v", s.faults)
	}
	missing := errors.New("z: is missing")
	if s.sift("x", func([]byte) error { return missing }, func(err error) bool { return err == missing }) || len(s.faults) != 1 {
		t.Errorf("a doubtful fault: %v", s.faults)
	}
	if s.sift("x.z", func([]byte) error { return nil }, nil) {
		t.Error("what is not there is sound")
	}
	item, err := newSieve([]byte(`{"plugins": [{"type": "a"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if item.sift("plugins[0]", func([]byte) error { return missing }, nil) || item.count("plugins") != 1 || len(item.faults) != 1 {
		t.Errorf("an item that lacks a key: %v", item.faults)
	}
	tried := 0
	s.sift("x.y", func([]byte) error { tried++; return fmt.Errorf("[0]: %d", tried) }, nil)
	last := s.faults[len(s.faults)-1]
	if tried != mostFaults+1 || !strings.Contains(last.Error(), "more may be wrong than the first 100 mistakes") {
		t.Errorf("%d checks, the last fault is %v", tried, last)
	}
}

// The message of an error begins with the whole path of what it is about.
func TestLocate(t *testing.T) {
	s, err := newSieve([]byte(`{"plugins":[{"mtu":7}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ path, text, at, want string }{
		{"plugins[0]", "mtu: 7: want 68 or more", "plugins[0].mtu", "plugins[0].mtu: 7: want 68 or more"},
		{"plugins[0]", "master: is missing", "plugins[0]", "plugins[0].master: is missing"},
		{"plugins[0]", "gives no address", "plugins[0]", "plugins[0]: gives no address"},
		{"", "name: is missing", "", "name: is missing"},
		{"plugins[0]", "lacks a: b", "plugins[0]", "plugins[0]: lacks a: b"},
		{"plugins[0]", "all: lacks a", "plugins[0]", "plugins[0].all: lacks a"},
		{"plugins", "[1]: is one too many", "plugins", "plugins: [1]: is one too many"},
		{"plugins", "[0].MTU, and [0].mtuu", "plugins[0].mtu", "plugins[0].mtu, and [0].mtuu"},
		{"plugins[-1]", "x", "plugins", "plugins: x"},
	} {
		at, text := s.locate(tc.path, errors.New(tc.text))
		if at.path != tc.at || text != tc.want {
			t.Errorf("%s at %q: %s at %q, want %s at %q", tc.text, tc.path, text, at.path, tc.want, tc.at)
		}
	}
}
