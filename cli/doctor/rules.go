package doctor

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/cli/attached"
	"github.com/fairlead-cni/fairlead/kernel/foreign"
	"github.com/fairlead-cni/fairlead/packetfilter"
	"github.com/fairlead-cni/fairlead/trace"
	"golang.org/x/sys/unix"
)

// allowing says how a chain accepts forwarded packets of a link, in the tool that owns the chain. To the containers it
// lets only answers and what is published.
func allowing(v packetfilter.Verdict, link string) trace.Advice {
	switch {
	case v.Program == packetfilter.UFW:
		return trace.Advice{Look: "ufw route allow in on " + link + " && ufw route allow out on " + link}
	case v.Program == packetfilter.Firewalld:
		return accepting(v, link)
	case plainTable(v):
		return trace.Advice{Fix: foreign.Fix(v.Chain.TableName()+" "+v.Chain.Name, link)}
	}
	insert := inserting(v)
	return trace.Advice{Fix: fmt.Sprintf("%[1]s -i %[2]s -j ACCEPT && "+
		"%[1]s -o %[2]s -m conntrack --ctstate ESTABLISHED,RELATED,DNAT -j ACCEPT", insert, link)}
}

// accepting says how a chain accepts all packets that come in by a link.
func accepting(v packetfilter.Verdict, link string) trace.Advice {
	switch {
	case v.Program == packetfilter.UFW:
		return trace.Advice{Look: "ufw allow in on " + link}
	case v.Program == packetfilter.Firewalld:
		add := "firewall-cmd --zone=trusted --add-interface=" + link
		return trace.Advice{Look: add + " && firewall-cmd --permanent --zone=trusted --add-interface=" + link}
	case plainTable(v):
		return trace.Advice{Fix: fmt.Sprintf("nft insert rule %s %s iifname %s accept", v.Chain.TableName(),
			v.Chain.Name,
			link)}
	}
	return trace.Advice{Fix: inserting(v) + " -i " + link + " -j ACCEPT"}
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
func Advise(q trace.Question, answer *trace.Answer) {
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
	case v.Chain.Table == "fairlead":
		answer.Look = "the network's configuration demands it; docs/nftables.md explains the rule"
	case v.Chain.Family == unix.NFPROTO_BRIDGE: // which has no ct state and no ibrname on all kernels
		answer.Advice = deleting(v).In(h.Netns)
	case v.Chain.Hook == packetfilter.Forward && h.Netns == "":
		answer.Advice = allowing(v, link)
	case v.Chain.Hook == packetfilter.Input && h.Netns == "":
		answer.Advice = accepting(v, v.Packet.In)
	default:
		answer.Advice = deleting(v).In(h.Netns)
	}
}
