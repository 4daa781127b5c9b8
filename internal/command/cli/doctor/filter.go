package doctor

import (
	"cmp"
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

// judged is a packet that the host should forward for a container, and what other programs' packet filters do with it.
type judged struct {
	packetfilter.Verdict
	What string // in words: "what it sends from 10.88.0.2"
	From attach.Cached
	link string
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
		anyone := p.Packet.AnyAddress()
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
		p.Verdict = v
		d.Verdicts = append(d.Verdicts, p)
	}
}

// drops adds the finding that another program's chain drops packets of containers on a link.
func (d *Doctor) drops(v packetfilter.Verdict, link string, whom []affected) {
	cause := v.Cause(d.Host, ours)
	how := letting(v, cause, link)
	if v.Chain.Hook == packetfilter.Forward && d.differs("Forward") {
		how = fix("fairlead repair --firewall")
	}

	what := "drops packets " + direction(cause, link) + " containers on " + link
	d.addWith(ForeignFilterDrops, v.Place(), does(v, what), whom, how)
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
	servers, _ := sockdiag.Listeners(d.Host, kernel.UDP, 53)
	for _, c := range d.Selected {
		a, link := ownAddress(c, netip.Addr{}), d.hostLink(c)
		if link == "" || d.Gone(c) {
			continue
		}
		for _, ip := range attached.OwnIPs(c) {
			serves := func(l sockdiag.Listener) bool { return l.At.Addr() == ip.Gateway }
			if ip.Address.Addr() != a || !slices.ContainsFunc(servers, serves) {
				continue
			}
			v, err := packetfilter.Received(d.Host, packetfilter.Packet{In: link, Src: a, Dst: ip.Gateway,
				Proto: kernel.UDP, DstPort: 53}, ours)
			if err != nil {
				d.Unexamined("the packet filters at the host's input: %v", err)
				return
			}
			if v.Outcome == packetfilter.Dropped {
				what := "drops queries to the name server at " + ip.Gateway.String()
				how := letting(v, v.Cause(d.Host, ours), link)
				d.addWith(HostInputDrops, v.Place(), does(v, what), affects(c), how)
			}
		}
	}
}

// does says what a packet filter does with packets, and by which rule.
func does(v packetfilter.Verdict, what string) string {
	rule := "policy drop"
	if v.Rule != "" {
		rule = "rule " + v.Rule
	}
	return cmp.Or(v.Owner, "the administrator's table") + " " + what + ": " + rule
}

// packets returns the packets to examine: from each address of a container, its reply, and to each published port.
func (d *Doctor) packets() (all []judged) {
	uplink := ""
	if l, err := rtnl.Egress(d.Host); err == nil {
		uplink = l.Name
	}
	for _, c := range d.Selected {
		link := d.hostLink(c)
		if link == "" || d.Gone(c) {
			continue
		}
		add := func(p packetfilter.Packet, what string) {
			all = append(all, judged{packetfilter.Verdict{Packet: p}, what, c, link})
		}
		for _, p := range attached.OwnAddresses(c) {
			a := p.Addr()
			add(packetfilter.Packet{In: link, Out: uplink, Src: a}, "what it sends from "+a.String())
			add(packetfilter.Packet{In: uplink, Out: link, Dst: a, Reply: true}, "replies to "+a.String())
		}
		for _, m := range attached.Mappings(c.Capabilities) {
			if a := ownAddress(c, m.Host()); a.IsValid() {
				add(packetfilter.Packet{In: uplink, Out: link, Dst: a, Proto: m.Number(),
					DstPort: uint16(m.ContainerPort), DNAT: true}, "its published port "+m.String())
			}
		}
	}
	return all
}

// ownAddress returns an address of a container, the first of IPv4 if it has one. If like is valid, it is of the family
// of like.
func ownAddress(c attach.Cached, like netip.Addr) (a netip.Addr) {
	for _, p := range attached.OwnAddresses(c) {
		own := p.Addr()
		fits := !like.IsValid() || like.Unmap().Is4() == own.Is4()
		better := !a.IsValid() || own.Is4() && a.Is6()
		if fits && better {
			a = own
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
	chain := v.Chain.TableName() + " " + v.Chain.Name
	insert := v.Iptables() + " -I " + v.Chain.Name
	docker := v.Program == packetfilter.Docker && v.Chain.Name == "FORWARD"
	if docker {
		insert = v.Iptables() + " -I DOCKER-USER"
	}

	byNFT := !v.Legacy && !docker && v.Chain.Owner() != "iptables-nft"
	switch {
	case v.Chain.Family == unix.NFPROTO_BRIDGE, !input && v.Chain.Hook != packetfilter.Forward:
		return deleting(v) // a bridge's chain has no ct state and no ibrname on all kernels
	case v.Program == packetfilter.UFW && input:
		return look("ufw allow " + only.ufw)
	case v.Program == packetfilter.UFW && all:
		return look("ufw route allow in on " + link + " && ufw route allow out on " + link)
	case v.Program == packetfilter.UFW:
		return look("ufw route allow " + only.ufw)
	case v.Program == packetfilter.Firewalld:
		add := "firewall-cmd --zone=trusted --add-interface=" + link
		return look(add + " && firewall-cmd --permanent --zone=trusted --add-interface=" + link)
	case byNFT && all:
		return fix(foreign.Fix(chain, link))
	case byNFT:
		return fix("nft insert rule " + chain + " " + only.nft + " accept")
	case all:
		return fix(fmt.Sprintf("%[1]s -i %[2]s -j ACCEPT && "+
			"%[1]s -o %[2]s -m conntrack --ctstate ESTABLISHED,RELATED,DNAT -j ACCEPT", insert, link))
	}
	return fix(insert + " " + only.iptables + " -j ACCEPT")
}

// matches is what matches a packet, in the words of each tool.
type matches struct{ nft, iptables, ufw string }

// matching returns what matches the packets of a link that equal p in all that is known of it.
func matching(p packetfilter.Packet, link string) (only matches) {
	family, proto, port := "ip ", kernel.ProtoName(p.Proto), strconv.Itoa(int(p.DstPort))
	if p.Src.Is6() || p.Dst.Is6() {
		family = "ip6 "
	}
	src, dst, sport := p.Src.String(), p.Dst.String(), strconv.Itoa(int(p.SrcPort))
	hasPort, noPort := p.DstPort != 0, p.Proto != 0 && p.DstPort == 0
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
			only = matches{and(only.nft, term.nft), and(only.iptables, term.iptables), and(only.ufw, term.ufw)}
		}
	}
	return only
}

// and joins two parts of a match, of which each may be empty.
func and(a, b string) string { return strings.TrimSpace(a + " " + b) }

// deleting says how the rule of a verdict is deleted, or where it is listed if a policy decided.
func deleting(v packetfilter.Verdict) trace.Advice {
	switch {
	case v.Number != 0:
		return fix(v.Delete())
	case v.Legacy:
		return look(v.Iptables() + " -nvL " + v.Chain.Name)
	}
	return look("nft list chain " + v.Chain.TableName() + " " + v.Chain.Name)
}

// undoing says how the rule that takes the packets for a published port is found or deleted.
func undoing(v packetfilter.Verdict, m attached.PortMapping) trace.Advice {
	switch v.Program {
	case packetfilter.Docker:
		return look(fmt.Sprintf("docker ps --filter publish=%d/%s", m.HostPort, m.Protocol))
	case packetfilter.KubeProxy:
		return look(fmt.Sprintf("kubectl get services -A | grep -w %d", m.HostPort))
	case packetfilter.Netavark:
		return look(fmt.Sprintf("podman ps --format '{{.Names}} {{.Ports}}' | grep -w %d", m.HostPort))
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
