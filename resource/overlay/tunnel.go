package overlay

import (
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A tunnel is what devices of all kinds have in common.
type tunnel struct{ name string }

// add makes the device of a new link.
func (t tunnel) add(w *kernel.World, l rtnl.NewLink) error {
	l.Name, l.Group, l.Alias, l.Up = t.name, group, mark, true
	if err := rtnl.AddLink(w.Host, l); err != nil {
		return err
	}
	if _, err := t.set(w); err != nil {
		index, _ := rtnl.IndexOf(w.Host, t.name)
		return errors.Join(err, rtnl.DelLink(w.Host, index))
	}
	return nil
}

// lacks compares the sysctls of the device with what they should be.
func (t tunnel) lacks(w *kernel.World) (drift resource.Drift) {
	if is, err := procsys.Get(w.Host, t.ipv6().Key); err != nil || is != "0" {
		drift.Add(spec.Differs("disable_ipv6", "0", is))
	}
	if t.strict(w) {
		drift.Add(spec.Differs("rp_filter", "2", "1"))
	}
	return drift
}

// ipv6 is the sysctl that the device needs: it carries IPv6, or the next hops of the routes are IPv6 addresses, and a
// host may have IPv6 off by default.
func (t tunnel) ipv6() procsys.Setting {
	return procsys.Setting{Key: "net/ipv6/conf/" + t.name + "/disable_ipv6", Value: "0"}
}

// strict reports whether rp_filter of the device drops packets whose way back is not by the device. Of two nodes, one
// changes its way to the other first, and the packets that still come the other way would be lost.
func (t tunnel) strict(w *kernel.World) bool {
	all, allErr := procsys.Get(w.Host, "net/ipv4/conf/all/rp_filter")
	own, ownErr := procsys.Get(w.Host, "net/ipv4/conf/"+t.name+"/rp_filter")
	return allErr == nil && ownErr == nil && max(all, own) == "1" // the larger one counts
}

// set sets the sysctls of the device.
func (t tunnel) set(w *kernel.World) (bool, error) {
	changed, err := procsys.Set(w.Host, t.ipv6())
	if errors.Is(err, unix.EROFS) {
		err = fmt.Errorf("%w: set net.ipv6.conf.default.disable_ipv6=0 on the host, because a container cannot", err)
	}
	if err != nil || !t.strict(w) {
		return changed, err
	}
	return true, rtnl.SetLink(w.Host, t.name, rtnl.LinkChange{RPFilter: 2})
}

// own returns the device. A link of that name that this package has not made is an error.
func (t tunnel) own(w *kernel.World) (*rtnl.Link, error) {
	l, err := rtnl.LinkByName(w.Host, t.name)
	if err != nil {
		return nil, err
	}
	if !Made(l) {
		return nil, spec.DiffersBy("type", "link %s: is %s that another program made: delete it with `ip link del "+
			"%[1]s`, or choose another name for the device", t.name, resource.KindOf(l))
	}
	return l, nil
}

// remove deletes the device. It leaves a link that another program made.
func (t tunnel) remove(w *kernel.World) error {
	l, err := rtnl.LinkByName(w.Host, t.name)
	if err != nil {
		return resource.ExceptNoLink(err)
	}
	if !Made(l) {
		return nil
	}
	return rtnl.DelLink(w.Host, l.Index)
}
