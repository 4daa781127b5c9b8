package engine

import (
	"context"
	"fmt"
	"time"
)

// Clock receives each step of work done with a context, and its duration.
type Clock func(took time.Duration, step func() string)

type clockKey struct{}

// Timing returns a context whose steps are reported to c.
func Timing(ctx context.Context, c Clock) context.Context {
	return context.WithValue(ctx, clockKey{}, c)
}

// Step begins a step about something. end ends it.
func Step(ctx context.Context, about fmt.Stringer) (end func()) {
	c, ok := ctx.Value(clockKey{}).(Clock)
	if !ok {
		return func() {}
	}
	began := time.Now()
	return func() { c(time.Since(began), about.String) }
}
