package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The test binary plays histories, too.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == played {
		os.Exit(inHost(os.Args[2]))
	}
	os.Exit(m.Run())
}

// Histories that failed once do not fail again.
func TestFailedOnce(t *testing.T) {
	program, err := build("../../..", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(all) == 0 {
		t.Fatalf("no histories: %v", err)
	}
	for _, path := range all {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			o, err := replayFile(program, path)
			switch {
			case err != nil:
				t.Fatal(err)
			case o.Failure != nil:
				t.Error(o.Failure)
			case o.Steps < 10:
				t.Errorf("%d steps only", o.Steps)
			}
		})
	}
}

// A fault is found, made short, and found again by the short script.
func TestFindsFault(t *testing.T) {
	all := faults()
	f := all[slices.IndexFunc(all, func(f fault) bool { return f.name == "GC takes the leases of the living" })]
	program, err := build("../../..", t.TempDir(), f.edits...)
	if err != nil {
		t.Fatal(err)
	}
	var first *script
	o := options{chains: "bridge", seed: 1, number: 200, width: 4, stop: 1}
	_, err = o.searchWith(program, func(s *script, _ failure) { first = s })
	if err != nil || first == nil {
		t.Fatalf("%s: %v, %v", f.name, first, err)
	}
	short, out, err := shorten(program, first)
	if err != nil || out.Failure == nil {
		t.Fatalf("%v, of\n%s", err, first)
	}
	if len(short.turns) > len(first.turns) || len(short.actors) > len(first.actors) {
		t.Errorf("made longer:\n%s\nof\n%s", short, first)
	}
	again, err := try(program, short)
	if err != nil || again.Failure == nil || again.Failure.Law != out.Failure.Law {
		t.Errorf("again: %v, %v, want %v, of\n%s", again.Failure, err, out.Failure, short)
	}
}

// A script is read as it is written, and casts are scripts.
func TestScript(t *testing.T) {
	for seed := range uint64(200) {
		s := cast("bridge", seed)
		if seed%2 == 1 && len(s.actors) > 0 {
			s.turns = []turn{{s.actors[0].name, "write /run/cni/x 2"}, {s.actors[0].name, ""}}
			s.why = []string{"because", ""}
		}
		got, err := parse(strings.NewReader(s.String()))
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != s.String() {
			t.Errorf("read:\n%s\nwritten:\n%s", got, s)
		}
	}
	for _, text := range []string{"chain bridge\nturn add-c1", "actor x", "nonsense", "seed x"} {
		if s, err := parse(strings.NewReader(text)); err == nil {
			t.Errorf("%q is read as\n%s", text, s)
		}
	}
}

// All verbs are cast, more containers than addresses only beside a DEL, and the calls for one container follow each other.
func TestCast(t *testing.T) {
	verbs := map[string]int{}
	for seed := range uint64(2000) {
		s := cast("bridge", seed)
		last, leaves := map[string]string{}, false
		for _, a := range s.actors {
			verbs[a.verb]++
			leaves = leaves || a.verb == "del"
			if a.verb == "add" || a.verb == "del" {
				if before := last[a.object]; before != "" && a.after == "" {
					t.Errorf("seed %d: %s is beside %s:\n%s", seed, a.name, before, s)
				}
				last[a.object] = a.name
			}
		}
		if s.exceedsRoom() && !leaves {
			t.Errorf("seed %d: more containers than addresses:\n%s", seed, s)
		}
	}
	for seed := range uint64(500) {
		for _, a := range append(cast("dhcp", seed).actors, cast("cluster", seed).actors...) {
			if a.verb == daemonVerb || a.verb == agentVerb {
				verbs[a.name]++
			}
		}
	}
	for _, verb := range []string{daemonVerb, "daemon-2", "daemon-3", agentVerb, "agent-2", "add", "del", "check", "gc", "repair", "kill", "stop", "continue", "flush", "unlink", "full",
		"room", "reboot"} {
		if verbs[verb] < 20 {
			t.Errorf("%s is %d times", verb, verbs[verb])
		}
	}
}
