package resource

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Masquerade gives what the attachment's addresses send out of their own network the address of the
// link that it leaves by. Traffic to the network's own prefixes, to multicast and to Except keeps its
// source.
type Masquerade struct {
	Owner  spec.Owner
	From   []netip.Prefix // the addresses, each with its subnet's length; empty while they are unknown
	Except []netip.Prefix
}

func (m Masquerade) String() string {
	return line("masquerade", prefixes("saddr", m.From), prefixes("daddr !=", m.Except))
}

// Ensure implements plan.Resource.
func (m Masquerade) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (m Masquerade) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }

// Remove implements plan.Remover. It needs only the owner.
func (m Masquerade) Remove(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }

// prefixes is "word a" or "word { a, b }", or nothing.
func prefixes(word string, list []netip.Prefix) string {
	switch len(list) {
	case 0:
		return ""
	case 1:
		return word + " " + list[0].String()
	}
	s := make([]string, len(list))
	for i, p := range list {
		s[i] = p.String()
	}
	return fmt.Sprintf("%s { %s }", word, strings.Join(s, ", "))
}
