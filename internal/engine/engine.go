// Package engine does what a plan describes: it makes it (ADD), compares it (CHECK), rolls it back, and removes what
// attachments have of each kind (DEL, GC). It knows no kind of resource.
package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
)

// Tx applies plans and records what it changed, so that Rollback undoes exactly that.
type Tx struct {
	w    *kernel.World
	done plan.Plan // ensured already; two with the same description are the same, whichever attachment owns them
	undo plan.Plan // resources that this Tx changed, in order
}

// Begin starts a Tx on w.
func Begin(w *kernel.World) *Tx { return &Tx{w: w} }

// Apply ensures every resource of p that this Tx has not ensured yet. It stops at the first error.
func (tx *Tx) Apply(ctx context.Context, p plan.Plan) error {
	for _, r := range p {
		if slices.ContainsFunc(tx.done, func(d plan.Resource) bool { return reflect.DeepEqual(d, r) }) {
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
func (tx *Tx) Rollback(ctx context.Context) error { return Undo(ctx, tx.w, tx.undo) }

// Verify verifies every resource of p and joins the errors.
func Verify(ctx context.Context, w *kernel.World, p plan.Plan) error {
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

// Undo removes every Remover of p, the last first. It continues after an error. Objects in a vanished namespace count
// as removed.
func Undo(ctx context.Context, w *kernel.World, p plan.Plan) error {
	var errs failures
	for _, r := range slices.Backward(p) {
		if r, ok := r.(plan.Remover); ok {
			errs.step(ctx, removing(r.String), func() error { return r.Remove(ctx, w) })
		}
	}
	return errs.end(w)
}

// failures are the errors of a removal. What was in a vanished namespace counts as removed.
type failures []error

// step makes one step of a removal.
func (f *failures) step(ctx context.Context, about fmt.Stringer, remove func() error) {
	end := Step(ctx, about)
	err := remove()
	end()
	f.add(about, err)
}

func (f *failures) add(about fmt.Stringer, err error) {
	if err != nil && !errors.Is(err, kernel.ErrNoNamespace) {
		*f = append(*f, fmt.Errorf("%v: %w", about, err))
	}
}

func (f failures) end(w *kernel.World) error { return errors.Join(append(f, w.Finish())...) }

// removing is the step that removes what has a name.
type removing func() string

func (r removing) String() string { return "remove " + r() }
