package daemon

import (
	"context"

	"github.com/fairlead-cni/fairlead/dhcp"
)

// A routed is a protocol whose leases also contain the configured routes, so that these follow a change of the router.
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
