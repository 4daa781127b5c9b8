package rtnl

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
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
	buf := make([]byte, 1<<16)
	for {
		// Asked once more after subscribing: what happened in between sends no event.
		if ok, err := ask(); ok || err != nil {
			return err
		}
		if time.Until(deadline) <= 0 {
			return context.DeadlineExceeded
		}
		if err := s.SetReadDeadline(deadline); err != nil {
			return err
		}
		switch _, err := s.Read(buf); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil, errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.ENOBUFS):
			// ENOBUFS: events were lost. So the next round asks in any case.
		default:
			return err
		}
	}
}

// subscribe returns a socket that receives the events of these groups. Reading from it ends when ctx does.
func subscribe(ctx context.Context, ns *kernel.NS, groups []uint) (s *os.File, unsubscribe func(), err error) {
	s, err = ns.Events(unix.NETLINK_ROUTE, 0, groups...)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.Close() })
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
