package agent

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Meter counts what the cluster sends.
type Meter interface {
	Bytes() int64
	Last() time.Time
}

// counts are what an agent counts.
type counts struct {
	corrected atomic.Int64        // differences in the kernel
	policies  atomic.Pointer[int] // nil: unknown
	failure   atomic.Pointer[apiFailure]

	mu        sync.Mutex
	sampled   time.Time // when bytes were read
	bytes     int64
	perMinute int64
}

// An apiFailure is the last attempt to reach the API server that failed.
type apiFailure struct {
	at    time.Time
	cause error
}

// SetFailure says why the source of the nodes does not answer, or not as it should. The log says so when the cause changes; the
// status until it answers.
func (a *Agent) SetFailure(cause error) {
	former := a.counts.failure.Swap(&apiFailure{time.Now(), cause})
	if former == nil || former.cause.Error() != cause.Error() {
		what := a.Source.String() + " cannot be used"
		if directory.OfThisHost(cause) {
			what = "a file of this host cannot be read or written"
		}
		a.Log.Error(what+"; the agent tries again, and containers keep their ways", "cause", cause)
	}
}

// sample reads the meter once a minute.
func (c *counts) sample(now time.Time, m Meter) {
	if m == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	elapsed := now.Sub(c.sampled)
	if !c.sampled.IsZero() && elapsed < every {
		return
	}
	bytes := m.Bytes()
	if !c.sampled.IsZero() {
		c.perMinute = int64(float64(bytes-c.bytes) / elapsed.Minutes())
	}
	c.sampled, c.bytes = now, bytes
}

// Answered says that the source of the nodes answers again.
func (a *Agent) Answered() { a.counts.failure.Store(nil) }

// describe adds to a status what was counted.
func (c *counts) describe(s *agentstatus.Status, m Meter, of Source) {
	s.Policies = c.policies.Load()
	if f := c.failure.Load(); f != nil && (m == nil || !m.Last().After(f.at)) {
		s.Problems = append(s.Problems, agentstatus.Problem{Kind: agentstatus.APISilent, Text: of.silent(f.cause, s.Network)})
	}
	if m == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.API = agentstatus.API{Bytes: m.Bytes(), PerMinute: c.perMinute, Last: m.Last()}
}

// correctedOf returns how many of the differences that were found did not stay as errors.
func correctedOf(found spec.Differences, err error) int {
	stayed := 0
	for _, d := range spec.DifferencesIn(err) {
		if slices.ContainsFunc(found, func(f spec.Difference) bool { return f.Resource == d.Resource && f.Field == d.Field }) {
			stayed++
		}
	}
	return max(len(found)-stayed, 0)
}

// SetPolicies says how many NetworkPolicy objects there are. The log warns when the first one comes.
func (a *Agent) SetPolicies(n int, known bool) {
	former := a.counts.policies.Load()
	if !known {
		a.counts.policies.Store(nil)
		a.Log.Info("the number of NetworkPolicy objects is unknown: the agent may not list and watch networkpolicies")
		return
	}
	a.counts.policies.Store(&n)
	if n > 0 && (former == nil || *former == 0) {
		a.Log.Warn("nothing enforces the NetworkPolicy objects of this cluster", "policies", n)
	}
}
