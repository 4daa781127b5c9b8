package sdk

import (
	"context"
	"sync"

	"github.com/fairlead-cni/fairlead/calls"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Sharing is what the CHECKs of one command have in common that Here answers: the host's namespace with its sockets,
// and the settings of the node. Each is opened or read once.
type Sharing struct {
	host    *kernel.World
	setting func() (calls.Setting, error)
}

// Share opens a Sharing.
func Share() (*Sharing, error) {
	host, err := OpenHost()
	if err != nil {
		return nil, err
	}
	return &Sharing{host, sync.OnceValues(calls.ReadFile)}, nil
}

// Close closes what Share opened.
func (s *Sharing) Close() { s.host.Close() }

// Host returns the host's namespace, as a World without a container.
func (s *Sharing) Host() *kernel.World { return s.host }

// Open is OpenContainer with the host's namespace of s.
func (s *Sharing) Open(o spec.Owner, netns string) (*kernel.World, error) {
	return restore.OpenContainer(s.host, o, netns)
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
	s.w = newWorld()
	return s.w.Close
}
