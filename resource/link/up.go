package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// LoopbackKind returns the Kind of lo in the container. DEL sets lo down; the link ends with its namespace.
func LoopbackKind() plan.Kind {
	return resource.KindByRemover("lo that is up", nil, func(spec.Owner) plan.Remover { return Up{Link: "lo"} })
}

// MasterBelow returns the master of a link in the container and the master's namespace. It returns nil if the master
// is neither on the host nor in the container. The peer of a veth is no master.
func MasterBelow(w *kernel.World, l *rtnl.Link) (*kernel.NS, *rtnl.Link, error) {
	ns := w.Container
	if l.Peer == 0 || !slices.Contains(contained(), l.Kind) {
		return nil, nil, nil
	}
	if l.PeerAway {
		ns = w.Host
		if id, err := rtnl.NSID(w.Container, w.Host); err != nil || id < 0 || id != l.PeerNS {
			return nil, nil, err
		}
	}
	under, err := rtnl.LinkByIndex(ns, l.Peer)
	return ns, under, resource.ExceptNoLink(err)
}

// An Up is a link that is set up.
type Up struct {
	Where resource.Where
	Link  string
	Owner spec.Owner // of a link of the container: its address is one of the owner's, if no other was asked for
}

func (u Up) String() string { return "link " + u.Where.String() + u.Link + " up" }

// Traits implements resource.Describer.
func (u Up) Traits() resource.Traits {
	return resource.Traits{Ifaces: []resource.Iface{{Where: u.Where, Name: u.Link}}}
}

// Ensure implements plan.Resource.
func (u Up) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, l, err := u.Where.Link(w, u.Link)
	if err != nil || l.Up {
		return false, err
	}
	up := rtnl.LinkChange{Up: true}
	err = rtnl.SetLink(ns, u.Link, up)
	if errors.Is(err, unix.EADDRINUSE) { // of a macvlan, and no other
		on, _, berr := MasterBelow(w, l)
		if berr == nil && on != nil {
			err = withOwnMAC(ctx, on, u.Owner, l.MAC.String(), func(mac string) error {
				if mac != l.MAC.String() {
					up.MAC, _ = net.ParseMAC(mac)
				}
				return rtnl.SetLink(ns, u.Link, up)
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
	_, l, err := u.Where.Link(w, u.Link)
	if err != nil {
		return err
	}
	var d resource.Drift
	d.WantUp("state", l)
	return d.Err()
}

// Remove implements plan.Remover. It sets the link down.
func (u Up) Remove(ctx context.Context, w *kernel.World) error {
	ns, err := u.Where.Namespace(w)
	if err != nil {
		return err
	}
	return resource.ExceptNoLink(rtnl.SetLink(ns, u.Link, rtnl.LinkChange{Down: true}))
}
