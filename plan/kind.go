package plan

import (
	"context"

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
