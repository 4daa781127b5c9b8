package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Kind finds and removes what attachments have of one kind of resource, by the kernel's marks or by records. It knows
// nothing of what a configuration wants: that is a Resource. A plugin declares its kinds, and DEL and GC follow.
type Kind interface {
	// Name says what it is, for people: "veth pair". Two kinds of one name are one.
	Name() string

	// Owners lists the attachments of a network that have something of this kind. It changes nothing. It may list one
	// that has nothing any more.
	Owners(ctx context.Context, w *kernel.World, network string) ([]Tag, error)

	// Remove removes all that the attachments have of this kind, and nothing of another attachment. What is gone is
	// removed. It goes on past an error and joins all of them.
	Remove(ctx context.Context, w *kernel.World, tags ...Tag) error
}

// A Tidier is a Kind of which a network itself has something as well, that its attachments share: a policy of a bridge,
// say.
type Tidier interface {
	Kind

	// Tidy removes what no attachment needs any more. Used reports whether the network has valid attachments.
	Tidy(ctx context.Context, w *kernel.World, network string, used bool) error
}

// A Tag says whose a thing is. DEL knows the whole owner; GC knows what the mark on the thing says.
type Tag struct {
	Network string
	Hash    [8]byte    // of the owner, see identity.OwnerHash
	Owner   spec.Owner // the zero value where only the hash is known

	// Prev is the attachment's result in DEL, where the runtime sends one. Only what other programs have made, which
	// carries no mark of ours, is looked for by it.
	Prev *spec.Result

	// Found is what Owners found, for Remove of the same Kind.
	Found any

	// Could reports, of a thing without a mark, whether it can be that attachment's. It is nil where Hash says whose it
	// is.
	Could func(spec.Owner) bool
}

// TagOf is the Tag of an attachment.
func TagOf(o spec.Owner) Tag {
	return Tag{Network: o.Network, Hash: identity.OwnerHash(o), Owner: o}
}

// Known reports whether the whole owner is known.
func (t Tag) Known() bool { return t.Owner != spec.Owner{} }

// Remove is DEL: what an attachment has of each kind is removed, the last kind first. It goes on past an error, and
// takes what lived in a vanished namespace for removed.
func Remove(ctx context.Context, w *kernel.World, kinds []Kind, t Tag) error {
	var errs []error
	for _, k := range slices.Backward(kinds) {
		end := Step(ctx, removing{k})
		err := k.Remove(ctx, w, t)
		if end(); err != nil && !errors.Is(err, kernel.ErrNoNamespace) {
			errs = append(errs, fmt.Errorf("%v: %w", removing{k}, err))
		}
	}
	return errors.Join(append(errs, nft.Ended(w))...)
}

// removing is the step that removes what is of a kind.
type removing struct{ Kind }

func (r removing) String() string { return "remove " + r.Name() }

// Collect is GC (clause P22): of each kind, what the attachments of the network have that are not valid is removed, the
// last kind first. It goes on past an error.
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
	return errors.Join(append(errs, nft.Ended(w))...)
}

// Union is every kind of several plugins, once.
func Union(of ...[]Kind) (all []Kind) {
	known := map[string]bool{}
	for _, kinds := range of {
		for _, k := range kinds {
			if !known[k.Name()] {
				known[k.Name()] = true
				all = append(all, k)
			}
		}
	}
	return all
}
