package shape

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/internal/kernel/tc"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// NoLimit is a link that the owner does not limit in one direction. Ensure has work only if an earlier ADD has set a
// limit. A link that does not exist has no limit.
type NoLimit struct {
	Owner    spec.Owner
	Where    resource.Where
	Link     string
	Incoming bool // what comes in by the link; else what it sends
}

func (n NoLimit) String() string {
	if n.Incoming {
		return "filter dev " + n.Where.String() + n.Link + " ingress none of ours"
	}
	return "qdisc dev " + n.Where.String() + n.Link + " root none of ours"
}

// Traits implements resource.Describer.
func (NoLimit) Traits() resource.Traits { return resource.Traits{Clears: true} }

// Ensure implements plan.Resource.
func (n NoLimit) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	what, err := n.limited(w)
	if what == "" || err != nil {
		return false, err
	}
	if !n.Incoming {
		return true, Qdisc{Owner: n.Owner, Where: n.Where, Link: n.Link}.Remove(ctx, w)
	}
	return true, errors.Join(Redirect{Owner: n.Owner, Where: n.Where, Link: n.Link}.Remove(ctx, w),
		IFB{Owner: n.Owner, Where: n.Where}.Remove(ctx, w))
}

// Verify implements plan.Resource.
func (n NoLimit) Verify(_ context.Context, w *kernel.World) error {
	what, err := n.limited(w)
	if err == nil && what != "" {
		err = spec.DiffersBy(what, "%s is there, and no limit is configured", what)
	}
	return err
}

// limited returns what limits the link nevertheless, or "".
func (n NoLimit) limited(w *kernel.World) (string, error) {
	if n.Incoming {
		_, l, err := ifb(w, n.Where, n.Owner)
		if err != nil {
			return "", resource.ExceptNoLink(err)
		}
		return l.Name, nil
	}
	ns, i, err := n.Where.Index(w, n.Link)
	if err != nil {
		return "", resource.ExceptNoLink(err)
	}
	q, err := tc.QdiscAt(ns, i, tc.Root)
	if err != nil || q == nil || !ours(q) {
		return "", resource.ExceptNoLink(err)
	}
	return "qdisc " + q.Kind, nil
}
