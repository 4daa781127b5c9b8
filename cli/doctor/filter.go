package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/cli/attached"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/kernel/sockdiag"
	"github.com/fairlead-cni/fairlead/packetfilter"
	"github.com/fairlead-cni/fairlead/trace"
)

// evaluation limits the time for questions to the evaluator, which reads all rules for each packet.
const evaluation = 10 * time.Second

// forwarded is a packet that the host should forward for a container.
type forwarded struct {
	packetfilter.Packet
	What string // in words: "what it sends from 10.88.0.2"
	link string
	From attach.Cached
}

// judged is a packet, and what other programs' packet filters do with it.
type judged struct {
	forwarded
	packetfilter.Verdict
}

// ofFilters examines what other programs' packet filters do with packets from and to containers.
func (d *Doctor) ofFilters() {
	packets, end := d.packets(), time.Now().Add(evaluation)
	for i, p := range packets {
		if time.Now().After(end) {
			d.Blind("the packet filters of others, for %d of %d kinds of packets: the time was used "+
				"up", len(packets)-i,
				len(packets))
			break
		}
		v, err := packetfilter.Forwarded(d.Host, p.Packet, "inet fairlead")
		if err != nil {
			d.Blind("the packet filters of others: %v", err)
			return
		}
		d.Verdicts = append(d.Verdicts, judged{p, v})
		if v.Outcome != packetfilter.Dropped {
			continue
		}
		where, rule := decider(v)
		advice := allowing(v, p.link)
		if d.differs("Forward") {
			advice = trace.Advice{Fix: "fairlead repair --firewall"}
		}
		text := fmt.Sprintf("%s drops packets of containers on %s: %s", owner(v), p.link, rule)
		d.add(ForeignFilterDrops, where, text, who(p.From, p.What), how(advice)...)
	}
}

// ofInput examines what happens to queries for a name server of the host on a container's gateway address.
func (d *Doctor) ofInput() {
	for _, c := range d.Mine {
		a, link := d.wayIn(c)
		if link == "" || d.Gone(c) {
			continue
		}
		for _, ip := range c.Result.IPs {
			if !attached.OwnAddress(c, ip) || ip.Address.Addr() != a || !d.serves(ip.Gateway) {
				continue
			}
			v, err := packetfilter.Received(d.Host, packetfilter.Packet{In: link, Src: a, Dst: ip.Gateway,
				Proto: kernel.UDP, DstPort: 53}, "inet fairlead")
			if err != nil {
				d.Blind("the packet filters at the host's input: %v", err)
				return
			}
			if v.Outcome == packetfilter.Dropped {
				where, rule := decider(v)
				text := fmt.Sprintf("%s drops queries to the name server at %v: %s", owner(v), ip.Gateway, rule)
				d.add(HostInputDrops, where, text, who(c), how(accepting(v, link))...)
			}
		}
	}
}

// serves reports whether a name server of the host listens on that address.
func (d *Doctor) serves(a netip.Addr) bool {
	listeners, err := sockdiag.Listeners(d.Host, kernel.UDP, 53)
	here := func(l sockdiag.Listener) bool { return l.At.Addr() == a }
	return a.IsValid() && err == nil && slices.ContainsFunc(listeners, here)
}

// decider returns the chain and the rule that gave a verdict.
func decider(v packetfilter.Verdict) (chain, rule string) {
	rule = "policy drop"
	if v.Rule != "" {
		rule = "rule " + v.Rule
	}
	chain = v.Chain.Name
	if v.Jumped != "" && v.Jumped != chain {
		chain = v.Jumped + ", called from " + chain
	}
	return "table " + v.Chain.TableName() + " chain " + chain, rule
}

func owner(v packetfilter.Verdict) string {
	if v.Owner == "" {
		return "the administrator's table"
	}
	return v.Owner
}

// packets returns the packets to examine: for each link and family one from a container and its reply, and one to
// each published port. For containers named by the user, it returns all.
func (d *Doctor) packets() (all []forwarded) {
	uplink := ""
	if l, err := rtnl.Egress(d.Host); err == nil {
		uplink = l.Name
	}
	asked := map[string]bool{}
	for _, c := range d.Mine {
		_, link := d.wayIn(c)
		if link == "" || c.Result == nil || d.Gone(c) {
			continue
		}
		for _, ip := range c.Result.IPs {
			a := ip.Address.Addr()
			if key := fmt.Sprint(link, a.Is4()); !attached.OwnAddress(c, ip) || asked[key] && !d.named {
				continue
			} else {
				asked[key] = true
			}
			all = append(all,
				forwarded{packetfilter.Packet{In: link, Out: uplink, Src: a}, "what it sends from " + a.String(),
					link, c},
				forwarded{packetfilter.Packet{In: uplink, Out: link, Dst: a, Reply: true}, "replies to " + a.String(),
					link, c})
		}
		for _, m := range attached.Mappings(c.Capabilities) {
			if a := target4(c, m); a.IsValid() {
				all = append(all, forwarded{packetfilter.Packet{In: uplink, Out: link, Dst: a, Proto: m.Number(),
					DstPort: uint16(m.ContainerPort), DNAT: true}, "its published port " + m.String(), link, c})
			}
		}
	}
	return all
}

// target4 returns the address that a published port leads to, the IPv4 one if the container has one.
func target4(c attach.Cached, m attached.PortMapping) (a netip.Addr) {
	host, err := netip.ParseAddr(m.HostIP)
	for _, ip := range c.Result.IPs {
		is4 := ip.Address.Addr().Is4()
		if attached.OwnAddress(c, ip) && (err != nil || host.Unmap().Is4() == is4) && (!a.IsValid() || is4) {
			a = ip.Address.Addr()
		}
	}
	return a
}
