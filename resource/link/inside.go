package link

import (
	"cmp"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// An Inside is the common part of links that are made inside the container: dummy, tap, macvlan, macvtap, ipvlan and
// vlan. The link ends with the container's namespace.
type Inside struct {
	Owner spec.Owner
	Name  string
	MTU   int    // zero: the kernel's, or the master's
	MAC   string // empty: the owner's own; of a link on a master the kernel's
	Down  bool   // leave it down, for something that has to come before its first packet
}

// words returns the line of a plan: "link cont/eth0 type KIND OWN mtu 1400 address MAC MORE down".
func (i Inside) words(kind, own string, more ...string) string {
	return resource.Line("link cont/"+i.Name, "type "+kind, own, resource.Opt("mtu", i.MTU),
		resource.Opt("address", resource.MACText(i.MAC)), resource.Line(more...), resource.Flag("down", i.Down))
}

// traits returns the Traits that all these links have.
func (i Inside) traits() resource.Traits {
	return resource.Traits{Ifaces: []resource.Iface{{Where: resource.Container, Name: i.Name}}}
}

// show takes what the final result says of the link, which a later plugin of the list may have changed: see Final of
// resource.Traits.
func (i *Inside) show(f spec.Interface) { i.MAC, i.MTU = f.MAC, cmp.Or(f.MTU, i.MTU) }

// newLink returns the message that makes the link.
func (i Inside) newLink(kind string) rtnl.NewLink {
	return rtnl.NewLink{Name: i.Name, Kind: kind, MTU: i.MTU, Up: !i.Down, Group: identity.LinkGroup(i.Owner.Network),
		Alias: identity.Tag(i.Owner)}
}

// wordOf returns the word for the kernel's number of a mode, a flag or a protocol.
func wordOf[N comparable](n N, words map[string]N) string {
	for word, number := range words {
		if number == n {
			return word
		}
	}
	return "unknown"
}

// verify compares what all these links have. The link is nil where there is none to compare the rest of.
func (i Inside) verify(w *kernel.World, kind string) (l *rtnl.Link, d resource.Drift) {
	l, err := own(w, i.Owner, i.Name, kind)
	if err != nil {
		return nil, resource.Drift{err}
	}
	if l.Kind != kind {
		d.Want("type", kind, l.Kind)
		return nil, d
	}
	d.WantIfSet("address", resource.MACText(i.MAC), l.MAC)
	d.MTU(w, i.Owner, i.MTU, l)
	if !i.Down {
		d.WantUp("state", l)
	}
	return l, d
}
