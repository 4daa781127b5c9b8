package nstest

import (
	"context"
	"testing"
	"time"
)

// never is how long a test waits for one thing at most. No load makes a machine so slow: what has not come by then does
// not come at all.
const never = 10 * time.Minute

// Deadline is when a test gives up one thing that it begins to wait for now. That is in any case a little before
// -timeout ends the test binary, so that it still says what did not come.
func Deadline(t testing.TB) time.Time {
	const forWords = 20 * time.Second
	left := never
	if bound, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if end, ok := bound.Deadline(); ok {
			left = min(left, max(time.Until(end)-forWords, time.Until(end)/2))
		}
	}
	return time.Now().Add(left)
}

// Patience is the time until the Deadline of what a test begins to wait for now.
func Patience(t testing.TB) time.Duration { return time.Until(Deadline(t)) }

// Context ends with the test, or at its Deadline.
func Context(t testing.TB) context.Context {
	ctx, stop := context.WithDeadline(t.Context(), Deadline(t))
	t.Cleanup(stop)
	return ctx
}
