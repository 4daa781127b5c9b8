package conformance

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// modelProfile is how a model is tested.
func modelProfile(kind string) Plugin {
	switch kind {
	case "interface":
		return Plugin{Kind: Interface, Conf: json.RawMessage(`{"ipam": "$ipam"}`), Layer2: true, Adopts: true,
			Capabilities: []string{"mac", "dns"}, Reaches: []string{"containers", "gateway"}}
	case "chained":
		return Plugin{Kind: Chained, Single: true, Capabilities: []string{"bandwidth"}, RuntimeConfig: json.RawMessage(`{"mac": "02:00:00:00:00:17",
			"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}`),
			Breaks: []Break{{Name: "rm " + stateDir + "/*", Run: []string{"sh", "-c", "rm " + stateDir + "/*"}}}}
	}
	return Plugin{Kind: IPAM, Capabilities: []string{"ipRanges", "ips"}}
}

// profileOf writes a profile for programs that are models.
func profileOf(t *testing.T, paths []string) string {
	t.Helper()
	p := Profile{Plugins: map[string]Plugin{}}
	for _, path := range paths {
		kind, _, _ := modelKind(filepath.Base(path))
		p.Plugins[filepath.Base(path)] = modelProfile(kind)
	}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "profile.json")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// run tests plugins and returns the reports.
func run(t *testing.T, s Settings) []Report {
	t.Helper()
	s.Limit = time.Minute
	reports, err := Run(s)
	if err != nil {
		t.Fatal(err)
	}
	return reports
}

// failures are the checks of a report that did not pass.
func failures(r Report) (ids []string) {
	for _, o := range r.Outcomes {
		if o.Status == Fail || o.Status == Error {
			ids = append(ids, o.Check)
		}
	}
	return ids
}

// The models conform, and each kind is recognised by what it does.
func TestModels(t *testing.T) {
	plugins := programs(t, "interface", "chained", "ipam")
	runtime := programs(t, "runtime")[0]
	for _, r := range run(t, Settings{Plugins: plugins, Profile: profileOf(t, plugins), Runtime: runtime}) {
		for _, o := range r.Outcomes {
			if o.Status == Fail || o.Status == Error {
				t.Errorf("%s: %s: %v", r.Subject.Type, o.Check, o.facts())
			}
		}
	}
	for _, r := range run(t, Settings{Plugins: plugins, Only: []string{"V1"}}) {
		if string(r.Subject.Kind) != r.Subject.Type {
			t.Errorf("%s is taken for %s", r.Subject.Type, r.Subject.Kind)
		}
	}
}

// brokenAs is the model whose fault a check has to find.
func brokenAs(c Check) string {
	kind := c.Kinds[0]
	switch c.ID {
	case "P20/parallel", "P22/empty":
		kind = IPAM
	case "P15/untracked", "K6/mac":
		kind = Chained
	}
	return string(kind) + "-" + strings.Replace(c.ID, "/", ".", 1)
}

// brokenRun makes checks of the model that is broken for a check.
func brokenRun(t *testing.T, c Check, only []string) Report {
	path := programs(t, brokenAs(c))[0]
	s := Settings{Only: only, Profile: profileOf(t, []string{path}), Plugins: []string{path}}
	if c.Kinds[0] == Runtime {
		s.Plugins, s.Runtime = nil, path
	}
	return run(t, s)[0]
}

// Each check finds the fault that it is for.
func TestBroken(t *testing.T) {
	found := make([]Report, len(Checks()))
	var all sync.WaitGroup
	for i, c := range Checks() {
		all.Go(func() { found[i] = brokenRun(t, c, []string{c.ID}) })
	}
	all.Wait()
	for i, c := range Checks() {
		if o := found[i].Outcomes; len(o) != 1 || o[0].Status != Fail || o[0].Expected == "" || o[0].Seen == "" {
			t.Errorf("%s does not find the fault of %s: %+v", c.ID, brokenAs(c), o)
		}
	}
}
