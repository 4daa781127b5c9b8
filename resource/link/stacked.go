package link

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A Stacked is the common part of links on a master: macvlan, macvtap, ipvlan and vlan. The host keeps only what Verify
// needs.
type Stacked struct {
	Inside
	Master Master
	Chosen bool   // the configuration names no master, so that Verify goes by the one that Ensure chose
	MACKey string // the key or variable that asks for the MAC; empty where nothing does
	index  int
}

// words returns the line of a plan: "link cont/eth0 type KIND … on host/ens3 …".
func (s Stacked) words(kind string, own ...string) string {
	on := resource.Flag("on "+s.Master.Words(), s.Master.Kind != "")
	return s.Inside.words(kind, resource.Line(append(own, on)...))
}

// traits returns the Traits that all links on a master have.
func (s Stacked) traits(kind, mode string, final func(spec.Interface) plan.Resource) resource.Traits {
	is := s.Inside.traits()
	is.Network, is.Possible, is.Final = s.network(mode), resource.KindPossible(kind), final
	return is
}

// network is the master's.
func (s Stacked) network(mode string) resource.Network {
	return resource.Network{Segment: resource.Segment{Kind: "master", Link: s.Master.Link}, Mode: mode}
}

// A chosenMaster is the one that Ensure found. It is the master to verify where the configuration names none.
type chosenMaster struct {
	Where resource.Where
	Index int
}

// make makes the link. One of its name is always an error, and stays as it was (P10).
func (s Stacked) make(w *kernel.World, kind string, data func(*netlink.Buffer)) error {
	if w.Container == nil {
		return kernel.ErrNoNamespace
	}
	ns, master, err := s.Master.Find(w)
	if err != nil {
		return err
	}
	s.Master.warn(master)
	l := s.newLink(kind)
	l.NS, l.Index, l.Parent, l.Data = w.Container, s.index, master.Index, data
	if s.MAC != "" {
		if l.MAC, err = resource.MAC(s.MAC, "cont", s.Owner); err != nil {
			return err
		}
	}
	err = rtnl.AddLink(ns, l)
	if errors.Is(err, rtnl.ErrLinkExists) && l.Index == 0 {
		// To older kernels (6.1) a link of that name in the namespace of the request counts too, and eth0 is a name of
		// many hosts. Where an index is asked for, the kernel goes by that.
		if _, lerr := rtnl.LinkByName(w.Container, s.Name); errors.Is(lerr, rtnl.ErrNoLink) {
			l.Index = s.spareIndex()
			err = rtnl.AddLink(ns, l)
		}
	}
	switch {
	case errors.Is(err, unix.EBUSY):
		return spec.Errorf(spec.CodeConfig,
			"master: %q: is in use by something that takes what comes in by it (a macvlan and an ipvlan do not share "+
				"one): %w", master.Name, err)
	case errors.Is(err, unix.EADDRINUSE):
		return s.taken(w, kind, master, err)
	case errors.Is(err, rtnl.ErrLinkExists):
		return rtnl.NameTaken(s.Name)
	case err != nil:
		return err
	}
	return rememberLink(w, s.Owner, s.Name, kind, &chosenMaster{s.Master.Where, master.Index})
}

// spareIndex is an index for the link that is out of the way of those that the kernel counts up.
func (s Stacked) spareIndex() int {
	h := identity.OwnerHash(s.Owner)
	return 1<<30 | int(binary.BigEndian.Uint32(h[:]))&(1<<30-1)
}

// taken says who has the address that the link is to have.
func (s Stacked) taken(w *kernel.World, kind string, master *rtnl.Link, err error) error {
	if m, rerr := recallLink(w, s.Owner, w.Container); rerr == nil {
		links, lerr := ownLinks(w, w.Container, m, identity.OwnerHash(s.Owner),
			func(l *rtnl.Link) bool { return derived(l, s.Owner) }, kind)
		if lerr == nil && len(links) > 0 {
			return fmt.Errorf("%w: it is called %s now", rtnl.NameTaken(s.Name), links[0].Name)
		}
	}
	if slices.Contains(contMACs(s.Owner), s.MAC) { // it was not asked for
		return fmt.Errorf("address %s, which is this attachment's own: %s, or another link on it, has it: %w", s.MAC,
			master.Name, err)
	}
	return spec.Errorf(spec.CodeConfig, "%s: %q: %s, or another link on it, has that address: %w",
		cmp.Or(s.MACKey, "mac"), s.MAC, master.Name, err)
}

// verify also compares what the link stands on.
func (s Stacked) verify(w *kernel.World, kind string) (l *rtnl.Link, d resource.Drift) {
	if l, d = s.Inside.verify(w, kind); l != nil {
		d.Add(s.onMaster(w, l))
	}
	return l, d
}

// isMacvlan reports whether a link is one of the two kinds that are one to the kernel.
func isMacvlan(l *rtnl.Link) bool { return l.Kind == "macvlan" || l.Kind == "macvtap" }

// onMaster is nil if a link stands on its master, and that is up.
func (s Stacked) onMaster(w *kernel.World, l *rtnl.Link) error {
	chosen, known := chosenMaster{Where: s.Master.Where}, s.Chosen
	if s.Chosen {
		m, err := recallLink(w, s.Owner, w.Container)
		if err != nil || m.Master == nil {
			return err // of an ADD that was killed before it remembered, what is there has to do
		}
		chosen = *m.Master
	}
	ns, err := chosen.Where.Namespace(w)
	if err != nil {
		return err
	}
	var master *rtnl.Link
	if known {
		master, err = rtnl.LinkByIndex(ns, chosen.Index)
	} else {
		master, err = rtnl.LinkByName(ns, s.Master.Link)
	}
	if err != nil {
		return fmt.Errorf("master: %w", err)
	}
	var d resource.Drift
	if !master.Up && s.Master.Up {
		d.Add(spec.DiffersBy("state of the master", "master %s is down", master.Name))
	}
	s.Master.warn(master)
	below, in := master.Index, ns
	// the kernel puts one above another on what that stands on
	if isMacvlan(master) && isMacvlan(l) || master.Kind == "ipvlan" && l.Kind == "ipvlan" {
		below, in = master.Peer, nil
	}
	away := l.PeerAway
	if here, err := rtnl.NSID(w.Container, ns); in != nil && away && err == nil && here >= 0 {
		away = here != l.PeerNS
	} else if in == nil {
		away = false
	}
	if l.Peer != below || away {
		is := fmt.Sprintf("#%d", l.Peer)
		if other, err := rtnl.LinkByIndex(ns, l.Peer); err == nil && !away {
			is = other.Name
		}
		d.Want("master", master.Name, is)
	}
	return d.Err()
}

// dyingLimit is how long ADD waits for links of a namespace that has ended. The kernel removes them later, while a
// restarted container needs the address at once.
const dyingLimit = time.Second

// withOwnMAC makes a link with the owner's derived address. If another link on the master has it, that link usually
// belongs to the owner's former container, whose namespace is ending. So withOwnMAC waits, and then tries the owner's
// other addresses.
func withOwnMAC(ctx context.Context, on *kernel.NS, o spec.Owner, mac string, make func(mac string) error) error {
	err := make(mac)
	macs := contMACs(o)
	if mac != macs[0] || !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	ended := rtnl.Await(on, ctx, dyingLimit, []uint{rtnl.LinkEvents}, func() (bool, error) {
		if err = make(mac); errors.Is(err, unix.EADDRINUSE) {
			return false, nil
		}
		return err == nil, err
	})
	if !errors.Is(ended, context.DeadlineExceeded) {
		return ended
	}
	for _, other := range macs[1:] {
		if err = make(other); !errors.Is(err, unix.EADDRINUSE) {
			slog.Warn("a link in another namespace has the attachment's address, as of an earlier ADD without a DEL: "+
				"it has another one",
				"owner", o, "address", other)
			return err
		}
	}
	return err
}
