package link

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Veth is a veth pair: one end in the container and one on the host, which may be a port of a bridge.
type Veth struct {
	Owner spec.Owner
	Name  string // the container's end
	Host  string // the host's end: identity.LinkName("veth", Owner), or a name that was chosen
	MTU   resource.MTU
	// to be verified of the container's end, which a later plugin may have changed; Ensure gives both ends MTU
	ContMTU int
	MAC     string // of the container's end
	HostMAC string
	Master  string // the bridge that the host's end is a port of
	// the host's end is a port of a switch that is no link, as Open vSwitch's are: the host has no IPv6 there
	Switched bool
	Hairpin  bool
	Isolated bool
	VLANs    VLANs
	Down     bool          // leave the container's end down
	Recreate plan.Resource // makes Master again where it went since it was ensured; nil: it does not go
}

func (v Veth) String() string {
	return resource.Line("link cont/"+v.Name, "type veth", resource.Opt("mtu", v.MTU), resource.Opt("address", v.MAC),
		resource.Opt("verified mtu", v.ContMTU), resource.Flag("down", v.Down), "peer host/"+v.Host,
		resource.Opt("address", v.HostMAC), resource.Opt("master", v.Master), resource.Flag("switched", v.Switched),
		resource.Flag("hairpin on", v.Hairpin), resource.Flag("isolated on", v.Isolated), v.VLANs.String())
}

// Traits implements resource.Describer.
func (v Veth) Traits() resource.Traits {
	is := resource.Traits{
		Ifaces: []resource.Iface{
			{Where: resource.Host, Name: v.Host, Kind: "veth", Master: v.Master},
			{Where: resource.Container, Name: v.Name},
		},
		Final: v.final, Fix: v.fix,
	}
	if v.Master != "" {
		is.Network.Segment = resource.Segment{Kind: "bridge", Link: v.Master, VLAN: v.VLANs.segment()}
	}
	if v.Isolated {
		is.Network.Marks = []string{"port isolation"}
	}
	return is
}

// final takes what a later plugin of the list has made of the container's end: see Final of resource.Traits.
func (v Veth) final(f spec.Interface) plan.Resource {
	v.MAC, v.ContMTU = f.MAC, f.MTU
	return v
}

// Ensure implements plan.Resource. A link called Name in the container is always an error, even the same veth pair: a
// second ADD must fail (P10).
func (v Veth) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	if w.Container == nil {
		return false, kernel.ErrNoNamespace
	}
	pair := rtnl.VethPair{Host: v.Host, Name: v.Name, NS: w.Container, Group: identity.LinkGroup(v.Owner.Network)}
	var err error
	if pair.MAC, err = resource.MAC(v.MAC, "cont", v.Owner); err != nil {
		return false, err
	}
	if pair.HostMAC, err = resource.MAC(v.HostMAC, "host", v.Owner); err != nil {
		return false, err
	}
	if pair.MTU, err = v.MTU.Resolve(w); err != nil {
		return false, err
	}
	if v.Master == "" {
		err = v.add(ctx, w, pair)
	} else {
		err = plug(ctx, w, v.Master, v.Recreate, func(br *rtnl.Link) error {
			pair.Master = br.Index
			return v.add(ctx, w, pair)
		})
	}
	if err != nil {
		return false, err
	}
	if err := v.finish(w, pair.HostMAC); err != nil {
		return false, errors.Join(err, v.Remove(ctx, w))
	}
	return true, nil
}

func (v Veth) add(ctx context.Context, w *kernel.World, pair rtnl.VethPair) error {
	if err := v.nameHost(w); err != nil {
		return err
	}
	err := rtnl.AddVeth(w.Host, pair)
	if errors.Is(err, fs.ErrExist) {
		if err = v.clear(ctx, w); err == nil {
			err = rtnl.AddVeth(w.Host, pair)
		}
	}
	if err != nil {
		if !errors.Is(err, rtnl.ErrLinkExists) { // which every kind says alike
			err = fmt.Errorf("add veth: %w", err)
		}
		// else it is what a living attachment goes by
		if old, e := rtnl.LinkByName(w.Host, v.Host); e != nil || !v.isOwned(old) {
			err = errors.Join(err, v.forgetName(w))
		}
		return err
	}
	return nil
}

// clear makes room after the error "file exists", which does not tell which end of the pair exists.
func (v Veth) clear(ctx context.Context, w *kernel.World) error {
	if err := v.free(w); err != nil {
		return err
	}
	old, err := rtnl.LinkByName(w.Host, v.Host)
	if err != nil {
		return resource.ExceptNoLink(err)
	}
	if !v.isOwned(old) && v.chosen() {
		return HostName{v.Owner, v.Host, "hostInterfaceName"}.taken(ctx, w)
	}
	if !v.isOwned(old) {
		return fmt.Errorf("link %s already exists on the host and was not made for this attachment: %w", v.Host,
			fs.ErrExist)
	}
	return v.drop(w, old)
}

// free is nil if the container has no link of the name.
func (v Veth) free(w *kernel.World) error {
	_, err := rtnl.LinkByName(w.Container, v.Name)
	if err == nil {
		err = rtnl.NameTaken(v.Name)
	}
	return resource.ExceptNoLink(err)
}

// drop deletes a veth pair that was made for this attachment in an earlier namespace, before the container was
// restarted. It does not delete the pair of the present namespace.
func (v Veth) drop(w *kernel.World, old *rtnl.Link) error {
	if here, err := rtnl.NSID(w.Host, w.Container); err != nil {
		return err
	} else if old.PeerAway && old.PeerNS >= 0 && old.PeerNS == here {
		return fmt.Errorf("link %s already leads into the container, under another name than %s: %w", old.Name, v.Name,
			fs.ErrExist)
	}
	return rtnl.DelLink(w.Host, old.Index)
}

// finish does what the creating message cannot, and sets the container's end up at last.
func (v Veth) finish(w *kernel.World, hostMAC net.HardwareAddr) error {
	// The host's end hears nothing until the container's end is up. Each change below is one that IPv6 would follow.
	if _, err := v.ignoreRA(w.Host); err != nil {
		return err
	}
	// Where IPv6 stays on: a port by itself is not talked to, and to make an address for one takes the kernel a second
	// of asking for it.
	c := rtnl.LinkChange{Alias: identity.Tag(v.Owner), NoLinkLocal: v.port()}
	if v.Master != "" && (v.Hairpin || v.Isolated) {
		c.Port = &rtnl.BridgePort{Hairpin: v.Hairpin, Isolated: v.Isolated}
	}
	if err := rtnl.SetLink(w.Host, v.Host, c); err != nil {
		return err
	}
	// For people only: `ip link show net:container:interface`. No link can be born with a colon in its name.
	_ = rtnl.AddAltName(w.Host, v.Host, resource.AltName(v.Owner))
	if v.Master != "" {
		if _, err := v.VLANs.ensure(w, v.Host); err != nil {
			return err
		}
	} else if !v.Switched {
		index, err := rtnl.IndexOf(w.Host, v.Host)
		if err != nil {
			return err
		}
		resource.LinkLocal(w.Host, index, hostMAC)
	}
	if v.Down {
		return nil
	}
	return rtnl.SetLink(w.Container, v.Name, rtnl.LinkChange{Up: true})
}

// ignoreRA stops packets of the container from changing the host's IPv6 configuration. A bridge port gets no IPv6 at
// all: the bridge takes its packets before IPv6 sees them, and each link with IPv6 slows every change of a link down
// (fib6_clean_all). A port that keeps IPv6 is no drift: the setting may be read-only, or the attachment older.
func (v Veth) ignoreRA(ns *kernel.NS) (changed bool, err error) {
	if v.port() {
		settings := sysctl.IPv6Off{Link: v.Host}.Settings()
		if v.Switched { // Open vSwitch's own datapath gets a copy of each packet, and the host the packet
			settings = append(settings, procsys.Setting{Key: "net/ipv4/conf/" + v.Host + "/arp_ignore", Value: "8"},
				procsys.Setting{Key: "net/ipv4/conf/" + v.Host + "/forwarding", Value: "0"})
		}
		if changed, err = procsys.Set(ns, settings...); err == nil {
			return changed, nil
		}
	}
	return resource.IgnoreRA(ns, v.Host)
}

// port reports whether a switch receives the container's packets before the host does.
func (v Veth) port() bool { return v.Master != "" || v.Switched }

// Verify implements plan.Resource. It compares the MTU of the container interface only if ContMTU is set, because
// tuning may change it (P16).
func (v Veth) Verify(ctx context.Context, w *kernel.World) error {
	fixed, lasting := v.verify(w)
	return append(lasting.Lasting(), fixed.On(resource.Host, v.Host)...).Err()
}

// verify returns the differences that Fix corrects, and those that only DEL and ADD correct.
func (v Veth) verify(w *kernel.World) (fixed, lasting resource.Drift) {
	var inside, host resource.Drift
	_, c, err := resource.Container.Link(w, v.Name)
	if err == nil {
		inside.Want("type", "veth", c.Kind)
		inside.WantIfSet("address", resource.MACText(v.MAC), c.MAC)
		inside.WantIfSet("mtu", v.ContMTU, c.MTU)
		if !v.Down {
			inside.WantUp("state", c)
		}
	}
	h, herr := rtnl.LinkByName(w.Host, v.Host)
	if herr == nil {
		err = v.renamed(w, h, err)
	}
	inside.Add(err)
	lasting = inside.On(resource.Container, v.Name)
	if herr != nil {
		host.Add(v.missing(w, c, herr))
		return nil, append(lasting, host.On(resource.Host, v.Host)...)
	}
	host.Want("host type", "veth", h.Kind)
	if c != nil && (c.Peer != h.Index || h.Peer != c.Index) {
		host.Add(spec.Difference{Field: "peer", Text: v.Name + " and " + v.Host + " are not the two ends of one pair"})
	}
	if v.MTU > 0 {
		host.Want("host mtu", v.MTU, h.MTU)
	}
	lasting = append(lasting, host.On(resource.Host, v.Host)...)

	fixed.WantUp("host state", h)
	fixed.WantIfSet("host address", resource.MACText(v.HostMAC), h.MAC)
	if h.Master == 0 { // else its bridge takes what comes in before IPv6 sees it
		fixed.Add(resource.IgnoresRA(w.Host, v.Host))
	}
	wantPort(&fixed, w, h, v.Master, v.Hairpin, v.Isolated)
	wantVLANs(&fixed, w, h, v.VLANs)
	return fixed, lasting
}

// missing is err, that the host's end is not there, with the name that it has now. The two ends go together, so without
// the container's there is nothing more to say.
func (v Veth) missing(w *kernel.World, cont *rtnl.Link, err error) error {
	if !errors.Is(err, rtnl.ErrNoLink) {
		return err
	}
	err, found := CalledNow(w.Host, err, v.isOwned)
	if cont == nil && !found {
		return nil
	}
	return err
}

// renamed is err, that the container's end is not there, with the name that it has now: the other end of the host's.
func (v Veth) renamed(w *kernel.World, h *rtnl.Link, err error) error {
	if !errors.Is(err, rtnl.ErrNoLink) || !v.isOwned(h) || !h.PeerAway || h.PeerNS < 0 {
		return err
	}
	if here, ierr := rtnl.NSID(w.Host, w.Container); ierr != nil || here != h.PeerNS {
		return err
	}
	err, _ = CalledNow(w.Container, err, func(l *rtnl.Link) bool { return l.Index == h.Peer })
	return err
}

// Remove implements plan.Remover. It finds the pair by the name of the host-side interface, also when the container
// is gone. It finds a pair of the reference's plugin from the container.
func (v Veth) Remove(ctx context.Context, w *kernel.World) error {
	l, err := v.find(w)
	if err == nil && l != nil {
		err = rtnl.DelLink(w.Host, l.Index)
	}
	if err != nil {
		return err
	}
	return v.forgetName(w)
}

// find is the host's end, or nil: under the name that it was given, which may be another than the configuration has
// now, under the owner's own, or behind the container's end.
func (v Veth) find(w *kernel.World) (*rtnl.Link, error) {
	if l, err := v.named(w); l != nil || err != nil {
		return l, err
	}
	names := []string{v.Host}
	if v.chosen() {
		names = append(names, identity.LinkName("veth", v.Owner))
	}
	for _, name := range names {
		if l, err := rtnl.LinkByName(w.Host, name); resource.ExceptNoLink(err) != nil || err == nil && v.isOwned(l) {
			return l, err
		}
	}
	if l, err := v.foreign(w); l != nil || err != nil {
		return l, err
	}
	return v.bothRenamed(w)
}

// bothRenamed returns the host-side interface of a pair whose two ends were renamed, or nil. It has the owner's mark,
// and its peer is in the container.
func (v Veth) bothRenamed(w *kernel.World) (*rtnl.Link, error) {
	if w.Container == nil {
		return nil, nil
	}
	links, err := rtnl.Links(w.Host)
	if err != nil {
		return nil, err
	}
	here, err := rtnl.NSID(w.Host, w.Container)
	for _, l := range links {
		if here >= 0 && l.PeerAway && l.PeerNS == here && v.isOwned(l) {
			return l, nil
		}
	}
	return nil, err
}

// foreign is the host's end of a pair that this attachment has though it does not bear its name: renamed, or
// made by the reference plugin, which leaves no mark. It is nil if there is none or it may be another program's.
func (v Veth) foreign(w *kernel.World) (*rtnl.Link, error) {
	h, err := resource.HostEnd(w, v.Name)
	if h == nil || err != nil {
		return nil, err
	}
	if _, _, _, tagged := identity.ParseTag(h.Alias); tagged {
		if !resource.Owned(h, v.Owner) {
			return nil, nil
		}
		return h, nil
	}
	if !referenceName(h.Name) || v.Master == "" && h.Master != 0 {
		return nil, nil
	}
	if v.Master == "" {
		return h, nil
	}
	br, err := resource.Bridge(w, v.Master)
	if err != nil || h.Master != br.Index {
		return nil, resource.ExceptNoLink(err)
	}
	return h, nil
}

// referenceName reports whether a name is veth and 8 hex digits, as the reference plugins have it.
func referenceName(name string) bool {
	digits, ok := strings.CutPrefix(name, "veth")
	return ok && len(digits) == 8 && strings.Trim(digits, "0123456789abcdef") == ""
}
