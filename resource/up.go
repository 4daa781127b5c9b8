package resource

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// An Up is a link that is set up.
type Up struct {
	Where Where
	Link  string
	Owner spec.Owner // of a link of the container: its address is one of the owner's, if nobody asked for another
}

func (u Up) String() string { return "link " + u.Where.String() + u.Link + " up" }

// Ifaces implements Linker.
func (u Up) Ifaces() []Iface { return []Iface{{u.Where, u.Link}} }

// Ensure implements plan.Resource.
func (u Up) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, l, err := u.Where.link(w, u.Link)
	if err != nil || l.Up {
		return false, err
	}
	up := kernel.LinkChange{Up: true}
	err = ns.SetLink(u.Link, up)
	if errors.Is(err, unix.EADDRINUSE) { // of a macvlan, and no other
		on, _, berr := masterBelow(w, l)
		if berr == nil && on != nil {
			err = withOwnMAC(ctx, on, u.Owner, l.MAC.String(), func(mac string) error {
				if mac != l.MAC.String() {
					up.MAC, _ = net.ParseMAC(mac)
				}
				return ns.SetLink(u.Link, up)
			})
		}
		if err = errors.Join(err, berr); err != nil {
			err = fmt.Errorf("another link on the same master, or that itself, has the address %v: %w", l.MAC, err)
		}
	}
	return err == nil, err
}

// Verify implements plan.Resource.
func (u Up) Verify(ctx context.Context, w *kernel.World) error {
	_, l, err := u.Where.link(w, u.Link)
	if err != nil {
		return err
	}
	var d drift
	d.want("state", "up", state(l))
	return d.err()
}

// Remove implements plan.Remover: the link is set down.
func (u Up) Remove(ctx context.Context, w *kernel.World) error {
	ns, err := u.Where.ns(w)
	if err != nil {
		return err
	}
	return gone(ns.SetLink(u.Link, kernel.LinkChange{Down: true}))
}

// state is a link's state in a word.
func state(l *kernel.Link) string {
	if l.Up {
		return "up"
	}
	return "down"
}
