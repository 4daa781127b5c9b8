package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// MasterRoom requires that a master has room for a macvlan. A passthru macvlan has to be the only one on its master, in
// any namespace. A macvlan of the same network is no obstacle: it occupies the master as the network intends.
type MasterRoom struct {
	Master   Master
	Network  string
	Passthru bool
}

func (a MasterRoom) String() string {
	if a.Passthru {
		return "link " + a.Master.Words() + " without a macvlan"
	}
	return "link " + a.Master.Words() + " without a passthru"
}

// Verify implements plan.Requirement. It searches only a promiscuous master, because the kernel makes the master of a
// passthru macvlan promiscuous.
func (a MasterRoom) Verify(_ context.Context, w *kernel.World) error {
	ns, master, err := a.Master.Find(w)
	if err != nil {
		return nil // Master itself says what is wrong with it
	}
	if isMacvlan(master) && !master.PeerAway { // what is put on one stands beside it
		if master, err = rtnl.LinkByIndex(ns, master.Peer); err != nil {
			return nil
		}
	}
	if !a.Passthru && master.Watchers() == 0 {
		return nil
	}
	return a.inTheWay(w, ns, master)
}

// inTheWay describes the links that leave no room on the master, as far as they are visible: beside the master, and
// in the containers of recorded attachments.
func (a MasterRoom) inTheWay(w *kernel.World, ns *kernel.NS, master *rtnl.Link) error {
	if err := a.among(ns, ns, master); err != nil {
		return err
	}
	if w.Container != nil && w.Container != ns {
		if err := a.among(w.Container, ns, master); err != nil {
			return err
		}
	}
	records, err := resource.DecodeRecords[resource.Made](w.Store.All(resource.MadeRecord))
	if err != nil {
		return err
	}
	seen := map[kernel.Identity]bool{}
	for _, m := range records {
		if m.Path == "" || seen[m.Identity] {
			continue
		}
		seen[m.Identity] = true
		in, err := m.Open()
		if in == nil || err != nil {
			continue
		}
		err = a.among(in, ns, master)
		in.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// among says which of a namespace's links is in the way of one on a master that is in ns.
func (a MasterRoom) among(in, ns *kernel.NS, master *rtnl.Link) error {
	links, err := rtnl.Links(in)
	if err != nil {
		return err
	}
	here := -1
	if in != ns {
		if here, err = rtnl.NSID(in, ns); err != nil || here < 0 {
			return err
		}
	}
	for _, l := range links {
		passthru := l.Data.Mode == MacvlanModes()["passthru"]
		network, _, text, tagged := identity.ParseTag(l.Alias)
		switch {
		case !isMacvlan(l), l.Peer != master.Index, l.PeerAway != (in != ns), l.PeerAway && l.PeerNS != here:
			continue
		case tagged && network == identity.NetworkHash(a.Network) || !a.Passthru && !passthru:
			continue
		}
		who := resource.KindOf(l) + ", " + l.Name
		if passthru {
			who = "a passthru, " + l.Name
		}
		if tagged {
			who += " of " + text
		}
		if a.Passthru {
			return spec.Errorf(spec.CodeConfig,
				`mode: "passthru": has to be alone on its master, and %s has %s; name another master, or another mode`,
				master.Name, who)
		}
		if in == ns && l.Name == a.Master.Link {
			return spec.Errorf(spec.CodeConfig,
				"master: %q: is a passthru, which has to be alone on %s; name another master", l.Name, master.Name)
		}
		return spec.Errorf(spec.CodeConfig, "master: %q: has %s, which has to be alone there; name another master",
			master.Name, who)
	}
	return nil
}

// crowded returns the kernel's error that there is no room for a macvlan, with the links that are in the way.
func (m Macvlan) crowded(w *kernel.World, err error) error {
	passthru := m.mode() == "passthru"
	if ns, master, ferr := m.Master.Find(w); ferr == nil {
		why := MasterRoom{Master: m.Master, Passthru: passthru}.inTheWay(w, ns, master)
		if e := (*spec.Error)(nil); errors.As(why, &e) {
			return fmt.Errorf("%w: %w", why, err)
		}
	}
	return spec.Errorf(spec.CodeConfig, "mode: %q: a passthru has to be alone on its master: %w", m.mode(), err)
}
