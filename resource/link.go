package resource

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// link is the link of that name, and the namespace that it is in.
func (w Where) link(k *kernel.World, name string) (*kernel.NS, *kernel.Link, error) {
	ns, err := w.ns(k)
	if err != nil {
		return nil, nil, err
	}
	l, err := ns.Link(name)
	return ns, l, err
}

// index is the index of the link of that name, and the namespace that it is in.
func (w Where) index(k *kernel.World, name string) (*kernel.NS, int, error) {
	ns, err := w.ns(k)
	if err != nil {
		return nil, 0, err
	}
	i, err := ns.Index(name)
	return ns, i, err
}

// bridge is the bridge of that name on the host.
func bridge(w *kernel.World, name string) (*kernel.Link, error) {
	l, err := w.Host.Link(name)
	if err == nil && l.Kind != "bridge" {
		err = fmt.Errorf("link %s is %s, not a bridge", name, kind(l))
	}
	return l, err
}

// kind is the kind of a link with its article.
func kind(l *kernel.Link) string {
	switch {
	case l.Name == "lo":
		return "lo"
	case l.Kind == "":
		return "a network card"
	case strings.Contains("aeiou", l.Kind[:1]):
		return "an " + l.Kind
	}
	return "a " + l.Kind
}

// mac parses an address, or derives one where there is none: udev changes what the kernel makes up.
func mac(s, end string, o spec.Owner) (net.HardwareAddr, error) {
	if s == "" {
		return kernel.MAC(end, o), nil
	}
	return net.ParseMAC(s)
}

// macText is an address as the kernel shows it.
func macText(s string) string {
	if m, err := net.ParseMAC(s); err == nil {
		return m.String()
	}
	return s
}

// owned reports whether a link carries o's mark. The group is there from the link's birth; the alias
// comes after it, and outlives a change of the group.
func owned(l *kernel.Link, o spec.Owner) bool {
	if _, h, _, ok := kernel.ParseTag(l.Alias); ok {
		return h == kernel.OwnerHash(o)
	}
	return l.Group == kernel.LinkGroup(o.Network)
}

// Tagged reports whether a link on the host is one that was made for o.
func Tagged(w *kernel.World, name string, o spec.Owner) bool {
	l, err := w.Host.Link(name)
	if err != nil {
		return false
	}
	_, h, _, ok := kernel.ParseTag(l.Alias)
	return ok && h == kernel.OwnerHash(o)
}

// ignoreRA makes ns deaf to the router advertisements that come in by a link, for a container must not be
// able to give its host an address or a route (CVE-2020-10749).
func ignoreRA(ns *kernel.NS, link string) (changed bool, err error) {
	changed, err = ns.SetSysctls(kernel.Setting{Key: "net/ipv6/conf/" + link + "/accept_ra", Value: "0", Optional: true})
	if err != nil && ignoresRA(ns, link) == nil {
		return false, nil // nobody may write here, and nobody has to
	}
	return changed, err
}

// ignoresRA is nil if no router advertisement that comes in by a link counts.
func ignoresRA(ns *kernel.NS, link string) error {
	get := func(key string) string {
		v, _ := ns.Sysctl("net/ipv6/conf/" + link + "/" + key)
		return v
	}
	ra := get("accept_ra")
	switch {
	case ra == "" || ra == "0": // empty: no IPv6 at all
		return nil
	case ra == "1" && get("forwarding") != "0", get("disable_ipv6") == "1":
		return nil
	}
	if l, err := ns.Link(link); err == nil && l.Master != 0 {
		return nil // its bridge takes what comes in before IPv6 sees it
	}
	return fmt.Errorf("accept_ra is %s, want 0", ra)
}

// gone is err, unless it only says that there is no such link.
func gone(err error) error {
	if errors.Is(err, kernel.ErrNoLink) {
		return nil
	}
	return err
}
