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

// A deviceIdentity holds the properties of a moved device that root in its container cannot give another link. Root
// may move the device away and create a link with its index. But that link always has a kind, is not stacked on a
// link of the host, does not send from the host's namespace, and has no peer in the namespace of the device's peer.
//
// A dummy, ifb, tap or wireguard has no such property. If root deletes one and creates another with its index, the
// new link is taken for the device.
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

// home is same for a link of the host. The answer is certain, because root in a container cannot change links of the
// host.
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

// refuse returns a link to the container that was put in the device's place during the move. It does not delete the
// link, which may be another device of the host. The link has received nothing from the host yet.
func (r DeviceRecord) refuse(w *kernel.World, in *kernel.NS, l *rtnl.Link) error {
	_ = rtnl.SetAlias(w.Host, l.Index, "")
	m := rtnl.LinkChange{To: in, Rename: "dev%d"}
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

// identified returns the device's link among those of the container, or nil. It looks under the recorded index. If
// the link was moved away and back, it has another index; then the only possible link counts.
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

// stayed returns the device's link if it is on the host unchanged, because ADD was killed before the move.
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

// cameHome reports whether a link of the host is the device by what cannot be chosen.
func (r DeviceRecord) cameHome(l *rtnl.Link) bool {
	return r.Is != nil && l.Kind == "veth" && r.Kind == "veth" && l.Peer == r.Is.Peer && peerOf(l) == r.Is.Home
}

// chooseIndex chooses the index that the device is to have in the container: its own, if that is free there.
func (r DeviceRecord) chooseIndex(w *kernel.World, from int) error {
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

// hidden returns the error that a running container no longer has a link that can be recognized as the device.
func (r DeviceRecord) hidden() {
	slog.Warn("the container deleted or hides the device; it is returned once it is found, or once the namespace "+
		"is gone", "device", r.Link, "was for", r.ownerText(), "netns", r.Netns)
}

// group is that which the device had. An earlier version did not write it down; then a network's is not its own.
func (r DeviceRecord) group(l *rtnl.Link) *uint32 {
	g := r.Group
	if r.Traits == nil && !identity.OfGroup(l.Group) && !identity.OfGroup(l.Group^1<<24) {
		g = l.Group
	}
	return &g
}
