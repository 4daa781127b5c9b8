package policy

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// An IsolatedPort is a container's host-side interface that exchanges no frames with other isolated ports of its
// bridge. The bridge itself drops the frames, before IP rules see them. The container cannot begin a connection with
// the address of another container either: see filter.PortAddressSets.
type IsolatedPort struct {
	Owner spec.Owner
	Link  string       // the host end; empty: that of the container's veth
	Addrs []netip.Addr // the container's addresses

	// ByRules leaves frames that br_netfilter passes through the rules of IP to those, and drops the others. The rules
	// name the bridge only where the host is on it by the bridge itself: see Ingress.
	ByRules bool
}

func (p IsolatedPort) String() string {
	return resource.Line("isolated port", resource.Opt("iifname", p.Link), resource.Opt("saddr", addrText(p.Addrs)),
		"drop", resource.Flag("unless by br_netfilter", p.ByRules))
}

func addrText(addrs []netip.Addr) string {
	var words []string
	for _, a := range addrs {
		words = append(words, a.String())
	}
	return strings.Join(words, ",")
}

// port is the link that frames of the container come in by, or nil, and whether the bridge is to drop all frames to
// other isolated ports.
func (p IsolatedPort) port(w *kernel.World) (l *rtnl.Link, dropsAll bool, err error) {
	if p.Link == "" {
		l, err = resource.HostEnd(w, p.Owner.IfName)
	} else {
		l, err = rtnl.LinkByName(w.Host, p.Link)
	}
	if l == nil || err != nil || !p.ByRules {
		return l, true, err
	}
	if l.Master == 0 {
		return nil, false, nil
	}
	br, err := rtnl.LinkByIndex(w.Host, l.Master)
	if err != nil {
		return nil, false, err
	}
	at, err := filter.RoutedBy(w, br, p.Addrs)
	if err != nil {
		return nil, false, err
	}
	return l, at.Index != br.Index, nil
}

// withoutTables is nil where the kernel has no nf_tables and the rules of IP decide nearly alone, and otherwise err.
func (p IsolatedPort) withoutTables(w *kernel.World, dropsAll bool, err error) error {
	if dropsAll || !filter.Unavailable(err) {
		return err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		if v, perr := procsys.Get(w.Host, "net/bridge/bridge-nf-call-"+family); perr != nil || v == "0" {
			return err
		}
	}
	return nil
}

// Ensure implements plan.Resource.
func (p IsolatedPort) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	l, dropsAll, err := p.port(w)
	if err != nil || l == nil && p.ByRules {
		return false, err
	}
	if p.ByRules { // otherwise Ingress has made the table
		err := filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
			return f.EnsureBase(filter.NewChainSet(f.Table))
		})
		if err != nil && p.withoutTables(w, dropsAll, err) == nil {
			slog.Warn("the kernel has no nf_tables, so a container can begin connections with the address of another "+
				"container of its network, and send that one frames with VLAN tags", "network", p.Owner.Network,
				"error", err)
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	var fresh []netip.Addr
	err = filter.Transact(ctx, w, filter.Bridge(), func(f filter.Tx) error {
		if err := f.EnsureBase(filter.NewChainSet(f.Table)); err != nil {
			return err
		}
		e, err := p.edit(f, l, dropsAll)
		if err != nil {
			return err
		}
		fresh = e.freshAddresses(filter.PortAddressSetsOf(f.Table))
		b := e.batch(f)
		changed = !b.Empty()
		return f.Commit(b)
	})
	if err == nil {
		forgetNew(ctx, w, fresh)
	}
	return changed && err == nil, err
}

// Verify implements plan.Resource.
func (p IsolatedPort) Verify(ctx context.Context, w *kernel.World) error {
	l, dropsAll, err := p.port(w)
	if err != nil || l == nil && p.ByRules {
		return err
	}
	if p.ByRules {
		err := filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
			d, err := f.Standing(filter.NewChainSet(f.Table))
			return errors.Join(err, d.Err())
		})
		if err != nil {
			return p.withoutTables(w, dropsAll, err)
		}
	}
	return filter.Transact(ctx, w, filter.Bridge(), func(f filter.Tx) error {
		return f.Compare(filter.NewChainSet(f.Table), func() (resource.Drift, error) {
			e, err := p.edit(f, l, dropsAll)
			if err != nil {
				return nil, err
			}
			return f.VerifyElements(p.Owner, filter.KindIsolatedPort, e.wantWithStale())
		})
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
