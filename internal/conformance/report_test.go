package conformance

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

// reports are one of each end.
func reports() []Report {
	o := func(id string, v Verdict) Outcome {
		return Outcome{Check: id, Clause: "P12", Title: "a <title> # of it", Sentence: `a "sentence"`, Verdict: v,
			Repeat: "repeat it"}
	}
	return []Report{{Subject: Subject{Type: "mine", Path: "/mine", Plugin: Plugin{Kind: Interface}}, Outcomes: []Outcome{
		o("P12/a", Verdict{Status: Pass}), o("P12/b", Verdict{Status: Skip, Reason: "no need"}),
		o("P12/c", Verdict{Status: Fail, Expected: "this", Seen: "<that>", Call: "call it"}),
		o("P12/d", Verdict{Status: Error, Reason: "no host"})}}}
}

// Each format has each outcome, and can be read by what it is for.
func TestFormats(t *testing.T) {
	text := map[string]string{}
	for name, write := range formats() {
		var b bytes.Buffer
		if err := write(&b, reports(), true); err != nil {
			t.Fatal(err)
		}
		text[name] = b.String()
	}

	for _, want := range []string{"mine: interface plugin", "ok    P12/a", "-     P12/b                  no need",
		"FAIL  P12/c", "expected  this", "seen      <that>", `clause    P12: “a "sentence"”`, "call      call it",
		"repeat    repeat it", "ERROR P12/d", "reason    no host", "1 passed, 1 failed, 1 could not be made, 1 do not apply"} {
		if !strings.Contains(text["text"], want) {
			t.Errorf("text lacks %q:\n%s", want, text["text"])
		}
	}

	var doc struct{ Reports []Report }
	if err := json.Unmarshal([]byte(text["json"]), &doc); err != nil || doc.Reports[0].Outcomes[2].Seen != "<that>" {
		t.Errorf("json: %v in %s", err, text["json"])
	}

	var suites struct {
		Suite struct {
			Tests    int `xml:"tests,attr"`
			Failures int `xml:"failures,attr"`
			Errors   int `xml:"errors,attr"`
			Skipped  int `xml:"skipped,attr"`
			Cases    []struct {
				Name    string `xml:"name,attr"`
				Failure string `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	err := xml.Unmarshal([]byte(text["junit"]), &suites)
	s := suites.Suite
	if err != nil || s.Tests != 4 || s.Failures != 1 || s.Errors != 1 || s.Skipped != 1 || len(s.Cases) != 4 ||
		!strings.Contains(s.Cases[2].Failure, "seen: <that>") {
		t.Errorf("junit: %v in %s", err, text["junit"])
	}

	for _, want := range []string{"TAP version 14\n1..4\n", "\nok 1 - mine P12/a a <title> \\# of it\n",
		"\nok 2 - mine P12/b a <title> \\# of it # SKIP no need\n", "\nnot ok 3 - ", "\n  seen: \"\\u003cthat\\u003e\"\n",
		"\nnot ok 4 - "} {
		if !strings.Contains(text["tap"], want) {
			t.Errorf("tap lacks %q:\n%s", want, text["tap"])
		}
	}
}

func TestCommandLine(t *testing.T) {
	path := programs(t, "interface", "interface-V2.echo")
	profile := profileOf(t, path)
	for _, tc := range []struct {
		args   []string
		status int
		want   string // part of the output
	}{
		{[]string{"--list", "--only", "V1"}, 0, "V1/answer"},
		{[]string{"--help"}, 0, "Exit status"},
		{nil, 2, "say what to test"},
		{[]string{"--only", "P99", "--list"}, 2, "no such clause or check"},
		{[]string{"--only", "R1", "--plugin", path[0], "--profile", profile}, 2, "no such check is for what is tested"},
		{[]string{"--jobs", "-1", "--plugin", path[0]}, 2, "--jobs -1: want 0 or more"},
		{[]string{"--timeout", "0", "--plugin", path[0]}, 2, "--timeout 0s: want more than 0"},
		{[]string{"-o", "yaml", "--list"}, 2, "want one of"},
		{[]string{"--plugin", "/nowhere"}, 2, "no such file"},
		{[]string{"--runtime", "/nowhere"}, 2, "no such file"},
		{[]string{"--plugin", path[0], "--profile", profile, "--only", "V2"}, 0, "1 passed"},
		{[]string{"--plugin", path[1], "--profile", profile, "--only", "V2"}, 1, "FAIL  V2/echo"},
		{[]string{"--plugin", path[0], "--profile", "/nowhere"}, 2, "no such file"},
		{[]string{"--plugin", "/bin/false", "--profile", profile}, 2, "and none is tested"},
		{[]string{"--plugin", "/bin/false"}, 2, "/bin/false: "},
		{[]string{"--plugin", "/bin/false", "--plugin", "/bin/true"}, 2, "ERROR recognition"},
		{[]string{"--plugin", "/bin/false", "--plugin", path[0], "--profile", profile, "--only", "V2"}, 2, "ERROR recognition"},
		{[]string{"--plugin", "/bin/false", "--plugin", path[0], "--profile", profile, "--only", "V2"}, 2, "1 passed"},
	} {
		var out bytes.Buffer
		status := Main(tc.args, &out, &out)
		if status != tc.status || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%q: status %d, %s; want %d, %q", tc.args, status, out.String(), tc.status, tc.want)
		}
	}
}

// A list that cannot be written is no success.
func TestListToFullDevice(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	var stderr bytes.Buffer
	if status := Main([]string{"--list"}, full, &stderr); status != exitError {
		t.Errorf("status %d, %s; want %d", status, &stderr, exitError)
	}
}

// What a plugin prints moves no cursor and begins no line of its own in a title.
func TestControlCharacters(t *testing.T) {
	all := reports()
	all[0].Subject.Versions = []spec.Version{"1.0.0\nok"}
	all[0].Outcomes[2].Seen = "red \x1b[31m"
	for _, name := range []string{"text", "tap"} {
		var b strings.Builder
		if err := formats()[name](&b, all, true); err != nil {
			t.Fatal(err)
		}
		if text := b.String(); strings.Contains(text, "\x1b") || strings.Contains(text, "1.0.0\n") {
			t.Errorf("%s: %q", name, text)
		}
	}
}

// Each check says what it is about, and no two have one name.
func TestCatalogue(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.ID] || c.Title == "" || c.Sentence == "" || len(c.Kinds) == 0 || c.run == nil ||
			!strings.HasPrefix(c.ID, c.Clause()+"/") {
			t.Errorf("%+v is incomplete, or its name is taken", c)
		}
		seen[c.ID] = true
	}
}

// A profile that nobody could have meant is refused.
func TestBadProfile(t *testing.T) {
	for _, text := range []string{`{"plugins":{"a":{"kinds":"ipam"}}}`, `{"plugins":{"a":{"kind":"other"}}}`,
		`{"plugins":{"a":{"reaches":["hosts"]}}}`, `{"plugins":{"a":{"skip":{"P99":""}}}}`,
		`{"plugins":{"a":{"breaks":[{"name":"b","in":"host","run":["c"]}]}}}`, `{`, `{}{}`} {
		if _, err := parseProfile([]byte(text)); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}
