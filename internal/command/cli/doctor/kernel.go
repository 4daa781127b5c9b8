package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/packetfilter"
	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// ofBridges examines what other programs' packet filters do with packets between two containers of one bridge. They
// see these packets only with br_netfilter, which kube-proxy needs.
func (d *Doctor) ofBridges() {
	ports := map[string][]attach.Cached{}
	for _, c := range d.All {
		l, err := rtnl.LinkByName(d.Host, d.hostLink(c))
		isPort := err == nil && l.Kind == "bridge"
		if isPort && ownAddress(c, netip.Addr{}).IsValid() && !d.Gone(c) {
			ports[l.Name] = append(ports[l.Name], c)
		}
	}
	for link, on := range ports {
		other := func(c attach.Cached) bool { return attached.ByOwner(d.Selected, c.Owner()) == nil }
		mine := slices.DeleteFunc(slices.Clone(on), other)
		if len(mine) == 0 {
			continue
		}
		six := ownAddress(mine[0], netip.Addr{}).Is6()
		key := "net/bridge/bridge-nf-call-iptables"
		if six {
			key = "net/bridge/bridge-nf-call-ip6tables"
		}
		value, err := procsys.Get(d.Host, key)
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			d.Unexamined("%v", err)
		case value != "1":
			d.unfiltered(key, six, err == nil, mine)
		default:
			d.filtered(link, on, mine)
		}
	}
}

// filtered examines packets between the containers of a bridge. It asks first about a packet of any address. Where
// rules name addresses, it asks for each container about what it sends and gets, and where that depends on the other
// one, for each pair, unless a pair of addresses does not decide it either.
func (d *Doctor) filtered(link string, on, mine []attach.Cached) {
	over := evaluating()
	dropped := func(p packetfilter.Packet, of []attach.Cached) packetfilter.Outcome {
		v, err := packetfilter.Forwarded(d.Host, p, ours)
		switch {
		case err != nil:
			d.Unexamined("the packet filters of others: %v", err)
			return packetfilter.Accepted
		case v.Outcome == packetfilter.Dropped:
			d.addWith(BridgeFilterDrops, v.Place(), does(v, "drops packets between containers on "+link),
				affectsAll(of), letting(v, v.Cause(d.Host, ours), link))
		}
		return v.Outcome
	}
	some := packetfilter.Packet{In: link, Out: link, Src: ownAddress(mine[0], netip.Addr{})}
	if dropped(some.AnyAddress(), mine) != packetfilter.Undecided {
		return
	}

	for i, c := range mine {
		if over() {
			d.Unexamined("packets between containers on %s, for %d of them: the time was used up", link, len(mine)-i)
			return
		}

		a := ownAddress(c, netip.Addr{})
		for _, p := range []packetfilter.Packet{{In: link, Out: link, Src: a}, {In: link, Out: link, Dst: a}} {
			if dropped(p, mine[i:i+1]) != packetfilter.Undecided {
				continue
			}
			for _, other := range on {
				b := ownAddress(other, a)
				if b == a || !b.IsValid() {
					continue
				}
				pair := packetfilter.Packet{In: link, Out: link, Src: cmp.Or(p.Src, b), Dst: cmp.Or(p.Dst, b)}
				if dropped(pair, mine[i:i+1]) == packetfilter.Undecided {
					break
				}
			}
		}
	}
}

// unfiltered adds a finding if kube-proxy is in use and does not see bridged packets. loaded says whether br_netfilter
// is.
func (d *Doctor) unfiltered(key string, six, loaded bool, mine []attach.Cached) {
	isThere := false
	var unseen error
	for _, variant := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		there, err := xtables.NewTable(d.Host, variant, six, "nat").Chains("KUBE-SERVICES")
		isThere, unseen = isThere || slices.Contains(there, true), errors.Join(unseen, err)
	}
	if !isThere {
		if unseen != nil {
			d.Unexamined("whether kube-proxy is there: %v", unseen)
		}
		return
	}

	set := "sysctl -w " + key + "=1"
	how := fix(set)
	if !loaded {
		how = look("modprobe br_netfilter && " + set)
	}
	d.addWith(BridgeFilterOff, OnHost, key+" is not 1, and kube-proxy's rules are there", affectsAll(mine), how)
}

// reversePath adds a finding if the container drops packets for its published port because its answer would leave by
// another interface.
func (d *Doctor) reversePath(ns *kernel.NS, c attach.Cached, m attached.PortMapping) {
	if !ownAddress(c, m.Host()).Is4() { // IPv6 has no such filter
		return
	}
	l, err := rtnl.LinkByName(ns, c.IfName)
	if err != nil {
		return
	}
	other := ""
	for _, r := range defaultRoutes(ns, rtnl.IPv4) {
		if r.Link == l.Index {
			return // the link by which the answer would leave
		}
		other = rtnl.NameOf(ns, r.Link)
	}
	// The kernel uses the larger of both values: 1 is strict, 2 accepts any route back.
	strict := "0"
	for _, name := range []string{"all", c.IfName} {
		v, err := procsys.Get(ns, "net/ipv4/conf/"+name+"/rp_filter")
		if err != nil {
			return
		}
		strict = max(strict, v)
	}
	if other == "" || strict != "1" {
		return
	}
	what := fmt.Sprintf("rp_filter of %s is 1, and the default route leads by %s", c.IfName, other)
	d.add(ReversePathFilter, "container", what, affects(c, "publishes "+m.String()), "NETNS", c.Netns)
}

// kinds returns the kinds of links that a plugin makes and a kernel may lack.
func kinds(plugin string) []string {
	return map[string][]string{
		"bridge": {"bridge", "veth"}, "ptp": {"veth"}, "vlan": {"vlan"}, "macvlan": {"macvlan"}, "macvtap": {"macvtap"},
		"ipvlan": {"ipvlan"}, "dummy": {"dummy"}, "vrf": {"vrf"}, "bandwidth": {"ifb"}, "tap": {"tun"},
	}[plugin]
}

// lacks records which kinds of links a network needs and the kernel lacks.
func (d *Doctor) lacks(l *spec.List) (missing bool) {
	for _, p := range l.WrittenOut().Plugins {
		for _, kind := range kinds(p.Type) {
			if d.lacksKind(kind) == nil {
				continue
			}
			missing = true
			if !slices.Contains(d.lacked[kind], l.Name) {
				d.lacked[kind] = append(d.lacked[kind], l.Name)
			}
		}
	}
	return missing
}

// lacksKind says why the kernel makes no links of a kind; nil if it does.
func (d *Doctor) lacksKind(kind string) error {
	if kind != "tun" {
		return rtnl.NoKind(d.Host, kind)
	}
	if _, err := os.Stat("/dev/net/tun"); errors.Is(err, fs.ErrNotExist) {
		return errors.New("there is no /dev/net/tun")
	}
	return nil
}

// ofKinds adds the findings of what lacks recorded.
func (d *Doctor) ofKinds() {
	for kind, networks := range d.lacked {
		module := kind
		if kind == "vlan" {
			module = "8021q"
		}
		where := "network " + strings.Join(networks, ", ")
		d.add(KernelLacksKind, where, d.lacksKind(kind).Error(), nil, "MODULE", module)
	}
}

// clockSlack is how far a file system's time may be ahead of the clock.
const clockSlack = time.Minute

// ofClock adds a finding if an attachment of this host is later than now, because the clock was set back.
func (d *Doctor) ofClock() {
	now := time.Now()
	inOrder := func(c attach.Cached) bool { return c.Stored.Sub(now) <= clockSlack }
	late := slices.DeleteFunc(slices.Clone(d.Selected), inOrder)
	if len(late) == 0 {
		return
	}
	last := slices.MaxFunc(late, func(a, b attach.Cached) int { return a.Stored.Compare(b.Stored) })
	what := fmt.Sprintf("the clock says %s, but an attachment was made at %s", now.UTC().Format(time.DateTime),
		last.Stored.UTC().Format(time.DateTime))
	d.add(ClockBehind, OnHost, what, affectsAll(late))
}
