package link

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Dummy is a link of the container that leads nowhere. It can have addresses, and the kernel drops what it sends.
type Dummy struct{ Inside }

func (d Dummy) String() string { return d.words("dummy", "") }

// Traits implements resource.Describer.
func (d Dummy) Traits() resource.Traits {
	is := d.traits()
	is.Possible, is.Final = resource.KindPossible("dummy"), d.final
	return is
}

func (d Dummy) final(f spec.Interface) plan.Resource {
	d.show(f)
	return d
}

// Ensure implements plan.Resource. If a link of its name exists, Ensure always fails and leaves that link as it is
// (P10).
func (d Dummy) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	if w.Container == nil {
		return false, kernel.ErrNoNamespace
	}
	l := d.newLink("dummy")
	var err error
	if l.MAC, err = resource.MAC(d.MAC, "cont", d.Owner); err != nil {
		return false, err
	}
	err = rtnl.AddLink(w.Container, l)
	if errors.Is(err, rtnl.ErrLinkExists) {
		err = rtnl.NameTaken(d.Name)
	}
	if err == nil {
		err = rememberLink(w, d.Owner, d.Name, "dummy", nil)
	}
	return err == nil, err
}

// Verify implements plan.Resource.
func (d Dummy) Verify(ctx context.Context, w *kernel.World) error {
	_, is := d.verify(w, "dummy")
	return is.Err()
}

// Remove implements plan.Remover.
func (d Dummy) Remove(ctx context.Context, w *kernel.World) error {
	return removeOwn(w, d.Owner, d.Name, "dummy")
}
