package addr

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A Gateway is the address that a bridge has as the gateway of its containers. Another address in its place is a
// conflict: any other IPv4 address, or an IPv6 address of an overlapping subnet.
type Gateway struct {
	Link   string
	Prefix netip.Prefix
	Force  bool // replace what is in its place
}

func (g Gateway) String() string {
	return resource.Line("addr", "host/"+g.Link, g.Prefix.String(), "as gateway", resource.Flag("force", g.Force))
}

// Ensure implements plan.Resource.
func (g Gateway) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	index, there, conflicts, err := g.look(w)
	if err != nil || there && (len(conflicts) == 0 || !g.Force) {
		return false, err
	}
	if len(conflicts) > 0 && !g.Force {
		return false, g.conflict(conflicts[0])
	}
	if !there {
		if err := errors.Join(spareRouters(w, g.Link, g.Prefix), warnOfOverlap(w, g.Link, g.Prefix)); err != nil {
			return false, err
		}
	}
	// The old one goes first: as the first of its subnet it would take the new one with it.
	for i, c := range conflicts {
		if err := rtnl.DelAddr(w.Host, index, c); err != nil {
			return false, errors.Join(err, g.restore(w, index, conflicts[:i]))
		}
	}
	if err := g.remember(w); err != nil {
		return false, errors.Join(err, g.restore(w, index, conflicts))
	}
	// Not asking whether somebody else has it: on a bridge without a port that takes until there is one, and
	// the first container's first packet would find no gateway.
	err = rtnl.AddAddr(w.Host, index, rtnl.Addr{Prefix: g.Prefix, NoDAD: g.Prefix.Addr().Is6()})
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return false, errors.Join(err, g.restore(w, index, conflicts))
	}
	return true, nil
}

// GatewayRecord is the name of the record of gateway addresses that this program has added. The kernel keeps no mark
// on an address. The record belongs to no network, because networks may share a bridge.
const GatewayRecord = "gateway"

func (g Gateway) record() spec.Owner {
	return spec.Owner{ContainerID: g.Prefix.String(), IfName: g.Link}
}

// remember comes before the address, so that a kill in between leaves none of ours that is not known.
func (g Gateway) remember(w *kernel.World) error {
	return w.Store.Put(GatewayRecord, g.record(), g.Link)
}

// made reports whether a Gateway gave the link that address.
func (g Gateway) made(w *kernel.World) (bool, error) {
	var link string
	return w.Store.Get(GatewayRecord, g.record(), &link)
}

func (g Gateway) Forget(w *kernel.World) error { return w.Store.Delete(GatewayRecord, g.record()) }

// HasForeignAddr reports whether a link has an address that neither a Gateway nor the kernel has given it.
func HasForeignAddr(w *kernel.World, l *rtnl.Link) (bool, error) {
	addrs, err := rtnl.Addrs(w.Host, l.Index)
	if errors.Is(err, unix.ENODEV) { // somebody else was faster
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, a := range addrs {
		if resource.OwnLinkLocal(w.Host, l, a.Prefix) {
			continue
		}
		if made, err := (Gateway{Link: l.Name, Prefix: a.Prefix}).made(w); err != nil || !made {
			return true, err
		}
	}
	return false, nil
}

func (g Gateway) restore(w *kernel.World, index int, list []rtnl.Addr) error {
	var errs []error
	for _, a := range list {
		errs = append(errs, rtnl.AddAddr(w.Host, index, a))
	}
	return errors.Join(errs...)
}

// look is the bridge's index, whether it has the address, and the addresses that are in the way of it.
func (g Gateway) look(w *kernel.World) (index int, there bool, conflicts []rtnl.Addr, err error) {
	if index, err = rtnl.IndexOf(w.Host, g.Link); err != nil {
		return
	}
	list, err := rtnl.Addrs(w.Host, index)
	if err != nil {
		return
	}
	for _, a := range list {
		switch {
		case a.Prefix == g.Prefix:
			there = true
		case a.Prefix.Addr().Is4() != g.Prefix.Addr().Is4(), a.Prefix.Addr().IsLinkLocalUnicast() &&
			a.Prefix.Addr().Is6():
		case a.Prefix.Addr().Is4(), a.Prefix.Masked().Overlaps(g.Prefix.Masked()):
			conflicts = append(conflicts, a)
		}
	}
	return
}

func (g Gateway) conflict(a rtnl.Addr) error {
	return fmt.Errorf("%s already has %v, and its gateway is to be %v: either configure %v, or run `ip addr del %v "+
		"dev %s`, or set forceAddress to replace it", g.Link, a.Prefix, g.Prefix, a.Prefix.Masked(), a.Prefix, g.Link)
}

// Free implements Freer.
func (g Gateway) Free(w *kernel.World) error {
	_, there, conflicts, err := g.look(w)
	switch {
	case resource.ExceptNoLink(err) != nil || there:
		return resource.ExceptNoLink(err)
	case len(conflicts) > 0 && !g.Force:
		return g.conflict(conflicts[0])
	}
	return spareRouters(w, g.Link, g.Prefix)
}

// Verify implements plan.Resource.
func (g Gateway) Verify(ctx context.Context, w *kernel.World) error {
	_, there, conflicts, err := g.look(w)
	switch {
	case err != nil || there:
		return err
	case len(conflicts) > 0:
		return spec.Missing("").Saying(fmt.Errorf("is missing; %s has %v", g.Link, conflicts[0].Prefix))
	}
	return spec.Missing("")
}

// Traits implements resource.Describer.
func (g Gateway) Traits() resource.Traits {
	return resource.Traits{Fix: g.Ensure, On: resource.Iface{Where: resource.Host, Name: g.Link}}
}
