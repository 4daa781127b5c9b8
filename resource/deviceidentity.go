package resource

import (
	"bytes"
	"log/slog"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
)

// A deviceIdentity is what the kernel says of a moved device, and whoever is root in its container cannot put on another
// link. He may move it away and make a link of its index, but none of no kind, none on a link of the host, and no pair
// whose other end is where this one's is.
//
// A tap has nothing of the kind: one that was deleted in the container, and made again there under its index, is taken
// for it.
type deviceIdentity struct {
	HostIndex int         // where it was
	Index     int         // in the container
	Peer      int         // of a pair or of what stands on another link: that one's index
	In        *devicePeer // where that is as the container has it; nil until it is there
	Permanent []byte      // the card's own address, if it has one
	Home      devicePeer  // where the other end is as the host has it
}

type devicePeer struct {
	Away bool
	NS   int
}

func identityOf(l *kernel.Link) *deviceIdentity {
	return &deviceIdentity{HostIndex: l.Index, Index: l.Index, Peer: l.Peer, Permanent: l.Permanent, Home: peerOf(l)}
}

func peerOf(l *kernel.Link) devicePeer { return devicePeer{l.PeerAway, l.PeerNS} }

// bound reports whether links of a kind stay with the same other one for life.
func bound(kind string) bool {
	return slices.Contains([]string{"veth", "macvlan", "macvtap", "ipvlan", "vlan"}, kind)
}

// same reports whether a link of the container can be the device, by all that the kernel says.
func (r deviceRecord) same(l *kernel.Link) bool {
	dir := containerDir(l)
	switch {
	case l.Kind != r.Kind || r.Dir != "" && dir != "" && dir != r.Dir || !bytes.Equal(l.Permanent, r.Is.Permanent):
		return false
	case !bound(l.Kind):
		return true
	}
	return l.Peer == r.Is.Peer && (r.Is.In == nil || r.Is.In.NS < 0 || peerOf(l) == *r.Is.In)
}

// identified is the device's link among those of the container, or nil: under its index, or where nothing else can be
// it under another one that somebody has given it by moving it away and back.
func (r deviceRecord) identified(links []*kernel.Link) *kernel.Link {
	only := func(l *kernel.Link) bool {
		return r.Dir != "" && containerDir(l) == r.Dir || l.Kind == "veth" && r.Is.In != nil && r.Is.In.NS >= 0
	}
	for _, is := range []func(l *kernel.Link) bool{func(l *kernel.Link) bool { return l.Index == r.Is.Index }, only} {
		for _, l := range links {
			if is(l) && r.same(l) {
				return l
			}
		}
	}
	return nil
}

// stayed is the device's link if it is on the host as it was: an addition was killed before it moved it.
func (r deviceRecord) stayed(w *kernel.World) *kernel.Link {
	if r.Is == nil {
		return nil
	}
	l, err := w.Host.LinkAt(r.Is.HostIndex)
	if err != nil || l.Name != r.Link || l.Kind != r.Kind || l.Alias != r.Alias || l.MAC.String() != r.MAC {
		return nil
	}
	return l
}

// cameHome reports whether a link of the host is the device by what is nobody's to choose.
func (r deviceRecord) cameHome(l *kernel.Link) bool {
	return r.Is != nil && l.Kind == "veth" && r.Kind == "veth" && l.Peer == r.Is.Peer && peerOf(l) == r.Is.Home
}

// settle chooses the index that the device is to have in the container: its own, if that is free there.
func (r deviceRecord) settle(w *kernel.World, from int) error {
	links, err := w.Container.Links()
	if err != nil {
		return err
	}
	for r.Is.Index = from; slices.ContainsFunc(links, func(l *kernel.Link) bool { return l.Index == r.Is.Index }); r.Is.Index++ {
	}
	return w.Memory.RememberForGood(deviceMemory, r.Owner, r)
}

// arrived writes down what only the container's namespace says of the device, right after the move. Before Linux 5.13
// that is its index, too.
func (r deviceRecord) arrived(w *kernel.World, name string) error {
	l, err := w.Container.LinkAt(r.Is.Index)
	if err != nil || !r.same(l) {
		if l, err = w.Container.Link(name); err != nil {
			return err
		}
	}
	in := peerOf(l)
	r.Is.Index, r.Is.In = l.Index, &in
	return w.Memory.Remember(deviceMemory, r.Owner, r)
}

// hidden says that a container that lives has the device no more where anybody could tell that it is it.
func (r deviceRecord) hidden() {
	slog.Warn("the container has deleted the device, or hides it; it is given back when it is found, or its namespace is gone",
		"device", r.Link, "was for", r.who(), "netns", r.Netns)
}

// group is that which the device had. An earlier version did not write it down; then a network's is not its own.
func (r deviceRecord) group(l *kernel.Link) *uint32 {
	g := r.Group
	if r.Traits == nil && !kernel.OfGroup(l.Group) && !kernel.OfGroup(l.Group^1<<24) {
		g = l.Group
	}
	return &g
}
