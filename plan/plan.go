// Package plan is the engine: it takes a description of what should exist, and makes it (ADD), compares it (CHECK),
// rolls it back and removes it (DEL, GC).
//
// A Plan is a slice, in the order of creation. Removal goes backwards. There is no graph, no diff and no state file.
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
)

// Resource is one object that should exist. Its fields describe the object; its methods compare the kernel with the
// fields or change it. A zero field is neither set nor verified.
type Resource interface {
	// String describes the resource on one line, in the words of ip(8) and nft(8).
	String() string

	// Ensure makes the object as described, and reports whether it changed anything. It is atomic: on an error it
	// has undone its own changes.
	Ensure(context.Context, *kernel.World) (changed bool, err error)

	// Verify compares without changes. It returns nil, or an error that names each field that differs.
	Verify(context.Context, *kernel.World) error
}

// Remover is a Resource that outlives its link and namespace, so that DEL has to remove it. A missing object counts
// as removed.
type Remover interface {
	Resource
	Remove(context.Context, *kernel.World) error
}

// Requirement is an object that others provide. It is verified, and never made or removed.
type Requirement interface {
	String() string
	Verify(context.Context, *kernel.World) error
}

// Shared returns r without an owner: made if missing, verified, never removed by an attachment.
func Shared(r Resource) Resource { return shared{r} }

// Required returns r as a resource. Ensure fails if the requirement is not met. STATUS verifies it, too.
func Required(r Requirement) Resource { return required{r} }

// Prerequisite returns r as a resource that every attachment needs. STATUS verifies it. ADD and CHECK do not, because
// resources that depend on it fail without it.
func Prerequisite(r Requirement) Resource { return prerequisite{required{r}} }

// Lacking stands for a value that only the runtime can give, and has not given: ADD and CHECK fail with err before
// any change. STATUS does not fail, because it concerns no container.
func Lacking(err error) Resource { return lacking{err} }

// Unwrap returns what is inside Shared, Required and Prerequisite, or r itself.
func Unwrap(r Resource) Requirement {
	switch w := r.(type) {
	case shared:
		return w.Resource
	case required:
		return w.Requirement
	case prerequisite:
		return w.Requirement
	}
	return r
}

// IsShared reports whether attachments share r: see [Shared].
func IsShared(r Resource) bool {
	_, is := r.(shared)
	return is
}

type shared struct{ Resource } // embedding the interface hides r's Remove

func (s shared) String() string { return "shared " + s.Resource.String() }

type required struct{ Requirement }

func (r required) String() string { return "required " + r.Requirement.String() }

func (r required) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, r.Verify(ctx, w)
}

type prerequisite struct{ required }

type lacking struct{ err error }

func (l lacking) String() string { return "refused: " + l.err.Error() }

func (l lacking) Ensure(context.Context, *kernel.World) (bool, error) { return false, l.err }

func (l lacking) Verify(context.Context, *kernel.World) error { return l.err }

// Plan is everything that one attachment needs, in the order of creation.
type Plan []Resource

// String returns the plan with one resource per line.
func (p Plan) String() string {
	var b strings.Builder
	for _, r := range p {
		fmt.Fprintln(&b, r)
	}
	return b.String()
}

// Required returns the part of p that others have to provide, which STATUS verifies.
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

// Attaching returns the part of p that concerns one attachment: all except prerequisites. The error is that of a
// Lacking value.
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

// Verify verifies every resource and joins the errors.
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

// Remove removes every Remover, the last first. It continues after an error. Objects in a vanished namespace count
// as removed.
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
	return errors.Join(append(errs, w.Settle())...)
}

// undoing is the step that removes a resource.
type undoing struct{ Resource }

func (u undoing) String() string { return "remove " + u.Resource.String() }

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

// Tx applies plans and records what it changed, so that Rollback undoes exactly that.
type Tx struct {
	w    *kernel.World
	done Plan // resources already ensured; two with the same description are the same, whichever attachment owns them
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

// Rollback removes what this Tx made, the last first. It gets a context of its own, because it must finish even if
// Apply ran out of time.
func (tx *Tx) Rollback(ctx context.Context) error {
	return tx.undo.Remove(ctx, tx.w)
}
