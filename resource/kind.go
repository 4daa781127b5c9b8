package resource

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// Kind is the fact that a link, where it exists, is of a type: what a bridge that is yet to be made needs.
type Kind struct {
	Where Where
	Link  string
	Kind  string // ip(8)'s type
}

// String is "link host/cni0 type bridge or none".
func (k Kind) String() string {
	return fmt.Sprintf("link %v%s type %s or none", k.Where, k.Link, k.Kind)
}

// Ensure makes nothing: the fact is there or not.
func (k Kind) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, k.Verify(ctx, w)
}

// Verify reports a link of another type.
func (k Kind) Verify(_ context.Context, w *kernel.World) error {
	_, l, err := k.Where.link(w, k.Link)
	switch {
	case errors.Is(err, kernel.ErrNoLink):
		return nil
	case err != nil:
		return err
	case l.Kind != k.Kind:
		if l.Kind == "" {
			return spec.Errorf(spec.CodeConfig, "%s is a network card or lo on this host, and no %s; name another", k.Link, k.Kind)
		}
		return spec.Errorf(spec.CodeConfig, "%s is a link of type %s on this host; name another, or remove it (ip link delete %s)", k.Link, l.Kind, k.Link)
	}
	return nil
}

// ValidMAC returns nil for an address that a container's link can have: 6 bytes, not of a group, not zero.
func ValidMAC(s string) error {
	mac, err := net.ParseMAC(s)
	switch {
	case err != nil || len(mac) != 6:
		return spec.Errorf(spec.CodeConfig, "mac: %q: want 6 bytes, such as 02:00:5e:10:00:01", s)
	case mac[0]&1 != 0:
		return spec.Errorf(spec.CodeConfig, "mac: %q: is a group address; the first byte has to be even", s)
	case mac.String() == "00:00:00:00:00:00":
		return spec.Errorf(spec.CodeConfig, "mac: %q: is no address", s)
	}
	return nil
}
