package addr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// PortAddrs reserves the addresses of a container for its port of a bridge, so that no other container on the bridge
// has one of them. The host-side interface gets an alternative name for each address. The kernel gives a name to one
// link only, finds it without a search, and drops it with the container's namespace. A container cannot change it.
//
// Two network configuration lists may share a bridge and allocate from overlapping ranges. An address that both
// containers got by static configuration may be intended, as for VRRP. For such an address there is only a warning.
type PortAddrs struct {
	Network string
	Port    string // the host end
	Bridge  string
	VLAN    uint16 // 0: the default one
	Addrs   []netip.Prefix
	ByHand  bool // they were not allocated
}

// MostPortAddrs is how many addresses a PortAddrs can have. The kernel takes about 490 alternative names for a link, of
// which the administrator may want some.
const MostPortAddrs = 256

func (p PortAddrs) String() string {
	return resource.Line("port", p.Port, "alone on", p.segment(), resource.Prefixes("with", p.Addrs),
		resource.Flag("by hand", p.ByHand))
}

func (p PortAddrs) segment() string {
	if p.VLAN == 0 {
		return p.Bridge
	}
	return fmt.Sprintf("%s.%d", p.Bridge, p.VLAN)
}

// name is the alternative name for an address: "10.1.2.5@cni0". udev takes no colon in one.
func (p PortAddrs) name(a netip.Addr, byHand bool) string {
	name := strings.ReplaceAll(a.Unmap().String(), ":", "_") + "@" + p.segment()
	if byHand {
		name += "+hand"
	}
	return name
}

// How long an ADD waits for the link of a container that goes: the kernel takes its time to take a namespace down.
// Within one network the allocator says that the container is gone. Of another network's this is not known.
const (
	sameNetworkLimit  = 10 * time.Second
	otherNetworkLimit = time.Second
)

// holder returns the link that has an alternative name, or nil. It waits while the link belongs to a container that
// is ending.
func (p PortAddrs) holder(ctx context.Context, w *kernel.World, index int, name string) (l *rtnl.Link, err error) {
	look := func() (gone bool, err error) {
		l, err = rtnl.LinkByAltName(w.Host, name)
		if errors.Is(err, rtnl.ErrNoLink) {
			l, err = nil, nil
		}
		return l == nil || l.Index == index, err
	}
	if _, err = look(); err != nil || p.ByHand || l == nil || l.Index == index {
		return l, err
	}
	limit := otherNetworkLimit
	if network, _, _, ok := identity.ParseTag(l.Alias); ok && network == identity.NetworkHash(p.Network) {
		limit = sameNetworkLimit
	}
	err = rtnl.Await(w.Host, ctx, limit, []uint{rtnl.LinkEvents}, look)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = nil
	}
	return l, err
}

// Ensure implements plan.Resource.
func (p PortAddrs) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	index, err := rtnl.IndexOf(w.Host, p.Port)
	if err != nil {
		return false, err
	}
	for _, prefix := range p.Addrs {
		a, mine := prefix.Addr(), false
		for _, byHand := range []bool{false, true} {
			l, err := p.holder(ctx, w, index, p.name(a, byHand))
			switch {
			case err != nil:
				return changed, err
			case l == nil:
			case l.Index == index:
				mine = mine || byHand == p.ByHand
			case byHand && p.ByHand:
				p.warn(a, l)
				mine = true
			default:
				return changed, p.conflict(a, l)
			}
		}
		if mine {
			continue
		}
		switch err := rtnl.AddAltName(w.Host, p.Port, p.name(a, p.ByHand)); {
		case err == nil:
			changed = true
		case errors.Is(err, unix.EEXIST): // another call was faster by a moment
			l, err := rtnl.LinkByAltName(w.Host, p.name(a, p.ByHand))
			if err != nil || l.Index == index {
				return changed, resource.ExceptNoLink(err)
			}
			if !p.ByHand {
				return changed, p.conflict(a, l)
			}
			p.warn(a, l)
		case errors.Is(err, unix.EOPNOTSUPP): // before Linux 5.5
		default:
			return changed, err
		}
	}
	return changed, nil
}

// holderOf is who a link says that it belongs to.
func holderOf(l *rtnl.Link) string {
	if _, _, text, ok := identity.ParseTag(l.Alias); ok && text != "" {
		return text + " (" + l.Name + ")"
	}
	return l.Name
}

func (p PortAddrs) conflict(a netip.Addr, l *rtnl.Link) error {
	held := Taken{a, fmt.Sprintf("is that of %s, which is on bridge %s too", holderOf(l), p.segment())}
	return spec.Errorf(spec.CodeTryAgain,
		"%w: ranges of two networks on one bridge must not overlap, and an address that is configured by hand "+
			"must not be in a range",
		held).WithHint("`fairlead net ls` names the lists: give each a range of its own (rangeStart and rangeEnd of " +
		"its ipam), or a bridge. Until then an add fails wherever it comes upon an address of the other's.")
}

func (p PortAddrs) warn(a netip.Addr, l *rtnl.Link) {
	slog.Warn("two containers on one bridge have an address, both by hand: that works only if they take turns, as "+
		"with VRRP",
		"address", a, "bridge", p.segment(), "other", holderOf(l))
}

// Verify implements plan.Resource. It finds no difference, because the port of an earlier version has no such names.
func (p PortAddrs) Verify(context.Context, *kernel.World) error { return nil }

// Traits implements resource.Describer. Repair adds the names to the port of a running container, where no other port
// has them.
func (p PortAddrs) Traits() resource.Traits { return resource.Traits{Fix: p.Ensure} }
