package plan

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/spec"
)

// Kind finds and removes what attachments have of one kind of resource, by marks in the kernel or by records. It
// needs no configuration: a Resource says what is wanted. A plugin declares its kinds, and the engine derives DEL
// and GC from them.
type Kind interface {
	// Name names the kind for people, such as "veth pair". Two kinds with the same name are the same kind.
	Name() string

	// Owners lists the attachments of a network that have something of this kind. It changes nothing. It may list an
	// attachment that has nothing any more.
	Owners(ctx context.Context, w *kernel.World, network string) ([]Tag, error)

	// Remove removes everything the attachments have of this kind, and nothing of other attachments. An object that
	// is gone counts as removed. Remove continues after an error and joins all of them.
	Remove(ctx context.Context, w *kernel.World, tags ...Tag) error
}

// Tidier is a Kind with objects that all attachments of a network share, such as the policy of a bridge.
type Tidier interface {
	Kind

	// Tidy removes shared objects that no attachment needs any more. Used reports whether the network has valid
	// attachments.
	Tidy(ctx context.Context, w *kernel.World, network string, used bool) error
}

// Tag identifies the attachment that owns an object. DEL knows the whole owner; GC knows only the mark on the
// object.
type Tag struct {
	Network string
	Hash    [8]byte    // hash of the owner, see identity.OwnerHash
	Owner   spec.Owner // zero if only the hash is known

	// Prev is the attachment's result in DEL, if the runtime sends one. It serves only to find objects of other
	// programs, which carry no mark of Fairlead.
	Prev *spec.Result

	// Found is what Owners found, for Remove of the same Kind.
	Found any

	// Could reports whether an object without a mark can belong to that attachment. It is nil if Hash identifies the
	// owner.
	Could func(spec.Owner) bool
}

// TagOf returns the Tag of an attachment.
func TagOf(o spec.Owner) Tag {
	return Tag{Network: o.Network, Hash: identity.OwnerHash(o), Owner: o}
}

// Known reports whether the whole owner is known.
func (t Tag) Known() bool { return t.Owner != spec.Owner{} }

// Remove is DEL: it removes what an attachment has of each kind, the last kind first. It continues after an error.
// Objects in a vanished namespace count as removed.
func Remove(ctx context.Context, w *kernel.World, kinds []Kind, t Tag) error {
	var errs []error
	for _, k := range slices.Backward(kinds) {
		end := Step(ctx, removing{k})
		err := k.Remove(ctx, w, t)
		if end(); err != nil && !errors.Is(err, kernel.ErrNoNamespace) {
			errs = append(errs, fmt.Errorf("%v: %w", removing{k}, err))
		}
	}
	return errors.Join(append(errs, w.Settle())...)
}

// removing is the step that removes the objects of a kind.
type removing struct{ Kind }

func (r removing) String() string { return "remove " + r.Name() }

// Collect is GC (clause P22): for each kind, it removes what attachments of the network have that are not valid, the
// last kind first. It continues after an error.
func Collect(ctx context.Context, w *kernel.World, kinds []Kind, network string, valid []spec.Owner) error {
	var errs []error
	fail := func(k Kind, err error) {
		if err != nil && !errors.Is(err, kernel.ErrNoNamespace) {
			errs = append(errs, fmt.Errorf("%v: %w", removing{k}, err))
		}
	}
	living := map[[8]byte]bool{}
	for _, o := range valid {
		living[identity.OwnerHash(o)] = true
	}
	for _, k := range slices.Backward(kinds) {
		end := Step(ctx, removing{k})
		tags, err := k.Owners(ctx, w, network)
		fail(k, err)
		tags = slices.DeleteFunc(tags, func(t Tag) bool {
			return t.Could == nil && living[t.Hash] || t.Could != nil && slices.ContainsFunc(valid, t.Could)
		})
		if len(tags) > 0 {
			fail(k, k.Remove(ctx, w, tags...))
		}
		end()
	}
	for _, k := range slices.Backward(kinds) {
		if t, ok := k.(Tidier); ok {
			fail(k, t.Tidy(ctx, w, network, len(valid) > 0))
		}
	}
	return errors.Join(append(errs, w.Settle())...)
}

// Union returns the kinds of several plugins, each kind once. It panics if two kinds of different types have one name,
// because GC would leave the objects of one of them.
func Union(of ...[]Kind) (all []Kind) {
	known := map[string]reflect.Type{}
	for _, k := range slices.Concat(of...) {
		is := reflect.TypeOf(k)
		switch as, found := known[k.Name()]; {
		case !found:
			known[k.Name()] = is
			all = append(all, k)
		case as != is:
			panic(fmt.Sprintf("two kinds are called %q: %v and %v", k.Name(), as, is))
		}
	}
	return all
}
