package nstest

import (
	"context"
	"testing"
	"time"
)

// Deadline is when a test gives up what it waits for: a little before -timeout ends the test binary, so that it still
// says what did not come. No other bound is right: a machine may be as slow as it likes.
func Deadline(t testing.TB) time.Time {
	const forWords = 20 * time.Second
	bound, ok := t.(interface{ Deadline() (time.Time, bool) })
	if !ok {
		return time.Now().Add(time.Hour)
	}
	end, ok := bound.Deadline()
	if !ok {
		return time.Now().Add(24 * time.Hour)
	}
	return end.Add(-min(forWords, time.Until(end)/2))
}

// Context ends with the test, or at its Deadline.
func Context(t testing.TB) context.Context {
	ctx, stop := context.WithDeadline(t.Context(), Deadline(t))
	t.Cleanup(stop)
	return ctx
}
