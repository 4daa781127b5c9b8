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

// Effect implements PacketRule.
func (SpoofCheck) Effect() Effect { return Closes }

// Effect implements PacketRule.
func (Masquerade) Effect() Effect { return Opens }

// Effect implements PacketRule. What is published to some only lets these in with the transaction that publishes it.
func (Publish) Effect() Effect { return Opens }

// A Mender is a resource whose part on the host can be made whole while the container lives: Mend changes
// nothing in the container, and nothing that is as it should be.
type Mender interface {
	plan.Resource
	Mend(context.Context, *kernel.World) (changed bool, err error)
}

// Mend implements Mender.
func (b Bridge) Mend(ctx context.Context, w *kernel.World) (bool, error) { return b.Ensure(ctx, w) }

// Mend implements Mender.
func (g Gateway) Mend(ctx context.Context, w *kernel.World) (bool, error) { return g.Ensure(ctx, w) }

// Mend implements Mender.
func (f Forwarding) Mend(ctx context.Context, w *kernel.World) (bool, error) { return f.Ensure(ctx, w) }

// Mend implements Mender.
func (p Port) Mend(ctx context.Context, w *kernel.World) (bool, error) { return p.Ensure(ctx, w) }
