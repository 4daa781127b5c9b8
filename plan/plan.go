// Package plan turns a description of what should exist into what a CNI plugin is asked to do with it:
// make it, check it, undo it and remove it.
//
// A Plan is a slice. Its order is the order of creation, and removal runs backwards. There is no graph,
// no diff and no state file.
package plan

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/nft"
)

// A Resource is one thing that should exist. Its fields are the description; its methods compare them
// with, or impose them on, the kernel. A zero field is no opinion: neither set nor verified.
type Resource interface {
	// String says what should exist, on one line, in the words of ip(8) and nft(8).
	String() string

	// Ensure makes it so and reports whether anything had to change. It is all or nothing: on an
	// error it has taken back what it did.
	Ensure(context.Context, *kernel.World) (changed bool, err error)

	// Verify changes nothing and returns nil, or an error that names each field that drifted.
	Verify(context.Context, *kernel.World) error
}

// A Remover is a Resource that does not die with its link or its namespace, and so has to be removed. An
// absent thing is removed.
type Remover interface {
	Resource
	Remove(context.Context, *kernel.World) error
}

// Shared is r without an owner: made when missing, verified, never removed by an attachment.
func Shared(r Resource) Resource { return shared{r} }

// Required is somebody else's r: verified, never made, never removed. STATUS verifies these.
func Required(r Resource) Resource { return required{r} }

// Prerequisite is somebody else's r that any attachment needs. STATUS verifies it; ADD and CHECK find out by what
// stands on it, and so do not ask.
func Prerequisite(r Resource) Resource { return prerequisite{required{r}} }

// Lacking is what only a runtime could say, and has not: ADD and CHECK fail with err, before anything is changed.
// STATUS, which is asked about no container, does not.
func Lacking(err error) Resource { return lacking{err} }

// Unwrap is the resource inside Shared, Required and Prerequisite, or r itself.
func Unwrap(r Resource) Resource {
	switch w := r.(type) {
	case shared:
		return w.Resource
	case required:
		return w.Resource
	case prerequisite:
		return w.Resource
	}
	return r
}

type shared struct{ Resource } // embedding the interface hides r's Remove

func (s shared) String() string { return "shared " + s.Resource.String() }

type required struct{ Resource }

func (r required) String() string { return "required " + r.Resource.String() }

func (r required) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, r.Verify(ctx, w)
}

type prerequisite struct{ required }

type lacking struct{ err error }

func (l lacking) String() string { return "refused: " + l.err.Error() }

func (l lacking) Ensure(context.Context, *kernel.World) (bool, error) { return false, l.err }

func (l lacking) Verify(context.Context, *kernel.World) error { return l.err }

// A Plan is everything that one attachment needs, in order of creation.
type Plan []Resource

// String is the plan, a resource a line.
func (p Plan) String() string {
	var b strings.Builder
	for _, r := range p {
		fmt.Fprintln(&b, r)
	}
	return b.String()
}

// Required is the part of p that somebody else has to provide: what STATUS verifies.
func (p Plan) Required() Plan {
	var q Plan
	for _, r := range p {
		switch r.(type) {
		case required, prerequisite:
			q = append(q, r)
		}
	}
	return q
}

// Attaching is the part of p that is about one attachment: all but prerequisites. The error is that of what is Lacking.
func (p Plan) Attaching() (Plan, error) {
	var q Plan
	for _, r := range p {
		switch r := r.(type) {
		case prerequisite:
		case lacking:
			return nil, r.err
		default:
			q = append(q, r)
		}
	}
	return q, nil
}

// Verify checks every resource and joins what drifted.
func (p Plan) Verify(ctx context.Context, w *kernel.World) error {
	var errs []error
	for _, r := range p {
		end := Step(ctx, r)
		if err := r.Verify(ctx, w); err != nil {
			errs = append(errs, fmt.Errorf("%v: %w", r, err))
		}
		end()
	}
	return errors.Join(errs...)
}

// Remove removes every Remover, last first. It goes on past an error, and takes what lived in a vanished
// namespace for removed.
func (p Plan) Remove(ctx context.Context, w *kernel.World) error {
	var errs []error
	for i := len(p) - 1; i >= 0; i-- {
		r, ok := p[i].(Remover)
		if !ok {
			continue
		}
		end := Step(ctx, undoing{r})
		err := r.Remove(ctx, w)
		if end(); err != nil && !errors.Is(err, kernel.ErrNoNamespace) {
			errs = append(errs, fmt.Errorf("%v: %w", undoing{r}, err))
		}
	}
	return errors.Join(append(errs, nft.Ended(w))...)
}

// undoing is the step that removes a resource.
type undoing struct{ Resource }

func (u undoing) String() string { return "remove " + u.Resource.String() }

// A Clock is told of each step of what is done with a context, and how long it took.
type Clock func(took time.Duration, step func() string)

type clockKey struct{}

// Timing is a context whose steps are told to a clock.
func Timing(ctx context.Context, c Clock) context.Context {
	return context.WithValue(ctx, clockKey{}, c)
}

// Step begins the step that is about something, and returns what ends it.
func Step(ctx context.Context, about fmt.Stringer) (end func()) {
	c, ok := ctx.Value(clockKey{}).(Clock)
	if !ok {
		return func() {}
	}
	began := time.Now()
	return func() { c(time.Since(began), about.String) }
}

// A Tx applies plans and remembers what it changed, so that a failure takes back exactly that.
type Tx struct {
	w    *kernel.World
	done Plan // resources already ensured; two are one if they describe the same, whosever they are
	undo Plan // resources that this Tx changed, in order
}

// Begin starts a Tx on w.
func Begin(w *kernel.World) *Tx { return &Tx{w: w} }

// Apply ensures every resource of p that this Tx has not ensured yet. It stops at the first error.
func (tx *Tx) Apply(ctx context.Context, p Plan) error {
	for _, r := range p {
		if slices.ContainsFunc(tx.done, func(d Resource) bool { return reflect.DeepEqual(d, r) }) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%v: %w", r, err)
		}
		end := Step(ctx, r)
		changed, err := r.Ensure(ctx, tx.w)
		end()
		if err != nil {
			return fmt.Errorf("%v: %w", r, err)
		}
		if changed {
			tx.undo = append(tx.undo, r)
		}
		tx.done = append(tx.done, r)
	}
	return nil
}

// Rollback removes what this Tx made, last first. It takes a context of its own: the work has to be taken
// back even when the time of Apply's ran out.
func (tx *Tx) Rollback(ctx context.Context) error {
	return tx.undo.Remove(ctx, tx.w)
}
