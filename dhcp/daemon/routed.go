package daemon

import (
	"context"

	"github.com/fairlead-cni/fairlead/dhcp"
)

// routed is a protocol whose leases have the routes of the configuration too, so that they go by a new router with the
// rest.
type routed struct{ dhcp.Protocol }

func (p routed) Acquire(ctx context.Context, link dhcp.Link, a dhcp.Ask) (*dhcp.Lease, error) {
	l, err := p.Protocol.Acquire(ctx, link, a)
	return a.Complete(l, link.MTU), err
}

func (p routed) Confirm(ctx context.Context, link dhcp.Link, a dhcp.Ask, l *dhcp.Lease) (*dhcp.Lease, error) {
	l, err := p.Protocol.Confirm(ctx, link, a, l)
	return a.Complete(l, link.MTU), err
}

func (p routed) Renew(ctx context.Context, link dhcp.Link, a dhcp.Ask, l *dhcp.Lease) (*dhcp.Lease, error) {
	l, err := p.Protocol.Renew(ctx, link, a, l)
	return a.Complete(l, link.MTU), err
}

func (p routed) Rebind(ctx context.Context, link dhcp.Link, a dhcp.Ask, l *dhcp.Lease) (*dhcp.Lease, error) {
	l, err := p.Protocol.Rebind(ctx, link, a, l)
	return a.Complete(l, link.MTU), err
}
