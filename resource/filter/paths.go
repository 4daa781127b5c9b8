package filter

import (
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
)

// A closedPath is a setting without which some packets to a published port get lost, and what opens it.
// What is opened stays open: others may be behind the same link, and a veth pair dies with its container.
type closedPath struct {
	err  error
	open func() error
}

// openPaths opens what is closed.
func (p Publish) openPaths(w *kernel.World, pub *published) (changed bool, err error) {
	for _, path := range p.paths(w, pub) {
		if path.open == nil {
			return changed, path.err
		}
		if err := path.open(); err != nil {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}

func (p Publish) paths(w *kernel.World, pub *published) (closed []closedPath) {
	if !pub.back {
		return nil
	}
	if c := p.localnet(w, pub); c.err != nil {
		closed = append(closed, c)
	}
	if c := p.hairpinPort(w); c.err != nil {
		closed = append(closed, c)
	}
	return closed
}

// localnet lets packets from 127.0.0.1 out by the link that leads to the container, and their answers in.
func (p Publish) localnet(w *kernel.World, pub *published) (c closedPath) {
	if !pub.local {
		return c
	}
	r, err := w.Host.RouteTo(p.To4.Addr())
	if err != nil || r.Via.IsValid() || r.Type != kernel.Unicast {
		return c // not behind a link of this host
	}
	l, err := w.Host.LinkAt(r.Link)
	if err != nil {
		c.err = err
		return c
	}
	key := "net/ipv4/conf/" + l.Name + "/route_localnet"
	v, err := w.Host.Sysctl(key)
	switch {
	case err != nil:
		c.err = err
	case v != "1":
		c.err = fmt.Errorf("sysctl %s is %s, want 1", key, v)
		c.open = func() error {
			_, err := w.Host.SetSysctls(kernel.Setting{Key: key, Value: "1"})
			return err
		}
	}
	return c
}

// hairpinPort lets the container's own packets back in by the port that they came from. Where frames on a
// bridge pass iptables, which br_netfilter sees to on most nodes of Kubernetes, a translated frame stays on
// the bridge and is not routed, and a bridge sends nothing back where it came from.
func (p Publish) hairpinPort(w *kernel.World) (c closedPath) {
	filtered := func(of string) bool {
		v, err := w.Host.Sysctl("net/bridge/bridge-nf-call-" + of)
		return err == nil && v != "0"
	}
	if !(p.To4.IsValid() && filtered("iptables") || p.To6.IsValid() && filtered("ip6tables")) {
		return c
	}
	l, err := resource.HostEnd(w, p.Owner.IfName)
	if err != nil || l == nil || l.Port == nil || l.Port.Hairpin {
		c.err = err
		return c
	}
	port := *l.Port
	port.Hairpin = true
	c.err = fmt.Errorf("link host/%s has hairpin off, want on", l.Name)
	c.open = func() error { return w.Host.SetLink(l.Name, kernel.LinkChange{Port: &port}) }
	return c
}

// vanished reports whether the host end of a veth pair that was there is no more. A veth dies with its
// namespace, and indexes are not used again, so what was published from behind it is nobody's.
func vanished(w *kernel.World, link uint32) bool {
	if link == 0 {
		return false
	}
	_, err := w.Host.LinkAt(int(link))
	return errors.Is(err, kernel.ErrNoLink)
}
