package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFindingKinds holds the table of findings against what doctor says, and each finding against a drill.
func TestFindingKinds(t *testing.T) {
	read := func(pattern string) (all string) {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", pattern, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all += string(b)
		}
		return all
	}
	var said []string
	for _, m := range regexp.MustCompile(`d\.add\("([a-z-]+)"`).FindAllStringSubmatch(read("doctor*.go"), -1) {
		said = append(said, m[1])
	}
	drills := read("testdata/script/doctor*.txtar") + read("doctor_test.go")
	undrilled := []string{"bridge-changed", "host-interface-changed", "container-interface-changed", "cache-unreadable",
		"host-state-differs", "container-state-differs", "attachment-broken", "del-unfinished", "accepts-missing",
		"range-near", "reference-rules-missing"}
	var known []string
	for _, k := range findingKinds() {
		if slices.Contains(known, k.id) {
			t.Errorf("%s is there twice", k.id)
		}
		known = append(known, k.id)
		if !slices.Contains(said, k.id) {
			t.Errorf("%s is in the table, and never said", k.id)
		}
		if k.what == "" || k.why == "" || k.mend == "" || strings.HasSuffix(k.what, ".") || !strings.HasSuffix(k.why, ".") {
			t.Errorf("%s: %q %q %q", k.id, k.what, k.why, k.mend)
		}
		if drilled := strings.Contains(drills, " "+k.id+" ") || strings.Contains(drills, " "+k.id+"'") ||
			strings.Contains(drills, " "+k.id+":"); drilled == slices.Contains(undrilled, k.id) {
			t.Errorf("%s: drilled is %v, and the list of those without a drill says otherwise", k.id, drilled)
		}
	}
	for _, id := range said {
		if !slices.Contains(known, id) {
			t.Errorf("%s is said, and not in the table", id)
		}
	}
}

// TestConntrack is the drill of the table of connections, whose size belongs to the machine.
func TestConntrack(t *testing.T) {
	for _, tc := range []struct{ count, most, want string }{
		{"10", "100", ""},
		{"95", "100", "warning conntrack-near : 95 of 100 connections: sysctl -w net.netfilter.nf_conntrack_max=200"},
		{"100", "100", "fault conntrack-full : 100 of 100 connections: sysctl -w net.netfilter.nf_conntrack_max=200"},
	} {
		dir := t.TempDir() + "/"
		for name, value := range map[string]string{"nf_conntrack_count": tc.count, "nf_conntrack_max": tc.most} {
			if err := os.WriteFile(dir+name, []byte(value+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		d := doctor{diagnosis: &diagnosis{}}
		d.conntrack(dir)
		got := ""
		for _, f := range d.Findings {
			got += f.Severity + " " + f.ID + " : " + f.What + ": " + f.Mend
		}
		if got != tc.want {
			t.Errorf("%s of %s: %q, want %q", tc.count, tc.most, got, tc.want)
		}
	}
	d := doctor{diagnosis: &diagnosis{}}
	d.conntrack(t.TempDir() + "/") // no module, no connections
	if len(d.Findings)+len(d.Unseen) > 0 {
		t.Errorf("%v %v", d.Findings, d.Unseen)
	}
}
