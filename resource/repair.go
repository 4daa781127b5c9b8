package resource

import (
	"context"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
)

// A PacketRule is a resource that is gone when somebody flushes or reloads the host's packet filter: it stands
// there, or in what works together with it. A kind says of itself that it is one. Repair ensures the rules of a
// plan, and in the end they are as CHECK wants them; a rule's Ensure therefore never touches the container and
// may be called at any time in the attachment's life.
type PacketRule interface {
	plan.Resource
	Effect() Effect
}

// An Effect is what a rule does to packets. Those that keep them out are restored before any that let them in.
type Effect int

// What keeps packets out, and by itself lets none in, Closes; all else Opens.
const (
	Closes Effect = iota + 1
	Opens
)

// Beyond is a difference that neither Mend nor a rule's Ensure makes good: it lies in the container.
type Beyond struct{ Err error }

func (b Beyond) Error() string { return b.Err.Error() }

// Unwrap has errors.Is find the cause.
func (b Beyond) Unwrap() error { return b.Err }

// A Follower is a resource whose differences on the host follow from those of the links before it, and go with them.
type Follower interface {
	plan.Resource
	Follows()
}

// A Mender is a resource whose part on the host can be made whole while the container lives: Mend changes
// nothing in the container, and nothing that is as it should be.
type Mender interface {
	plan.Resource
	Mend(context.Context, *kernel.World) (changed bool, err error)
}
