package conformance

import (
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

// Fairlead's plugins pass all checks, one by one and as a list in one process.
func TestFairlead(t *testing.T) {
	plugins := programs(t, "bridge", "ptp", "host-local", "static", "portmap", "firewall", "tuning", "bandwidth",
		"chain")
	for _, r := range run(t, Settings{Plugins: plugins}) {
		for _, o := range r.Outcomes {
			if o.Status == Fail || o.Status == Error {
				t.Errorf("%s: %s: %v", r.Subject.Type, o.Check, o.facts())
			}
		}
	}
}
