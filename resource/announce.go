package resource

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
)

// An Announce tells the neighbours of a container's link which addresses it has now, so that none keeps
// sending to the former owner of one of them: gratuitous ARP and unsolicited neighbour advertisements.
type Announce struct {
	Link  string
	Addrs []netip.Prefix
	Port  string // the host's end, waited for until it forwards; empty: none
}

func (a Announce) String() string {
	s := make([]string, len(a.Addrs))
	for i, p := range a.Addrs {
		s[i] = p.Addr().String()
	}
	return line("announce", strings.Join(s, ", "), "on cont/"+a.Link, opt("through host/"+a.Port, a.Port))
}

// Ensure implements plan.Resource.
func (a Announce) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (a Announce) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }
