package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Master requires the link below a macvlan, ipvlan or vlan, usually a network card. The plugins never make or
// change it. Its errors name the configuration key "master" or "mtu".
type Master struct {
	Where resource.Where
	Link  string // empty: the egress link, which the default route leaves by
	MTU   int    // of the link above, which cannot be more than the master's
	Kind  string // type of the link above, for words
	Taken bool   // the link above takes what comes in by the master: an Ethernet link, and no port of a bridge
	Ether bool   // the link above needs an Ethernet link, and gets what is for it from a port of a bridge too
	Up    bool   // it has to be up; else that it is down is warned of, and the link above waits for it
}

// egress stands in a plan for the link of the default route, which a plan does not know.
const egress = "(egress)"

func (m Master) String() string {
	return resource.Line("link", m.Words(), resource.Flag("up", m.Up),
		resource.Opt("mtu at least", m.MTU), resource.Flag("for "+m.Kind, m.Kind != ""))
}

// Words returns the master in a plan's text, such as "host/ens3".
func (m Master) Words() string { return m.Where.String() + cmp.Or(m.Link, egress) }

// Verify implements plan.Requirement.
func (m Master) Verify(ctx context.Context, w *kernel.World) error {
	_, l, err := m.Find(w)
	if err == nil {
		m.warn(l)
	}
	return err
}

// warn says that the master is down: it is the administrator's to set up.
func (m Master) warn(l *rtnl.Link) {
	if !l.Up {
		slog.Warn("the master is down: links on it carry nothing until it is up (ip link set "+l.Name+
			" up)",
			"master", l.Name)
	}
}

// Find returns the master and its namespace.
func (m Master) Find(w *kernel.World) (*kernel.NS, *rtnl.Link, error) {
	ns, err := m.Where.Namespace(w)
	if err != nil {
		return nil, nil, err
	}
	var l *rtnl.Link
	what := fmt.Sprintf("master: %q", m.Link)
	if m.Link == "" {
		l, err = rtnl.Egress(ns)
		if err == nil {
			what = fmt.Sprintf("master: %s (of the default route)", l.Name)
		}
	} else {
		l, err = rtnl.LinkByName(ns, m.Link)
	}
	if errors.Is(err, rtnl.ErrNoLink) {
		err = m.missing(w, ns)
	}
	if err == nil {
		err = m.fits(ns, l, what)
	}
	return ns, l, err
}

// missing says that there is no such master, and which there are.
func (m Master) missing(w *kernel.World, ns *kernel.NS) error {
	if m.Link != "" && w.Container != nil && w.Host != nil {
		other, hint := w.Container, `it is in the container; "linkInContainer": true means that one`
		if m.Where == resource.Container {
			other, hint = w.Host, `it is on the host; without "linkInContainer" it is meant`
		}
		if _, err := rtnl.IndexOf(other, m.Link); err == nil {
			return spec.Errorf(spec.CodeConfig, "master: %q: no such link %s: %s", m.Link, m.Where.Place(), hint)
		}
	}
	names, err := resource.NamesOf(ns, func(l *rtnl.Link) bool { return l.Name != "lo" })
	if err != nil {
		return err
	}
	there := "there is none but lo"
	if len(names) > 0 {
		there = resource.Instead(m.Link, names)
	}
	if m.Link == "" {
		return spec.Errorf(spec.CodeConfig,
			"master: is missing, and there is no default route %s whose link could stand in; %s", m.Where.Place(),
			there)
	}
	return spec.Errorf(spec.CodeConfig, "master: %q: no such link %s; %s", m.Link, m.Where.Place(), there)
}

// fits says whether a link can have another above it.
func (m Master) fits(ns *kernel.NS, l *rtnl.Link, what string) error {
	err := m.stands(ns, l, what)
	if err == nil {
		return nil
	}
	names, _ := resource.NamesOf(ns, func(other *rtnl.Link) bool {
		return other.Index != l.Index && other.Up && m.stands(ns, other, "") == nil
	})
	if len(names) > 0 {
		err = spec.Errorf(spec.CodeConfig, "%w; %s would do", err, resource.SomeOf(names))
	}
	return err
}

func (m Master) stands(ns *kernel.NS, l *rtnl.Link, what string) error {
	switch {
	case (m.Taken || m.Ether) && !l.Ethernet:
		return spec.Errorf(spec.CodeConfig, "%s: is %s, which has no Ethernet headers, and %s needs them", what,
			resource.KindOf(l), m.Kind)
	case !l.Up && m.Up:
		return spec.Errorf(spec.CodeConfig, "%s: is down; set it up (ip link set %s up)", what,
			l.Name).WithHint("That is the host's to fix: no file is wrong.")
	case m.MTU > l.MTU:
		return spec.Errorf(spec.CodeConfig, "mtu: %d: %s has %d; want 68 to %[3]d bytes, or none for the master's",
			m.MTU, l.Name, l.MTU)
	case !m.Taken || l.Master == 0:
		return nil
	}
	above, err := rtnl.LinkByIndex(ns, l.Master)
	if err != nil {
		return resource.ExceptNoLink(err)
	}
	switch above.Kind {
	case "bridge", "bond", "team", "openvswitch":
		return spec.Errorf(spec.CodeConfig,
			"%s: is a port of %s, which takes all that comes in by it; name %[2]q instead", what, above.Name)
	}
	return nil
}
