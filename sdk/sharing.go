package sdk

import (
	"context"
	"sync"

	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Sharing is what the CHECKs of one command have in common that Here answers: the host's namespace with its sockets,
// and the settings of the node. Each is opened or read once.
type Sharing struct {
	Host    *kernel.World
	setting func() (calls.Setting, error)
}

// Share returns a Sharing of a host, which the caller closes.
func Share(host *kernel.World) *Sharing {
	return &Sharing{host, sync.OnceValues(calls.ReadFile)}
}

// Open returns the host with the container of o at netns. The caller closes only the container.
func (s *Sharing) Open(o spec.Owner, netns string) (*kernel.World, error) {
	return restore.OpenContainer(s.Host, o, netns)
}

// In returns a context in which Here answers CHECK of the container in w, which Open opened, without opening its
// namespace for each plugin. The caller closes w.Container after the last CHECK. If w is nil, each CHECK opens its
// namespaces.
func (s *Sharing) In(ctx context.Context, w *kernel.World) context.Context {
	return context.WithValue(ctx, sharingKey{}, shared{w, s.setting})
}

type sharingKey struct{}

type shared struct {
	w       *kernel.World
	setting func() (calls.Setting, error)
}

// sharedIn returns what calls with ctx share; nothing if they share nothing.
func sharedIn(ctx context.Context) shared {
	of, _ := ctx.Value(sharingKey{}).(shared)
	return of
}

// enter opens the World of a call. Leave closes what was opened for this call alone.
func (s *site) enter(ctx context.Context, e environment) (leave func()) {
	if w := sharedIn(ctx).w; w != nil && e.here && e.Command == "CHECK" && w.Container.Path == e.Netns {
		s.w = &kernel.World{Host: w.Host, Container: w.Container, Store: w.Store}
		return func() {}
	}
	s.w = kernel.NewWorld(nil)
	return s.w.Close
}
