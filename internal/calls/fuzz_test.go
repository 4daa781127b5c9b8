package calls

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzLine: whatever a runtime calls its containers, a line has a bound, and says the same in a file and in the journal.
func FuzzLine(f *testing.F) {
	f.Add("ADD", "net", "c1", "ns/pod", "no address left", "veth veth0", int64(1500), 11)
	f.Add("DEL", "\xff\n", strings.Repeat("ä", 300), "\"\\", "a\x00b\nc\u2028", strings.Repeat("x", 200), int64(-1), 0)
	f.Fuzz(func(t *testing.T, verb, network, container, pod, failure, step string, ms int64, code int) {
		l := Line{Time: time.Unix(1_700_000_000, 5).UTC(), Verb: verb, Plugin: "bridge", Network: network,
			Container: container, IfName: "eth0", Pod: pod, Seconds: Seconds(time.Duration(ms)), Code: code, Error: failure,
			Steps: []Step{{step, 0.25}}}
		want := l.cut()

		text := l.encode()
		if len(text) > maxLine || bytes.Count(text, []byte("\n")) != 1 || !utf8.Valid(text) {
			t.Errorf("%q", text)
		}
		var got Line
		if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is read as %+v, %v; want %+v", text, got, err, want)
		}

		got, ok := readDatagram(t, l.datagram())
		if ok != (want.Verb != "") || ok && !reflect.DeepEqual(got, want) {
			t.Errorf("%q is read as %+v, %v; want %+v", l.datagram(), got, ok, want)
		}
	})
}

// readDatagram reads a datagram as journald does, and then as the command does.
func readDatagram(t *testing.T, b []byte) (Line, bool) {
	entry := map[string]string{}
	for len(b) > 0 {
		head, rest, _ := bytes.Cut(b, []byte("\n"))
		name, value, short := strings.Cut(string(head), "=")
		if b = rest; !short {
			name = string(head)
			size := int(rest[0]) | int(rest[1])<<8 | int(rest[2])<<16
			value, b = string(rest[8:8+size]), rest[8+size+1:]
		}
		entry[name] = value
	}
	text, err := json.Marshal(entry)
	if err != nil {
		t.Fatal(err)
	}
	l, _, ok := FromJournal(text)
	return l, ok
}

// FuzzSince: a file of calls that holds anything is read once, and from where it was read there is nothing new.
func FuzzSince(f *testing.F) {
	f.Add([]byte("{\"verb\":\"ADD\",\"plugin\":\"bridge\"}\n\n{\"verb\":3}\nnull\n{\"verb\":\"DEL\"}"), 3)
	f.Add([]byte("\n"), 0)
	f.Fuzz(func(t *testing.T, content []byte, cut int) {
		if cut < 0 || cut > len(content) {
			return
		}
		const path = "/run/fuzz" // in memory
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		var all, parts []Line
		write := func(b []byte) {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		since := func(from Position, into *[]Line) Position {
			at, err := Since(path, from, func(l Line) { *into = append(*into, l) })
			if err != nil {
				t.Fatal(err)
			}
			return at
		}

		write(content[:cut])
		at := since(Position{}, &parts)
		write(content) // the same file, longer
		at = since(at, &parts)
		if after := since(at, &parts); after != at {
			t.Errorf("%q: read to %+v, and then to %+v", content, at, after)
		}
		since(Position{}, &all)
		if !reflect.DeepEqual(all, parts) {
			t.Errorf("%q in two parts at %d: %+v, want %+v", content, cut, parts, all)
		}
	})
}

// FuzzFromJournal reads what journalctl could print.
func FuzzFromJournal(f *testing.F) {
	f.Add([]byte(`{"__CURSOR":"s=1","FAIRLEAD_VERB":"ADD","FAIRLEAD_SECONDS":"0.1","FAIRLEAD_STEPS":"[]"}`))
	f.Add([]byte(`{"FAIRLEAD_VERB":"ADD","FAIRLEAD_verb":"DEL","FAIRLEAD_CODE":"","FAIRLEAD_NETWORK":[1]}`))
	f.Fuzz(func(t *testing.T, entry []byte) {
		l, _, ok := FromJournal(entry)
		if ok && (l.Verb == "" || !json.Valid(entry)) {
			t.Errorf("%q is %+v", entry, l)
		}
	})
}
