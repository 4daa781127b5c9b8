package policy

import (
	"context"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// An IsolatedPort is a container's host-side interface that exchanges no frames with other isolated ports of its
// bridge. The bridge itself drops the frames, before IP rules see them.
type IsolatedPort struct {
	Owner spec.Owner
	Link  string // the host end; empty: that of the container's veth

	// UnlessRules leaves it to the rules of IP where br_netfilter passes the bridge's frames through those. These rules
	// name the bridge only where the host is on it by the bridge itself: see Ingress.
	UnlessRules bool
	To          []netip.Addr
}

func (p IsolatedPort) String() string {
	return resource.Line("isolated port", resource.Opt("iifname", p.Link), "drop",
		resource.Flag("unless by br_netfilter", p.UnlessRules))
}

// port is the link that frames of the container come in by; nil where there is none, or it is left to the rules of IP.
func (p IsolatedPort) port(w *kernel.World) (l *rtnl.Link, err error) {
	if p.Link == "" {
		l, err = resource.HostEnd(w, p.Owner.IfName)
	} else {
		l, err = rtnl.LinkByName(w.Host, p.Link)
	}
	if l == nil || err != nil || !p.UnlessRules {
		return l, err
	}
	if v, err := procsys.Get(w.Host, "net/bridge/bridge-nf-call-iptables"); err != nil || v == "0" {
		return l, nil
	}
	if l.Master == 0 {
		return nil, nil
	}
	br, err := rtnl.LinkByIndex(w.Host, l.Master)
	if err != nil {
		return nil, err
	}
	if at, err := filter.RoutedBy(w, br, p.To); err != nil || at.Index == br.Index {
		return nil, err
	}
	return l, nil
}

func (p IsolatedPort) want(t *nft.Table, l *rtnl.Link) []nft.Elem {
	if l == nil {
		return nil
	}
	return []nft.Elem{{Set: filter.IsolatedPorts(t), Key: nft.Key(l.Name), Comment: filter.CommentOf(p.Owner)}}
}

// Ensure implements plan.Resource.
func (p IsolatedPort) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	l, err := p.port(w)
	if err != nil || l == nil && p.UnlessRules {
		return false, err
	}
	err = filter.Transact(ctx, w, filter.Bridge(), func(f filter.Tx) error {
		if err := f.EnsureBase(filter.NewChainSet(f.Table)); err != nil {
			return err
		}
		changed, err = f.ApplyElements(p.Owner, filter.KindIsolatedPort, p.want(f.Table, l))
		return err
	})
	return changed && err == nil, err
}

// Verify implements plan.Resource.
func (p IsolatedPort) Verify(ctx context.Context, w *kernel.World) error {
	l, err := p.port(w)
	if err != nil || l == nil && p.UnlessRules {
		return err
	}
	return filter.Transact(ctx, w, filter.Bridge(), func(f filter.Tx) error {
		return f.Verify(filter.NewChainSet(f.Table), p.Owner, filter.KindIsolatedPort, p.want(f.Table, l))
	})
}

// Remove implements plan.Remover. It needs only the owner.
func (p IsolatedPort) Remove(ctx context.Context, w *kernel.World) error {
	return IsolatedPortKind().Remove(ctx, w, plan.TagOf(p.Owner))
}

// IsolatedPortKind returns the Kind of IsolatedPort.
func IsolatedPortKind() plan.Kind {
	return filter.NewKind("isolated bridge port", filter.Bridge, filter.KindIsolatedPort)
}
