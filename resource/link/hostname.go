package link

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A HostName requires that no other link has the name that the configuration gives the host-side interface. STATUS
// has an owner without a container. Then the name may also be that of one attachment of the network.
type HostName struct {
	Owner spec.Owner
	Name  string
	Key   string // of the configuration, for errors
}

func (h HostName) String() string { return "name host/" + h.Name + " free or its own" }

// Verify implements plan.Requirement.
func (h HostName) Verify(ctx context.Context, w *kernel.World) error {
	l, err := rtnl.LinkByName(w.Host, h.Name)
	switch {
	case err != nil:
		return resource.ExceptNoLink(err)
	case h.Owner.ContainerID == "" && markedFor(l, h.Owner.Network), (Veth{Owner: h.Owner}).isOwned(l):
		return nil
	}
	return h.taken(ctx, w)
}

// markLimit is how long a link may exist without its owner's mark, which is set after the link's creation.
const markLimit = time.Second

// taken returns the error that another link has the name, with that link's owner.
func (h HostName) taken(ctx context.Context, w *kernel.World) error {
	who, holder := "", ""
	err := rtnl.Await(w.Host, ctx, markLimit, []uint{rtnl.LinkEvents}, func() (bool, error) {
		l, err := rtnl.LinkByName(w.Host, h.Name)
		if err != nil {
			who = "another link had it a moment ago"
			return true, resource.ExceptNoLink(err)
		}
		_, _, text, tagged := identity.ParseTag(l.Alias)
		switch who = resource.KindOf(l) + " of the host's"; {
		case tagged:
			who, holder = text+" has it", text
		case identity.OfGroup(l.Group):
			who = "an attachment that is being made has it"
		}
		return tagged || !identity.OfGroup(l.Group), nil
	})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return spec.Errorf(spec.CodeConfig, "%s: %q: %s; a name is for one link at a time", h.Key, h.Name,
		who).HeldBy(holder)
}

// markedFor reports whether a link was made for an attachment of a network.
func markedFor(l *rtnl.Link, network string) bool {
	if n, _, _, tagged := identity.ParseTag(l.Alias); tagged {
		return n == identity.NetworkHash(network)
	}
	return l.Group == identity.LinkGroup(network)
}

// hostNameRecord is the record of which name was chosen: DEL may not be told any more.
const hostNameRecord = "hostname"

// chosen reports whether the name of the host's end is not the one that the owner has anyway.
func (v Veth) chosen() bool { return v.Host != identity.LinkName("veth", v.Owner) }

// isOwned reports whether a link is the host-side interface of the owner. The mark may be missing after a kill. Then
// the link's group, which is the network's, and its MAC address, which is the owner's, decide; a chosen name proves
// nothing.
func (v Veth) isOwned(l *rtnl.Link) bool {
	if _, _, _, tagged := identity.ParseTag(l.Alias); l.Kind != "veth" || tagged ||
		l.Name == identity.LinkName("veth", v.Owner) {
		return l.Kind == "veth" && resource.Owned(l, v.Owner)
	}
	return l.Group == identity.LinkGroup(v.Owner.Network) && bytes.Equal(l.MAC, identity.MAC("host", v.Owner))
}

// nameHost records a chosen name before a link gets it. It removes a veth pair that the attachment had under another
// name before its container was restarted.
func (v Veth) nameHost(w *kernel.World) error {
	was, err := v.named(w)
	if err != nil {
		return err
	}
	if was != nil && was.Name != v.Host {
		if err = v.free(w); err == nil {
			err = v.drop(w, was)
		}
		if err != nil {
			return err
		}
	}
	if !v.chosen() {
		return nil
	}
	return w.Store.Put(hostNameRecord, v.Owner, v.Host)
}

// named is the host's end under the name that was remembered, or nil.
func (v Veth) named(w *kernel.World) (*rtnl.Link, error) {
	var name string
	if known, err := w.Store.Get(hostNameRecord, v.Owner, &name); err != nil || !known {
		return nil, err
	}
	l, err := rtnl.LinkByName(w.Host, name)
	if errors.Is(err, rtnl.ErrNoLink) || err == nil && !v.isOwned(l) {
		return nil, nil
	}
	return l, err
}

// forgetName forgets a chosen name, of which there may be none.
func (v Veth) forgetName(w *kernel.World) error { return w.Store.Delete(hostNameRecord, v.Owner) }
