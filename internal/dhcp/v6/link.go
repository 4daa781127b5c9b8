package v6

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// carrierLimit is how long a link may take to carry packets, which may never happen. From then on the kernel gives the
// link its address: whenever its workers, which serve all containers of the host, come to it.
const carrierLimit = 8 * time.Second

// turnOn turns IPv6 on on a link: routers are listened to, for they alone say what is on the link and who leads off it,
// and where auto is set give addresses. A metric of zero is the kernel's own.
func turnOn(l dhcp.Link, auto bool, metric int) error {
	conf := "net/ipv6/conf/" + l.Name + "/"
	get := func(key string) string {
		v, _ := procsys.Get(l.NS, conf+key)
		return v
	}
	set := []procsys.Setting{{Key: "net/ipv6/conf/lo/disable_ipv6", Value: "0"}}
	forwarding := get("forwarding") != "0"
	switch ra := get("accept_ra"); {
	case forwarding && ra != "2": // a router takes no advertisements at 1
		set = append(set, procsys.Setting{Key: conf + "accept_ra", Value: "2"})
	case ra == "0":
		set = append(set, procsys.Setting{Key: conf + "accept_ra", Value: "1"})
	}
	set = append(set, procsys.Setting{Key: conf + "autoconf", Value: digit(auto)},
		procsys.Setting{Key: conf + "accept_ra_pinfo", Value: "1", Optional: true})
	_, elsewhere, err := defaults(l)
	if err != nil {
		return fmt.Errorf("link %s: %w", l.Name, err)
	}
	// Where another network has given the default route, this link's routers give none, unless it has a metric of its
	// own (clause P25; the sysctl is Linux 5.12's, and before it such a route is the plugin's alone).
	take := !elsewhere
	if metric > 0 {
		take = get("ra_defrtr_metric") != ""
		set = append(set, procsys.Setting{Key: conf + "ra_defrtr_metric", Value: strconv.Itoa(metric), Optional: true})
	}
	set = append(set, procsys.Setting{Key: conf + "accept_ra_defrtr", Value: digit(take), Optional: true})
	if get("addr_gen_mode") == "1" { // none
		set = append(set, procsys.Setting{Key: conf + "addr_gen_mode", Value: "0"})
	}
	set = append(set, procsys.Setting{Key: conf + "disable_ipv6", Value: "0"})
	if _, err := procsys.Set(l.NS, set...); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("link %s: no IPv6 here (the kernel has none, or the link's MTU is below 1280): %w", l.Name,
			err)
	} else if err != nil {
		return fmt.Errorf("link %s: %w", l.Name, err)
	}
	own, _, err := defaults(l) // also of a router that was heard until now
	errs := []error{err}
	if !auto {
		errs = append(errs, forgetAutomatic(l))
	}
	for _, r := range own {
		if !take || metric > 0 && r.Priority != metric {
			errs = append(errs, rtnl.DelRoute(l.NS, r))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("link %s: %w", l.Name, err)
	}
	return nil
}

func digit(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// defaults are the default routes that routers on the link gave, and whether one leads over another link.
func defaults(l dhcp.Link) (own []rtnl.Route, elsewhere bool, err error) {
	routes, err := rtnl.Routes(l.NS, rtnl.RouteFilter{Family: rtnl.IPv6, Table: rtnl.MainTable})
	for _, r := range routes {
		switch {
		case r.Dst.Bits() != 0 || r.Type != rtnl.Unicast:
		case r.Link != l.Index:
			elsewhere = true
		case r.Protocol == rtnl.ByRA:
			own = append(own, r)
		}
	}
	return own, elsewhere, err
}

// forgetAutomatic deletes the addresses that a router gave before autoconf was off.
func forgetAutomatic(l dhcp.Link) error {
	list, err := rtnl.Addrs(l.NS, l.Index)
	for _, a := range list {
		if a.Dynamic && a.Scope == 0 && a.Prefix.Addr().Is6() {
			err = errors.Join(err, rtnl.DelAddr(l.NS, l.Index, a))
		}
	}
	return err
}

// linkLocal waits for the link-local address, which all is sent from, and until it may be used.
func linkLocal(ctx context.Context, l dhcp.Link) (addr netip.Addr, err error) {
	err = carrier(ctx, l)
	if err == nil {
		addr, err = kernelAddress(ctx, l)
	}
	if err != nil {
		return addr, fmt.Errorf("link %s: wait for a link-local address: %w", l.Name, err)
	}
	return addr, nil
}

// carrier waits until a link can carry packets.
func carrier(ctx context.Context, l dhcp.Link) error {
	err := rtnl.Await(l.NS, ctx, carrierLimit, []uint{rtnl.LinkEvents}, func() (bool, error) {
		link, err := rtnl.LinkByIndex(l.NS, l.Index)
		return err == nil && link.Operational, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("the link carries no packets (it or its other end is down, or has no cable): %w", err)
	}
	return err
}

// kernelAddress waits, as long as ctx allows, for the kernel to make the address and to make sure of it.
func kernelAddress(ctx context.Context, l dhcp.Link) (addr netip.Addr, err error) {
	tentative := false
	err = rtnl.Await(l.NS, ctx, time.Hour, []uint{rtnl.IPv6AddrEvents}, func() (bool, error) {
		list, err := rtnl.Addrs(l.NS, l.Index)
		for _, a := range list {
			switch ip := a.Prefix.Addr(); {
			case !ip.IsLinkLocalUnicast() || !ip.Is6():
			case a.DADFailed:
				return false, fmt.Errorf("another machine on the link has %v", ip)
			case a.Tentative:
				tentative = true
			default:
				addr = ip
				return true, nil
			}
		}
		return false, err
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded) && tentative:
		err = fmt.Errorf("duplicate address detection did not finish: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("the link got none: %w", err)
	}
	return addr, err
}
