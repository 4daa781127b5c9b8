package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// Adopt is a verb in addition to CNI's. It makes the daemon take over a container that got its address through another
// daemon.
const Adopt = "ADOPT"

// adopt asks the servers whether a container's DHCPv4 lease is valid, as a client does after a restart (INIT-REBOOT),
// and keeps it. A lease that the daemon already has is left alone. adopt changes nothing on the link.
func (d *Daemon) adopt(ctx context.Context, q question) error {
	wanted, err := q.ipam.Wanted(q.owner, q.Args.Args)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(wanted, func(w dhcp.Wanted) bool { return w.Protocol == dhcp.DHCPv4 })
	if i < 0 {
		return spec.Errorf(spec.CodeConfig, "the configuration does not use DHCPv4")
	}
	have := held(q)
	if !have.IsValid() {
		return spec.Errorf(spec.CodeConfig, "the result has no IPv4 address")
	}
	done, err := d.lockOwner(ctx, q.owner)
	if err != nil {
		return err
	}
	defer done()
	if slices.ContainsFunc(d.of(q.owner), func(k *keeper) bool { return k.proto.Name() == dhcp.DHCPv4 }) {
		return nil
	}
	ns, err := d.open(q.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	id, err := ns.Identity()
	if err != nil {
		return err
	}
	link, err := linkWith(ns, q.IfName, have)
	if err != nil {
		return err
	}
	proto, err := d.protocol(dhcp.DHCPv4)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	a := d.broadcast(wanted[i].Ask, link)
	got, err := proto.Confirm(limited, link.Link, a, &dhcp.Lease{Addresses: []dhcp.Address{{Prefix: have}}})
	if errors.Is(err, dhcp.ErrNoServer) {
		return spec.Errorf(spec.CodeTryAgain, "%w within %v whether %v may stay", err, d.Timeout, have.Addr())
	}
	if err != nil {
		return err
	}
	if got.Addresses[0].Prefix.Addr() != have.Addr() {
		return errors.Join(fmt.Errorf("the server offers %v, but the container has %v", got.Addresses[0].Prefix, have),
			d.giveBack(proto, link, leaseFile{Ask: a, Lease: got}))
	}
	return d.keep(proto, a, q, id, link, a.Complete(got, link.MTU))
}

// linkWith is the link called name, which has to be up and to have an address.
func linkWith(ns *kernel.NS, name string, have netip.Prefix) (reached, error) {
	l, err := rtnl.LinkByName(ns, name)
	if err != nil {
		return reached{}, err
	}
	link := reachedLink(ns, l)
	on, err := rtnl.Addrs(ns, l.Index)
	switch {
	case err != nil:
		return reached{}, err
	case !link.up:
		return reached{}, spec.Errorf(spec.CodeTryAgain, "link %s is down", link.Name)
	case !slices.ContainsFunc(on, func(a rtnl.Addr) bool { return a.Prefix == have }):
		return reached{}, fmt.Errorf("link %s does not have the address %v of the result", link.Name, have)
	}
	return link, nil
}

// held returns the interface's IPv4 address in the result.
func held(q question) netip.Prefix {
	prev := q.conf.PrevResult
	if prev == nil {
		return netip.Prefix{}
	}
	for _, ip := range prev.IPs {
		if f := prev.InterfaceOf(ip); ip.Address.Addr().Is4() && (f == nil || f.Name == q.IfName && f.Sandbox != "") {
			return ip.Address
		}
	}
	return netip.Prefix{}
}
