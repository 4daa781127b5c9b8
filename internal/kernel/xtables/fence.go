package xtables

import (
	"context"
	"errors"
)

// ErrPassedBy means that nothing was changed, because the lock under which the table was read is lost.
var ErrPassedBy = errors.New("another process has passed this one by while it was stopped")

type fenceKey struct{}

// Fenced returns a context with which tables are changed only as long as lost returns false.
func Fenced(ctx context.Context, lost func() bool) context.Context {
	return context.WithValue(ctx, fenceKey{}, lost)
}

func fence(ctx context.Context) error {
	if lost, ok := ctx.Value(fenceKey{}).(func() bool); ok && lost() {
		return ErrPassedBy
	}
	return nil
}
