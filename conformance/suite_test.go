package conformance

import (
	"strings"
	"testing"
	"time"
)

// run tests plugins and returns the reports.
func run(t *testing.T, s Settings) []Report {
	t.Helper()
	s.Limit = time.Minute
	reports, err := Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return reports
}

// Fairlead's plugins pass all checks.
func TestFairlead(t *testing.T) {
	for _, r := range run(t, Settings{Plugins: programs(t, "bridge", "ptp")}) {
		for _, o := range r.Outcomes {
			if o.Status != Pass && o.Status != Skip {
				t.Errorf("%s: %s: expected %s, saw %s %s\n%s", r.Subject.Type, o.Check, o.Expected, o.Seen, o.Reason, o.Call)
			}
		}
	}
}

// A plugin that misses a clause is found by the check for it, and the report says what to do.
func TestBroken(t *testing.T) {
	reports := run(t, Settings{Plugins: []string{"testdata/deaf"}, Profile: "testdata/deaf.json"})
	var b strings.Builder
	People(&b, reports, false)
	if got := b.String(); !strings.Contains(got, "FAIL  V3/unspoken") || !strings.Contains(got, "1 failed") {
		t.Errorf("%s", got)
	}
}
