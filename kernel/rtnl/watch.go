package rtnl

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// Watch calls changed with the index of the link that an event of these rtnetlink groups is about, until ctx ends. It
// calls it with zero at first, and when events were lost: anything may have changed.
func Watch(ctx context.Context, ns *kernel.NS, groups []uint, changed func(link int)) error {
	s, unsubscribe, err := subscribe(ctx, ns, groups)
	if err != nil {
		return err
	}
	defer unsubscribe()
	changed(0)
	buf := make([]byte, 1<<16)
	for {
		n, err := s.Read(buf)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			changed(0)
		case err != nil:
			return err
		}
		for m := range netlink.Messages(buf[:n]) {
			changed(linkOf(m))
		}
	}
}

// linkOf returns the index of the link that an event is about.
func linkOf(m netlink.Message) (index int) {
	switch m.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH, unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(m.Body) >= 8 {
			index = int(netlink.U32(m.Body[4:]))
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		for _, hop := range parseRoute(m.Body) {
			index = hop.Link
		}
	}
	return index
}
