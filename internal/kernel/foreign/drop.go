package foreign

import (
	"bytes"
	"fmt"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Drop is a base chain at the forward hook that may drop forwarded packets.
type Drop struct {
	Chain nft.BaseChain
	Why   string // "policy drop" or "a rule drops all"
	Owner string // whose it seems to be: Docker, iptables-legacy, …; empty where the name of the table says it
}

// String returns a text such as "table inet firewalld chain filter_FORWARD (firewalld, policy drop)".
func (d Drop) String() string {
	why := d.Why
	if d.Owner != "" {
		why = d.Owner + ", " + why
	}
	return "table " + d.Chain.TableName() + " chain " + d.Chain.Name + " (" + why + ")"
}

// Doubtful begins the warning of a chain that may drop a container's packets.
const Doubtful = "another program's chain may drop the container's packets"

// Fix returns the command that has a chain of nf_tables, such as "inet filter forward", let through what the
// containers behind a link send, answers to them, and what is published, in one transaction. To accept all
// that goes out by the link would open the containers to all hosts.
func Fix(chain, link string) string {
	return fmt.Sprintf("nft 'insert rule %[1]s iifname %[2]s accept; "+
		"insert rule %[1]s oifname %[2]s ct state established,related accept; "+
		"insert rule %[1]s oifname %[2]s ct status dnat accept'", chain, link)
}

// MayDrop returns the chains of f that have the policy drop, or an unconditional rule that drops or rejects. It
// leaves out a chain with a rule that names link, because its author has considered that link. It examines neither
// rules with conditions nor chains that a rule jumps to, so a chain that is left out may still drop packets.
func MayDrop(ns *kernel.NS, f Found, link string) (drops []Drop, err error) {
	conn, err := nft.Open(ns)
	if err != nil {
		return nil, err
	}
	for _, c := range f.Chains {
		t := &nft.Table{Family: c.Family, Name: c.Table}
		var look forwardLook
		there := false
		if look.policy, there, err = conn.DropPolicy(t, c.Name); err != nil {
			return nil, err
		}
		if !there {
			continue // gone meanwhile
		}
		err := conn.EachRule(t, c.Name, func(body []byte) {
			expressions := netlink.Attr(body, unix.NFTA_RULE_EXPRESSIONS)
			look.rule(expressions, dropsAll(expressions), link)
		})
		if err != nil {
			return nil, err
		}
		if why := look.why(); why != "" {
			drops = append(drops, Drop{Chain: c, Why: why, Owner: c.Owner()})
		}
	}
	for _, family := range f.Legacy {
		why, err := legacyMayDrop(ns, family == "ip6", link)
		if err != nil {
			return nil, err
		}
		if why != "" {
			c := nft.BaseChain{Family: unix.NFPROTO_IPV4, Table: "filter", Name: "FORWARD"}
			if family == "ip6" {
				c.Family = unix.NFPROTO_IPV6
			}
			drops = append(drops, Drop{Chain: c, Why: why, Owner: "iptables-legacy"})
		}
	}
	return drops, nil
}

// A forwardLook is what was seen of a chain.
type forwardLook struct{ policy, bare, names bool }

func (l *forwardLook) rule(code []byte, dropsAll bool, link string) {
	l.bare = l.bare || dropsAll
	l.names = l.names || link != "" && bytes.Contains(code, append([]byte(link), 0))
}

func (l *forwardLook) why() string {
	switch {
	case l.names:
		return ""
	case l.policy:
		return "policy drop"
	case l.bare:
		return "a rule drops all"
	}
	return ""
}

// dropsAll reports whether the expressions of a rule drop or reject every packet that comes to it.
func dropsAll(expressions []byte) bool {
	drops, all := false, true
	netlink.EachAttr(expressions, func(_ uint16, e []byte) {
		d := netlink.Attr(e, unix.NFTA_EXPR_DATA)
		switch name := netlink.AttrText(e, unix.NFTA_EXPR_NAME); name {
		case "counter", "log":
		case "match": // of iptables
			all = all && netlink.AttrText(d, unix.NFTA_MATCH_NAME) == "comment"
		case "reject":
			drops = true
		case "target":
			drops = drops || netlink.AttrText(d, unix.NFTA_TARGET_NAME) == "REJECT"
		case "immediate":
			verdict := netlink.Attr(d, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT)
			drops = drops || verdict != nil && netlink.Attr32(verdict, unix.NFTA_VERDICT_CODE) == 0
		default:
			all = false
		}
	})
	return drops && all
}

// legacyMayDrop looks at FORWARD of the table filter as MayDrop does.
func legacyMayDrop(ns *kernel.NS, v6 bool, link string) (why string, err error) {
	info, b, err := xtables.LegacyEntries(ns, v6, "filter")
	if err != nil || b == nil {
		return "", err
	}
	var look forwardLook
	first, policy := int(info.Hooks[unix.NF_INET_FORWARD]), int(info.Underflow[unix.NF_INET_FORWARD])
	err = xtables.EachEntry(b, v6, func(e xtables.Entry) {
		name := e.TargetName()
		drops := name == "REJECT" || name == "" && e.Verdict() == -1 // NF_DROP as a standard target has it
		switch {
		case e.At < first || e.At > policy: // of another chain
		case e.At == policy:
			look.policy = drops
		default:
			look.rule(e.Bytes, drops && !e.Asks(), link)
		}
	})
	if err != nil {
		return "", fmt.Errorf("table filter: %w", err)
	}
	return look.why(), nil
}
