package rtnl

import (
	"context"
	"errors"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Await waits until done returns true. It calls done at once, and again after each event of these rtnetlink groups.
// If ctx ends or limit passes before, the error is context.DeadlineExceeded.
func Await(ns *kernel.NS, ctx context.Context, limit time.Duration, groups []uint, done func() (bool, error)) error {
	ask := func() (bool, error) {
		ns.Forget()
		return done()
	}
	if ok, err := ask(); ok || err != nil {
		return err
	}
	deadline := time.Now().Add(limit)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	s, unsubscribe, err := subscribe(ctx, ns, groups)
	if err != nil {
		return err
	}
	defer unsubscribe()
	for {
		// Asked once more after subscribing: what happened in between sends no event.
		if ok, err := ask(); ok || err != nil {
			return err
		}
		left := time.Until(deadline)
		if left <= 0 {
			return context.DeadlineExceeded
		}
		timeout := unix.NsecToTimeval(max(left, time.Millisecond).Nanoseconds())
		if err := s.SetReceiveTimeout(&timeout); err != nil {
			return err
		}
		switch _, _, err := s.Receive(); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil, errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS): // ENOBUFS: events were lost, so ask
		default:
			return err
		}
	}
}

// subscribe returns a socket that receives the events of these groups. Its Receive ends when ctx does.
func subscribe(ctx context.Context, ns *kernel.NS, groups []uint) (s *nl.NetlinkSocket, unsubscribe func(), err error) {
	err = ns.Do(func() (err error) {
		s, err = nl.Subscribe(unix.NETLINK_ROUTE, groups...)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, s.Close)
	return s, func() {
		stop()
		s.Close()
	}, nil
}

// The groups of rtnetlink events that Await and Watch can listen to.
const (
	LinkEvents      = unix.RTNLGRP_LINK
	IPv4AddrEvents  = unix.RTNLGRP_IPV4_IFADDR
	IPv6AddrEvents  = unix.RTNLGRP_IPV6_IFADDR
	IPv6RouteEvents = unix.RTNLGRP_IPV6_ROUTE
	IPv4RouteEvents = unix.RTNLGRP_IPV4_ROUTE
	NeighbourEvents = unix.RTNLGRP_NEIGH // entries of forwarding tables, too
)
