package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

var (
	// errGone says that what a lease was for is not there any more.
	errGone = errors.New("gone")
	// errHidden says that it may be there, and that this process cannot see it.
	errHidden = errors.New("not visible to the daemon (is the directory, with the mounts in it, also mounted where " +
		"the daemon runs?)")
)

// A reached is a link in a namespace that is open while the daemon works there.
type reached struct {
	dhcp.Link
	up   bool
	kind string
}

// open opens the namespace at the path in a call.
func (d *Daemon) open(netns string) (*kernel.NS, error) {
	return kernel.Open(filepath.Join(d.HostPrefix, netns))
}

// reach opens the keeper's namespace and finds its link. An errGone is final.
func (k *keeper) reach() (reached, error) {
	k.mu.Lock()
	rec := k.rec
	k.mu.Unlock()
	ns, err := k.d.open(rec.Netns)
	if errors.Is(err, kernel.ErrNoNamespace) || errors.Is(err, kernel.ErrNotNamespace) {
		return reached{}, fmt.Errorf("the namespace %s is %w", rec.Netns, k.missing(err, rec.Netns))
	}
	if err != nil {
		return reached{}, err
	}
	same, err := ns.Is(rec.Identity)
	if err == nil && !same {
		err = fmt.Errorf("the namespace is %w, and %s is another namespace now", errGone, rec.Netns)
	}
	var l *rtnl.Link
	if err == nil {
		if l, err = rtnl.LinkByIndex(ns, rec.Index); errors.Is(err, rtnl.ErrNoLink) {
			err = fmt.Errorf("the link %s is %w", rec.Lease.Link, errGone)
		}
	}
	var number int
	if err == nil {
		number, err = rtnl.AssignNSID(k.d.host, ns)
	}
	if err != nil {
		ns.Close()
		return reached{}, err
	}
	k.mu.Lock()
	k.number, k.up = number, l.Operational
	k.mu.Unlock()
	return reachedLink(ns, l), nil
}

// missing interprets the error of a path that does not lead to a namespace.
func (k *keeper) missing(err error, netns string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.died && !strings.HasPrefix(netns, "/proc/") && kernel.Hidden(filepath.Join(k.d.HostPrefix, netns), err) {
		return errHidden
	}
	return errGone
}

func reachedLink(ns *kernel.NS, l *rtnl.Link) reached {
	return reached{dhcp.Link{NS: ns, Name: l.Name, Index: l.Index, MAC: l.MAC, MTU: l.MTU}, l.Operational, l.Kind}
}

// carrierLimit limits how long a link may take until it carries packets after it was set up.
const carrierLimit = 5 * time.Second

// ready finds the link of a call and sets it up if it is down, because no lease can be got on a link that is down.
func ready(ctx context.Context, ns *kernel.NS, name string) (reached, error) {
	l, err := rtnl.LinkByName(ns, name)
	if err != nil {
		return reached{}, err
	}
	if !l.Up {
		if err := rtnl.SetLink(ns, name, rtnl.LinkChange{Up: true}); err != nil {
			return reached{}, err
		}
	}
	err = rtnl.Await(ns, ctx, carrierLimit, []uint{rtnl.LinkEvents}, func() (bool, error) {
		l, err = rtnl.LinkByName(ns, name)
		return err == nil && l.Operational, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = spec.Errorf(spec.CodeTryAgain, "link %s carries no packets after %v (no carrier)", name, carrierLimit)
	}
	if err != nil {
		return reached{}, err
	}
	if len(l.MAC) != 6 {
		return reached{}, spec.Errorf(spec.CodeConfig, "link %s has no Ethernet address, which DHCP needs", name)
	}
	return reachedLink(ns, l), nil
}
