package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Kind requires that a link, if it exists, is of a type. A bridge that does not exist yet needs this.
type Kind struct {
	Where resource.Where
	Link  string
	Kind  string // ip(8)'s type
	Key   string // of the configuration, for errors
}

// String returns a text such as "link host/cni0 type bridge or none".
func (k Kind) String() string {
	return fmt.Sprintf("link %v%s type %s or none", k.Where, k.Link, k.Kind)
}

// Verify returns an error for a link of another type.
func (k Kind) Verify(_ context.Context, w *kernel.World) error {
	_, l, err := k.Where.Link(w, k.Link)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return nil
	case err != nil:
		return err
	case l.Kind != k.Kind:
		remove := ""
		if l.Kind != "" {
			remove = fmt.Sprintf(", or remove it (ip link delete %s)", k.Link)
		}
		return spec.Errorf(spec.CodeConfig, "%s: %q: is %s %s, not a %s; name another%s%s", k.Key, k.Link,
			resource.KindOf(l), k.Where.Place(), k.Kind, k.others(w), remove)
	}
	return nil
}

// others are the links of the kind that there are.
func (k Kind) others(w *kernel.World) string {
	ns, err := k.Where.Namespace(w)
	if err != nil {
		return ""
	}
	names, _ := resource.NamesOf(ns, func(l *rtnl.Link) bool { return l.Kind == k.Kind })
	if len(names) == 0 {
		return ""
	}
	return " (there is " + resource.SomeOf(names) + ")"
}
