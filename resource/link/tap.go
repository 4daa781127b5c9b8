package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/fairlead-cni/fairlead/internal/kernel/tap"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A Tap is a link of the container for a program that opens it, such as a hypervisor. It carries no packets until
// then.
type Tap struct {
	Inside
	MultiQueue bool    // the program may open it several times, for as many processors
	User       *uint32 // the numbers of who may open it; nil: each user
	Group      *uint32
	Bridge     string // in the container, that it is a port of
	Label      string // SELinux context that it is made in
}

func (t Tap) String() string {
	own := resource.Line(resource.Flag("multi_queue", t.MultiQueue), number("user", t.User), number("group", t.Group))
	return t.words("tap", own, resource.Flag("master cont/"+t.Bridge, t.Bridge != ""), resource.Opt("selinux", t.Label))
}

// number is "name n", or nothing where there is none: zero is root.
func number(name string, n *uint32) string {
	if n == nil {
		return ""
	}
	return name + " " + strconv.FormatUint(uint64(*n), 10)
}

// Traits implements resource.Describer.
func (t Tap) Traits() resource.Traits {
	is := t.traits()
	is.Final = t.final
	return is
}

func (t Tap) final(f spec.Interface) plan.Resource {
	t.show(f)
	return t
}

// Ensure implements plan.Resource. If a link of its name exists, Ensure always fails and leaves that link as it is
// (P10).
func (t Tap) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	if w.Container == nil {
		return false, kernel.ErrNoNamespace
	}
	c := rtnl.LinkChange{MTU: t.MTU, Group: new(identity.LinkGroup(t.Owner.Network)), Alias: identity.Tag(t.Owner),
		Up: !t.Down}
	var err error
	if c.MAC, err = resource.MAC(t.MAC, "cont", t.Owner); err != nil {
		return false, err
	}
	if t.Bridge != "" {
		br, err := t.bridge(w)
		if err != nil {
			return false, err
		}
		c.Master = br.Index
	}
	err = tap.Add(w.Container, tap.Device{Name: t.Name, MultiQueue: t.MultiQueue, Owner: t.User, Group: t.Group,
		Label: t.Label}, func() error {
		return rtnl.SetLink(w.Container, t.Name, c)
	})
	switch {
	case errors.Is(err, rtnl.ErrLinkExists):
		return false, rtnl.NameTaken(t.Name)
	case errors.Is(err, tap.ErrLabel):
		return false, spec.Errorf(spec.CodeConfig,
			"selinuxContext: %q: %w; want one of this host's policy that this program may be executed in", t.Label, err)
	case errors.Is(err, unix.EINVAL) && t.User != nil || errors.Is(err, unix.EINVAL) && t.Group != nil:
		err = fmt.Errorf("%w (a user namespace knows only the users and groups that are mapped into it)", err)
	case err == nil:
		err = rememberLink(w, t.Owner, t.Name, "tun", nil)
	}
	return err == nil, err
}

// bridge is the bridge in the container that the tap is to be a port of.
func (t Tap) bridge(w *kernel.World) (*rtnl.Link, error) {
	br, err := rtnl.LinkByName(w.Container, t.Bridge)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return nil, spec.Errorf(spec.CodeConfig,
			"bridge: %q: no such link in the container%s; want a bridge that is in the container's namespace already",
			t.Bridge, t.bridges(w))
	case err != nil:
		return nil, err
	case br.Kind != "bridge":
		return nil, spec.Errorf(spec.CodeConfig, "bridge: %q: is %s in the container, not a bridge%s", t.Bridge,
			resource.KindOf(br), t.bridges(w))
	}
	return br, nil
}

// bridges names those that there are.
func (t Tap) bridges(w *kernel.World) string {
	names, _ := resource.NamesOf(w.Container, func(l *rtnl.Link) bool { return l.Kind == "bridge" })
	if len(names) == 0 {
		return ", which has no bridge"
	}
	return "; " + resource.Instead(t.Bridge, names)
}

// Verify implements plan.Resource.
func (t Tap) Verify(ctx context.Context, w *kernel.World) error {
	l, d := t.verify(w, "tun")
	if l == nil {
		return d.Err()
	}
	if t.Bridge != "" {
		if br, err := t.bridge(w); err != nil {
			d.Add(err)
		} else if l.Master != br.Index {
			d.Want("master", t.Bridge, rtnl.NameOf(w.Container, l.Master))
		}
	}
	if data := l.Data.Tun; data != nil {
		d.Want("tap", true, data.Tap)
		d.Want("multi_queue", t.MultiQueue, data.MultiQueue)
		d.Want("persist", true, data.Persist)
		if t.User != nil {
			d.Want("owner", number("user", t.User), cmp.Or(number("user", data.Owner), "none"))
		}
		if t.Group != nil {
			d.Want("group", number("group", t.Group), cmp.Or(number("group", data.Group), "none"))
		}
	}
	return d.Err()
}

// Remove implements plan.Remover.
func (t Tap) Remove(ctx context.Context, w *kernel.World) error {
	return removeOwn(w, t.Owner, t.Name, "tun")
}
