package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/packetfilter"
	"github.com/fairlead-cni/fairlead/internal/command/trace"
	"github.com/fairlead-cni/fairlead/internal/kernel/foreign"
	"github.com/fairlead-cni/fairlead/internal/kernel/sockdiag"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// evaluation limits the processor time for questions about packets, because the evaluator reads all rules for each.
const evaluation = 10 * time.Second

// evaluating returns a function that reports whether the time for questions is used up. A busy host does not use it up.
func evaluating() (over func() bool) {
	used := func() time.Duration {
		var now unix.Timespec
		unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now) // cannot fail
		return time.Duration(now.Nano())
	}
	end := used() + evaluation
	return func() bool { return used() > end }
}

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

// ours is Fairlead's own table, whose drops are policy.
const ours = "inet fairlead"

// ofFilters examines what other programs' packet filters do with packets from and to containers. It asks first about a
// packet of any address, and about each container's only where rules depend on the address.
func (d *Doctor) ofFilters() {
	packets, over := d.packets(), evaluating()
	general := map[packetfilter.Packet]packetfilter.Verdict{}
	for i, p := range packets {
		if over() {
			d.Unexamined("the packet filters of others, for %d of %d packets: the time was used up", len(packets)-i,
				len(packets))
			return
		}
		anyone := p.AnyAddress()
		v, known := general[anyone]
		var err error
		if !known {
			v, err = packetfilter.Forwarded(d.Host, anyone, ours)
			general[anyone] = v
		}
		if err == nil && v.Outcome == packetfilter.Undecided {
			v, err = packetfilter.Forwarded(d.Host, p.Packet, ours)
		}
		if err != nil {
			d.Unexamined("the packet filters of others: %v", err)
			return
		}
		if v.Outcome == packetfilter.Dropped {
			d.drops(v, p.link, affects(p.From, p.What))
		}
		v.Packet = p.Packet
		d.Verdicts = append(d.Verdicts, judged{p, v})
	}
}

// drops adds the finding that another program's chain drops packets of containers on a link.
func (d *Doctor) drops(v packetfilter.Verdict, link string, whom []affected) {
	where, rule := decider(v)
	cause := v.Cause(d.Host, ours)
	text := fmt.Sprintf("%s drops packets %s containers on %s: %s", owner(v), direction(cause, link), link, rule)
	advice := letting(v, cause, link)
	if v.Chain.Hook == packetfilter.Forward && d.differs("Forward") {
		advice = trace.Advice{Fix: "fairlead repair --firewall"}
	}
	d.add(ForeignFilterDrops, where, text, whom, how(advice)...)
}

// wide reports whether every packet is dropped that goes in a direction by a link.
func wide(cause packetfilter.Packet) bool {
	return !cause.Src.IsValid() && !cause.Dst.IsValid() && cause.Proto == 0
}

// direction says which packets of the containers on a link are dropped.
func direction(p packetfilter.Packet, link string) string {
	switch {
	case wide(p):
		return "of"
	case p.In == link:
		return "from"
	case p.Reply:
		return "in answer to"
	case p.DNAT:
		return "for published ports of"
	}
	return "to"
}

// ofInput examines what happens to queries for a name server of the host on a container's gateway address.
func (d *Doctor) ofInput() {
	for _, c := range d.Selected {
		a, link := d.wayIn(c)
		if link == "" || d.Gone(c) {
			continue
		}
		for _, ip := range attached.OwnIPs(c) {
			if ip.Address.Addr() != a || !d.serves(ip.Gateway) {
				continue
			}
			v, err := packetfilter.Received(d.Host, packetfilter.Packet{In: link, Src: a, Dst: ip.Gateway,
				Proto: kernel.UDP, DstPort: 53}, ours)
			if err != nil {
				d.Unexamined("the packet filters at the host's input: %v", err)
				return
			}
			if v.Outcome == packetfilter.Dropped {
				where, rule := decider(v)
				text := fmt.Sprintf("%s drops queries to the name server at %v: %s", owner(v), ip.Gateway, rule)
				d.add(HostInputDrops, where, text, affects(c), how(letting(v, v.Cause(d.Host, ours), link))...)
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

// packets returns the packets to examine: from each address of a container, its reply, and to each published port.
func (d *Doctor) packets() (all []forwarded) {
	uplink := ""
	if l, err := rtnl.Egress(d.Host); err == nil {
		uplink = l.Name
	}
	for _, c := range d.Selected {
		_, link := d.wayIn(c)
		if link == "" || c.Result == nil || d.Gone(c) {
			continue
		}
		for _, p := range attached.OwnAddresses(c) {
			a := p.Addr()
			sent := packetfilter.Packet{In: link, Out: uplink, Src: a}
			reply := packetfilter.Packet{In: uplink, Out: link, Dst: a, Reply: true}
			all = append(all, forwarded{sent, "what it sends from " + a.String(), link, c},
				forwarded{reply, "replies to " + a.String(), link, c})
		}
		for _, m := range attached.Mappings(c.Capabilities) {
			if a := target4(c, m); a.IsValid() {
				published := packetfilter.Packet{In: uplink, Out: link, Dst: a, Proto: m.Number(),
					DstPort: uint16(m.ContainerPort), DNAT: true}
				all = append(all, forwarded{published, "its published port " + m.String(), link, c})
			}
		}
	}
	return all
}

// target4 returns the address that a published port leads to, the IPv4 one if the container has one.
func target4(c attach.Cached, m attached.PortMapping) (a netip.Addr) {
	host, err := netip.ParseAddr(m.HostIP)
	for _, p := range attached.OwnAddresses(c) {
		is4 := p.Addr().Is4()
		if (err != nil || host.Unmap().Is4() == is4) && (!a.IsValid() || is4) {
			a = p.Addr()
		}
	}
	return a
}

// letting says how the chain of a verdict lets packets of a link through that it drops, in the tool that owns the
// chain: those that the drop is about, and no others. What all containers of a link lose, they get back: what they
// send, answers, and what is published. Of what is for the host itself, only the one service is let through.
func letting(v packetfilter.Verdict, cause packetfilter.Packet, link string) trace.Advice {
	input := v.Chain.Hook == packetfilter.Input
	if input {
		cause.Proto, cause.SrcPort, cause.DstPort = v.Packet.Proto, 0, v.Packet.DstPort
	}
	all := wide(cause) && cause.In != cause.Out
	only := matching(cause, link)
	switch {
	case v.Chain.Family == unix.NFPROTO_BRIDGE, !input && v.Chain.Hook != packetfilter.Forward:
		return deleting(v) // a bridge's chain has no ct state and no ibrname on all kernels
	case v.Program == packetfilter.UFW && input:
		return trace.Advice{Look: "ufw allow " + only.ufw}
	case v.Program == packetfilter.UFW && all:
		return trace.Advice{Look: "ufw route allow in on " + link + " && ufw route allow out on " + link}
	case v.Program == packetfilter.UFW:
		return trace.Advice{Look: "ufw route allow " + only.ufw}
	case v.Program == packetfilter.Firewalld:
		add := "firewall-cmd --zone=trusted --add-interface=" + link
		return trace.Advice{Look: add + " && firewall-cmd --permanent --zone=trusted --add-interface=" + link}
	case plainTable(v) && all:
		return trace.Advice{Fix: foreign.Fix(v.Chain.TableName()+" "+v.Chain.Name, link)}
	case plainTable(v):
		return trace.Advice{Fix: fmt.Sprintf("nft insert rule %s %s %s accept", v.Chain.TableName(), v.Chain.Name,
			only.nft)}
	}
	insert := inserting(v)
	if all {
		return trace.Advice{Fix: fmt.Sprintf("%[1]s -i %[2]s -j ACCEPT && "+
			"%[1]s -o %[2]s -m conntrack --ctstate ESTABLISHED,RELATED,DNAT -j ACCEPT", insert, link)}
	}
	return trace.Advice{Fix: insert + " " + only.iptables + " -j ACCEPT"}
}

// matches is what matches a packet, in the words of each tool.
type matches struct{ nft, iptables, ufw string }

// matching returns what matches the packets of a link that equal p in all that is known of it.
func matching(p packetfilter.Packet, link string) matches {
	family, proto, port := "ip ", kernel.ProtoName(p.Proto), strconv.Itoa(int(p.DstPort))
	if p.Src.Is6() || p.Dst.Is6() {
		family = "ip6 "
	}
	src, dst, sport := p.Src.String(), p.Dst.String(), strconv.Itoa(int(p.SrcPort))
	hasPort, noPort := p.DstPort != 0, p.Proto != 0 && p.DstPort == 0
	var nft, iptables, ufw []string
	for _, term := range []struct {
		is bool
		matches
	}{
		{p.In == link, matches{"iifname " + link, "-i " + link, "in on " + link}},
		{p.Out == link, matches{"oifname " + link, "-o " + link, "out on " + link}},
		{p.Src.IsValid(), matches{family + "saddr " + src, "-s " + src, "from " + src}},
		{p.Dst.IsValid(), matches{family + "daddr " + dst, "-d " + dst, "to " + dst}},
		{hasPort && !p.Dst.IsValid(), matches{ufw: "to any"}},
		{hasPort, matches{proto + " dport " + port, "-p " + proto + " --dport " + port,
			"port " + port + " proto " + proto}},
		{noPort && p.SrcPort != 0, matches{proto + " sport " + sport, "-p " + proto + " --sport " + sport, ""}},
		{noPort && p.SrcPort == 0, matches{"meta l4proto " + proto, "-p " + proto, ""}}, // ufw knows no ICMP
		{p.Reply, matches{"ct state established,related", "-m conntrack --ctstate ESTABLISHED,RELATED", ""}},
		{p.DNAT, matches{"ct status dnat", "-m conntrack --ctstate DNAT", ""}},
	} {
		if term.is {
			nft, iptables, ufw = append(nft, term.nft), append(iptables, term.iptables), append(ufw, term.ufw)
		}
	}
	return matches{joined(nft), joined(iptables), joined(ufw)}
}

// joined joins the terms that are not empty.
func joined(terms []string) string {
	return strings.Join(slices.DeleteFunc(terms, func(t string) bool { return t == "" }), " ")
}

// plainTable reports whether nft(8) alone changes the table of a verdict.
func plainTable(v packetfilter.Verdict) bool {
	docker := v.Program == packetfilter.Docker && v.Chain.Name == "FORWARD"
	return !v.Legacy && !docker && v.Chain.Owner() != "iptables-nft"
}

// inserting is the command of iptables(8), without its match, that inserts a rule where a verdict was given.
func inserting(v packetfilter.Verdict) string {
	chain := v.Chain.Name
	if v.Program == packetfilter.Docker && chain == "FORWARD" {
		chain = "DOCKER-USER"
	}
	return v.Iptables() + " -I " + chain
}

// deleting says how the rule of a verdict is deleted, or where it is listed if a policy decided.
func deleting(v packetfilter.Verdict) trace.Advice {
	switch {
	case v.Number != 0:
		return trace.Advice{Fix: v.Delete()}
	case v.Legacy:
		return trace.Advice{Look: v.Iptables() + " -nvL " + v.Chain.Name}
	}
	return trace.Advice{Look: "nft list chain " + v.Chain.TableName() + " " + v.Chain.Name}
}

// undoing says how the rule that takes the packets for a published port is found or deleted.
func undoing(v packetfilter.Verdict, m attached.PortMapping) trace.Advice {
	switch v.Program {
	case packetfilter.Docker:
		return trace.Advice{Look: fmt.Sprintf("docker ps --filter publish=%d/%s", m.HostPort, m.Protocol)}
	case packetfilter.KubeProxy:
		return trace.Advice{Look: fmt.Sprintf("kubectl get services -A | grep -w %d", m.HostPort)}
	case packetfilter.Netavark:
		return trace.Advice{Look: fmt.Sprintf("podman ps --format '{{.Names}} {{.Ports}}' | grep -w %d", m.HostPort)}
	}
	return deleting(v)
}

// Advise adds to an answer of package trace what to do about the filter that stops the packet.
func (d *Doctor) Advise(q trace.Question, answer *trace.Answer) {
	h := answer.Decisive()
	if !answer.Advice.IsZero() || h == nil {
		return
	}
	v := *h.Verdict
	link := v.Packet.In
	if q.From == nil && v.Packet.Out != "" {
		link = v.Packet.Out
	}
	switch {
	case v.Outcome != packetfilter.Dropped:
		answer.Look = "observe it: --live"
	case v.Chain.Own():
		answer.Look = "the network's configuration demands it; docs/nftables.md explains the rule"
	case h.Netns == "":
		answer.Advice = letting(v, v.Cause(d.Host, ours), link)
	default:
		answer.Advice = deleting(v).In(h.Netns)
	}
}
