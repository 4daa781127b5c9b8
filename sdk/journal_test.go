package sdk

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/spec"
)

// A record is one line of JSON, whatever the call got and answered.
func TestJournalLine(t *testing.T) {
	for want, r := range map[string]journalEntry{
		`"stdin":{"name":"n"}`: {Stdin: []byte(`{"name":"n"}`)},
		`"stdin":"{\"name"`:    {Stdin: []byte(`{"name`)},
		`"error":"json: `:      {Stdin: []byte(`{}`), Result: []byte(`{`)},
	} {
		line := string(r.line())
		if !json.Valid([]byte(line)) || !strings.HasSuffix(line, "}\n") || strings.Count(line, "\n") != 1 || !strings.Contains(line, want) {
			t.Errorf("%s, want %s", line, want)
		}
	}
}

// The absence of a link is listed where it was found first.
func TestReported(t *testing.T) {
	link := spec.Missing("link")
	link.Want = "br0"
	other := link
	other.Want = "br1"
	lacking := map[string]int{"br0": 3}
	for _, tc := range []struct {
		found spec.Differences
		known bool
	}{
		{nil, false}, {spec.Differences{link}, true}, {spec.Differences{other}, false}, {spec.Differences{other, link}, true},
		{spec.Differences{spec.Differs("master", "br0", "br1")}, false},
	} {
		if at, known := reported(tc.found, lacking); known != tc.known || known && at != 3 {
			t.Errorf("%v: %d, %v", tc.found, at, known)
		}
	}
}

// A command may be a single word.
func TestJournalCommandOfOneWord(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ncat >"+dir+"/seen\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := &call{conf: &spec.Conf{}, env: environment{Command: "GC", stdin: []byte("{}")}}
	c.note(Journal{Command: []string{program}, JSON: true, Timeout: time.Hour}, time.Now(), nil, nil)

	seen, err := os.ReadFile(dir + "/seen")
	if err != nil || !json.Valid(seen) {
		t.Errorf("the program read %q, %v", seen, err)
	}
}

// A record that would make the file longer than it may be begins another one, and the former one is kept.
func TestJournalFull(t *testing.T) {
	j := Journal{File: filepath.Join(t.TempDir(), "calls"), Max: 10}
	for _, record := range []string{"123456\n", "abc", "ABCDEF\n", "longer than it may be\n"} {
		if err := j.write([]byte(record)); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{j.File: "longer than it may be\n", j.File + ".1": "ABCDEF\n"} {
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", file, got, err, want)
		}
	}
}
