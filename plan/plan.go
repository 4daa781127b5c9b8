// Package plan has the words for what should exist: resources, in a Plan, and kinds, which find and remove what
// attachments have. It does nothing.
//
// A Plan is a slice, in the order of creation. Removal goes backwards. There is no graph, no diff and no state file.
package plan

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

// Shared returns the part of p that attachments share: see [Shared].
func (p Plan) Shared() Plan {
	return slices.DeleteFunc(slices.Clone(p), func(r Resource) bool { _, is := r.(shared); return !is })
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
