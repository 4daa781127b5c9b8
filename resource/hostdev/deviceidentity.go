package hostdev

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// A deviceIdentity is what the kernel says of a moved device, and whoever is root in its container cannot put on
// another link. He may move it away and make a link of its index, but none of no kind, none on a link of the host, none
// that sends from the host's namespace, and no pair whose other end is where this one's is.
//
// A dummy, an ifb, a tap and a wireguard have nothing of the kind: one that was deleted in the container, and made
// again there under its index, is taken for it.
type deviceIdentity struct {
	HostIndex int         // where it was
	Index     int         // in the container
	Peer      int         // of a pair or of what stands on another link: that one's index
	In        *devicePeer // where that is as the container has it; nil until it is there
	Permanent []byte      // the card's own address, if it has one
	Home      devicePeer  // where that is as the host has it; with a negative NS somewhere away
}

// A devicePeer is the namespace of a link's other end, of the link that it stands on, or from which a tunnel sends.
type devicePeer struct {
	Away bool
	NS   int
}

func identityOf(l *rtnl.Link) *deviceIdentity {
	return &deviceIdentity{HostIndex: l.Index, Index: l.Index, Peer: l.Peer, Permanent: l.Permanent, Home: peerOf(l)}
}

func peerOf(l *rtnl.Link) devicePeer { return devicePeer{l.PeerAway, l.PeerNS} }

// bound reports whether links of a kind stay with the same other one for life.
func bound(kind string) bool {
	return slices.Contains([]string{"veth", "netkit", "vxcan", "macvlan", "macvtap", "ipvlan", "ipvtap", "vlan"}, kind)
}

// rooted reports whether the kernel says of a kind in which namespace its other end
// is, or from which it sends, whatever the version.
func rooted(kind string) bool {
	return slices.Contains([]string{"veth", "netkit", "vxcan", "macvlan", "ipvlan", "vlan", "macsec", "vxlan", "geneve",
		"gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ip6erspan", "ipip", "sit", "ip6tnl", "vti", "vti6", "xfrm"},
		kind)
}

// same reports whether a link of the container can be the device, by all that the kernel says.
func (r DeviceRecord) same(l *rtnl.Link) bool {
	dir := containerDir(l)
	if l.Kind != r.Kind || r.Dir != "" && dir != "" && dir != r.Dir || !bytes.Equal(l.Permanent, r.Is.Permanent) {
		return false
	}
	return (!bound(l.Kind) || l.Peer == r.Is.Peer) && (r.Is.In == nil || r.Is.In.NS < 0 || peerOf(l) == *r.Is.In)
}

// home is same for a link of the host. Here it is certain: whoever is root in a container reaches none of these.
func (r DeviceRecord) home(l *rtnl.Link) bool {
	if dir := dirOf(l); l.Kind != r.Kind || r.Dir != "" && dir != "" && dir != r.Dir {
		return false
	}
	if r.Is == nil {
		return true
	}
	at := peerOf(l)
	return bytes.Equal(l.Permanent, r.Is.Permanent) && (!bound(l.Kind) || l.Peer == r.Is.Peer) &&
		(at == r.Is.Home || r.Is.Home.NS < 0 && at.Away)
}

// expect says where the container has to have the other end of what has it on the host: what an addition that was
// killed did not write down. Namespaces have numbers for each other once a link was listed that needs one.
func (r DeviceRecord) expect(w *kernel.World, in *kernel.NS) {
	if rooted(r.Kind) && r.Is.Home.NS >= 0 {
		at := r.Is.Home.from(w.Host, in)
		r.Is.In = &at
	}
}

// from is where one namespace says that something is, in the words of another one.
func (p devicePeer) from(one, other *kernel.NS) devicePeer {
	if id, err := rtnl.NSID(other, one); !p.Away && err == nil {
		return devicePeer{Away: true, NS: id}
	}
	if id, err := rtnl.NSID(one, other); err == nil && id >= 0 && id == p.NS {
		return devicePeer{}
	}
	id, err := rtnl.NSIDFor(one, other, p.NS)
	if err != nil {
		id = -1
	}
	return devicePeer{Away: true, NS: id}
}

// isThat reports whether what came to the host is the device, which was the link l of the container. Of one that
// nothing was written down of it goes by that.
func (r DeviceRecord) isThat(came *rtnl.Link, w *kernel.World, in *kernel.NS, l *rtnl.Link) bool {
	if r.Is != nil || !r.home(came) {
		return r.home(came)
	}
	at := peerOf(came).from(w.Host, in)
	return bytes.Equal(came.Permanent, l.Permanent) && (!bound(l.Kind) || came.Peer == l.Peer) &&
		(!rooted(l.Kind) || at.NS < 0 || at == peerOf(l))
}

// refuse returns a link to the container that has put it in the device's place while that was moved: it may be another
// one of the host's, so it is not deleted. The host has given it nothing yet.
func (r DeviceRecord) refuse(w *kernel.World, in *kernel.NS, l *rtnl.Link) error {
	_ = rtnl.SetAlias(w.Host, l.Index, "")
	m := rtnl.Move{To: in, Name: "dev%d"}
	err := rtnl.MoveLink(w.Host, l.Index, m)
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) { // the container has a link of one of its altnames
		_ = rtnl.DelAltNames(w.Host, l.Index, l.AltNames()...)
		err = rtnl.MoveLink(w.Host, l.Index, m)
	}
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return fmt.Errorf("give %s back: the container %s has put another link in its place, which stays on the "+
			"host, down: %w", r.Link, r.Netns, errors.Join(err, rename(w.Host, l, "dev%d")))
	}
	return fmt.Errorf("give %s back: the container %s has put another link in its place, and has that again; it is "+
		"looked for by the next DEL, GC and ADD", r.Link, r.Netns)
}

// identified is the device's link among those of the container, or nil: under its index, or where nothing else can be
// it under another one that somebody has given it by moving it away and back.
func (r DeviceRecord) identified(links []*rtnl.Link) *rtnl.Link {
	only := func(l *rtnl.Link) bool {
		return r.Dir != "" && containerDir(l) == r.Dir || l.Kind == "veth" && r.Is.In != nil && r.Is.In.NS >= 0
	}
	for _, is := range []func(l *rtnl.Link) bool{func(l *rtnl.Link) bool { return l.Index == r.Is.Index }, only} {
		for _, l := range links {
			if is(l) && r.same(l) {
				return l
			}
		}
	}
	return nil
}

// stayed is the device's link if it is on the host as it was: an addition was killed before it moved it.
func (r DeviceRecord) stayed(w *kernel.World) *rtnl.Link {
	if r.Is == nil {
		return nil
	}
	l, err := rtnl.LinkByIndex(w.Host, r.Is.HostIndex)
	if err != nil || l.Name != r.Link || !r.home(l) || l.Alias != r.Alias || l.MAC.String() != r.MAC {
		return nil
	}
	return l
}

// cameHome reports whether a link of the host is the device by what is nobody's to choose.
func (r DeviceRecord) cameHome(l *rtnl.Link) bool {
	return r.Is != nil && l.Kind == "veth" && r.Kind == "veth" && l.Peer == r.Is.Peer && peerOf(l) == r.Is.Home
}

// settle chooses the index that the device is to have in the container: its own, if that is free there.
func (r DeviceRecord) settle(w *kernel.World, from int) error {
	links, err := rtnl.Links(w.Container)
	if err != nil {
		return err
	}
	for r.Is.Index = from; slices.ContainsFunc(links,
		func(l *rtnl.Link) bool { return l.Index == r.Is.Index }); r.Is.Index++ {
	}
	return w.Store.PutSynced(deviceMemory, r.Owner, r)
}

// arrived writes down what only the container's namespace says of the device, right after the move. Before Linux 5.13
// that is its index, too.
func (r DeviceRecord) arrived(w *kernel.World, name string) error {
	l, err := rtnl.LinkByIndex(w.Container, r.Is.Index)
	if err != nil || !r.same(l) {
		if l, err = rtnl.LinkByName(w.Container, name); err != nil {
			return err
		}
	}
	at := peerOf(l)
	r.Is.Index, r.Is.In = l.Index, &at
	if r.expect(w, w.Container); r.Is.In.NS < 0 {
		r.Is.In = &at
	} else if *r.Is.In != at {
		err = fmt.Errorf("move %s: a process in the container has put another link in its place", r.Link)
	}
	return errors.Join(err, w.Store.Put(deviceMemory, r.Owner, r))
}

// hidden says that a container that lives has the device no more where anybody could tell that it is it.
func (r DeviceRecord) hidden() {
	slog.Warn("the container has deleted the device, or hides it; it is given back when it is found, or its "+
		"namespace is gone",
		"device", r.Link, "was for", r.who(), "netns", r.Netns)
}

// group is that which the device had. An earlier version did not write it down; then a network's is not its own.
func (r DeviceRecord) group(l *rtnl.Link) *uint32 {
	g := r.Group
	if r.Traits == nil && !identity.OfGroup(l.Group) && !identity.OfGroup(l.Group^1<<24) {
		g = l.Group
	}
	return &g
}
