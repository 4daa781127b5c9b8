package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// tested are the plugins of the tables, one of each kind and those of the usual list.
func tested() []string { return []string{"bridge", "macvlan", "host-local", "portmap", "tuning"} }

// debian are the reference's plugins, as Debian packages them.
const debian = "/usr/lib/cni"

// cnitoolVersion is that of the Go module that cnitool is built from.
const cnitoolVersion = "v1.3.1"

// table is the reports as text: for each subject its checks, and what became of them.
func table(reports []Report) string {
	var b strings.Builder
	for _, r := range reports {
		fmt.Fprintf(&b, "# %s\n", r.Subject.Type)
		for _, o := range r.Outcomes {
			fmt.Fprintf(&b, "%-22s %s\n", o.Check, o.Status)
		}
	}
	return b.String()
}

// someChecks are the IDs of a sample: other people's programs do not change when this tree does.
func someChecks(t *testing.T) (ids []string) {
	t.Helper()
	all := Checks()
	for _, c := range nstest.Some(t, 4, all) {
		ids = append(ids, c.ID)
	}
	if *update && len(ids) < len(all) {
		t.Fatal("-update needs all checks, so no FAIRLEAD_RUN in the environment")
	}
	return ids
}

// linesOf is a table without what became of other checks.
func linesOf(ids []string, table string) string {
	var kept strings.Builder
	for line := range strings.Lines(table) {
		check, _, _ := strings.Cut(line, " ")
		if check == "#" || slices.Contains(ids, check) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// golden compares a table of those checks, or of all, with testdata/tables, or writes it there.
func golden(t *testing.T, name string, reports []Report, checks ...string) {
	t.Helper()
	for i := range reports {
		reports[i].Subject.Type, _, _ = strings.Cut(reports[i].Subject.Type, "-runtime")
	}
	file, got := filepath.Join("testdata/tables", name+".txt"), table(reports)
	if *update {
		err := errors.Join(os.MkdirAll("testdata/tables", 0o755), os.WriteFile(file, []byte(got), 0o644))
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	if len(checks) > 0 {
		want = linesOf(checks, want)
	}
	if strings.Count(got, "\n") == strings.Count(got, "#") {
		t.Errorf("none of the checks %q is for these programs", checks)
	}
	if got != want {
		for _, r := range reports {
			for _, o := range r.Outcomes {
				if o.Status == Fail || o.Status == Error {
					t.Logf("%s: %s: %v", r.Subject.Type, o.Check, o.facts())
				}
			}
		}
		t.Errorf("%s is\n%swant\n%s(-update writes it)", file, got, want)
	}
}

// Fairlead's plugins pass all checks, one by one and as a list in one process, and so does its runtime.
func TestFairlead(t *testing.T) {
	under := append(tested(), "chain")
	all := programs(t, append(under, "firewall", "fairlead")...) // firewall is part of the chain
	t.Setenv("PATH", filepath.Dir(all[0])+":"+os.Getenv("PATH"))
	reports := run(t, Settings{Plugins: all[:len(under)], Runtime: "testdata/fairlead-runtime"})
	for _, r := range reports {
		if ids := failures(r); len(ids) > 0 {
			t.Errorf("%s fails %q", r.Subject.Type, ids)
		}
	}
	golden(t, "fairlead", reports)
}

// A plugin may leave the interface down, which has no room for a route, and progress is told.
func TestLinkDown(t *testing.T) {
	conf := json.RawMessage(`{"bridge":"down0","disableContainerInterface":true}`)
	settings := Settings{
		Plugins: programs(t, "bridge"), Only: []string{"P16"},
		Profile: fileOf(t, Profile{Plugins: map[string]Plugin{"bridge": {Kind: Interface, Conf: conf, Layer2: true}}}),
	}
	var progress []int
	settings.Progress = func(made, of int) { progress = append(progress, made, of) }
	outcomes := run(t, settings)[0].Outcomes
	i := slices.IndexFunc(outcomes, func(o Outcome) bool { return o.Check == "P16/route" })
	if i < 0 || outcomes[i].Status != Skip {
		t.Errorf("%+v, want P16/route to be skipped", outcomes)
	}
	if n := len(outcomes); len(progress) != 2*n || !slices.Equal(progress[2*n-2:], []int{n, n}) {
		t.Errorf("progress is %d of %d checks", progress, n)
	}
}

// The reference's plugins do what they did: their table changes only if a check does.
func TestDebian(t *testing.T) {
	nstest.NeedProgram(t, debian+"/bridge")
	var paths []string
	for _, name := range tested() {
		paths = append(paths, filepath.Join(debian, name))
	}
	checks := someChecks(t)
	golden(t, "debian", run(t, Settings{Plugins: paths, Only: checks}), checks...)
}

// The reference's runtime does what it did.
func TestCnitool(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cnitool")
	cmd := exec.Command("go", "install", "github.com/containernetworking/cni/cnitool@"+cnitoolVersion)
	cmd.Dir = dir // outside of this module
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=-mod=mod")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Log(string(out))
		nstest.NeedProgram(t, path) // where Go's proxy is not reached
	}
	checks := someChecks(t)
	golden(t, "cnitool", run(t, Settings{Runtime: path, Only: checks}), checks...)
}

// A plugin in thirty lines of shell passes.
func TestMock(t *testing.T) {
	nstest.NeedProgram(t, "jq")
	checks := someChecks(t)
	reports := run(t, Settings{Plugins: []string{"testdata/mock"}, Only: checks})
	if got := reports[0].Subject.Kind; got != Chained {
		t.Errorf("the mock is taken for a plugin of the kind %s", got)
	}
	if ids := failures(reports[0]); len(ids) > 0 {
		t.Errorf("the mock fails %q", ids)
	}
	golden(t, "mock", reports, checks...)
}

// tables are the tables of testdata, by their names.
func tables(t *testing.T) map[string]map[string]map[string]Status {
	t.Helper()
	all := map[string]map[string]map[string]Status{}
	for _, name := range []string{"fairlead", "debian", "cnitool", "mock"} {
		b, err := os.ReadFile(filepath.Join("testdata/tables", name+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = map[string]map[string]Status{}
		subject := ""
		for line := range strings.Lines(string(b)) {
			words := strings.Fields(line)
			if words[0] == "#" {
				subject = words[1]
				all[name][subject] = map[string]Status{}
				continue
			}
			all[name][subject][words[0]] = Status(words[1])
		}
	}
	return all
}

// cell is what became of a check with all subjects of a table: those that failed it, or that it passed.
func cell(table map[string]map[string]Status, check string) string {
	var failed []string
	passed := false
	for subject, outcomes := range table {
		switch outcomes[check] {
		case Fail, Error:
			failed = append(failed, subject)
		case Pass:
			passed = true
		}
	}
	slices.Sort(failed)
	switch {
	case len(failed) > 0:
		return "fails: " + strings.Join(failed, ", ")
	case passed:
		return "passes"
	}
	return "-"
}
