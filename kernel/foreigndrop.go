package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A ForwardDrop is a chain at the forward hook that may drop what is forwarded.
type ForwardDrop struct {
	Chain BaseChain
	Why   string // "policy drop" or "a rule drops all"
	Owner string // whose it seems to be: Docker, iptables-legacy, …; empty where the name of the table says it
}

// String is "table inet firewalld chain filter_FORWARD (firewalld, policy drop)".
func (d ForwardDrop) String() string {
	why := d.Why
	if d.Owner != "" {
		why = d.Owner + ", " + why
	}
	return "table " + d.Chain.TableName() + " chain " + d.Chain.Name + " (" + why + ")"
}

// MayDrop returns those of the chains that have a policy of drop, or a rule that drops or rejects without a condition.
// A chain with a rule that names link is left out: somebody has thought of that link there. Neither rules with
// conditions nor the chains that a rule jumps to are looked at, so what is left out may drop all the same.
func (ns *NS) MayDrop(f Foreign, link string) (drops []ForwardDrop, err error) {
	nft, err := ns.NFT()
	if err != nil {
		return nil, err
	}
	for _, c := range f.Chains {
		t := &NFTTable{Family: c.Family, Name: c.Table}
		var look forwardLook
		there := false
		if look.policy, there, err = nft.DropPolicy(t, c.Name); err != nil {
			return nil, err
		}
		if !there {
			continue // gone meanwhile
		}
		err := nft.eachRule(t, c.Name, func(body []byte) {
			expressions := Attr(body, unix.NFTA_RULE_EXPRESSIONS)
			look.rule(expressions, dropsAll(expressions), link)
		})
		if err != nil {
			return nil, err
		}
		if why := look.why(); why != "" {
			drops = append(drops, ForwardDrop{Chain: c, Why: why, Owner: c.Owner()})
		}
	}
	for _, family := range f.Legacy {
		why, err := ns.legacyMayDrop(family == "ip6", link)
		if err != nil {
			return nil, err
		}
		if why != "" {
			c := BaseChain{Family: unix.NFPROTO_IPV4, Table: "filter", Name: "FORWARD"}
			if family == "ip6" {
				c.Family = unix.NFPROTO_IPV6
			}
			drops = append(drops, ForwardDrop{Chain: c, Why: why, Owner: "iptables-legacy"})
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

// dropPolicy reports whether a chain has the policy NF_DROP. A chain that is no base chain has none.
func dropPolicy(chain []byte) bool {
	return Attr(chain, unix.NFTA_CHAIN_POLICY) != nil && Attr32(chain, unix.NFTA_CHAIN_POLICY) == 0
}

// dropsAll reports whether the expressions of a rule drop or reject every packet that comes to it.
func dropsAll(expressions []byte) bool {
	drops, all := false, true
	EachAttr(expressions, func(_ uint16, e []byte) {
		d := Attr(e, unix.NFTA_EXPR_DATA)
		switch name := text(Attr(e, unix.NFTA_EXPR_NAME)); name {
		case "counter", "log":
		case "match": // of iptables
			all = all && text(Attr(d, unix.NFTA_MATCH_NAME)) == "comment"
		case "reject":
			drops = true
		case "target":
			drops = drops || text(Attr(d, unix.NFTA_TARGET_NAME)) == "REJECT"
		case "immediate":
			verdict := Attr(d, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT)
			drops = drops || verdict != nil && Attr32(verdict, unix.NFTA_VERDICT_CODE) == 0
		default:
			all = false
		}
	})
	return drops && all
}

// legacyMayDrop looks at FORWARD of the table filter as MayDrop does. An entry begins with what it asks of addresses
// and links, where zero asks for nothing; then come its matches and its target.
func (ns *NS) legacyMayDrop(v6 bool, link string) (why string, err error) {
	info, b, err := ns.LegacyEntries(v6, "filter")
	if err != nil || b == nil {
		return "", err
	}
	head, size := entryOffsets(v6), 112
	if v6 {
		size = 168
	}
	var look forwardLook
	policy := int(info.Underflow[unix.NF_INET_FORWARD])
	for at := int(info.Hooks[unix.NF_INET_FORWARD]); at <= policy && at+head+4 <= len(b); {
		target, next := int(binary.NativeEndian.Uint16(b[at+head:])), int(binary.NativeEndian.Uint16(b[at+head+2:]))
		if target < size || next < target+36 || at+next > len(b) {
			return "", fmt.Errorf("table filter of ip_tables: the entry at %d is malformed", at)
		}
		entry := b[at : at+next]
		name, code := text(entry[target+2:target+31]), int32(binary.NativeEndian.Uint32(entry[target+32:]))
		drops := name == "REJECT" || name == "" && code == -1 // NF_DROP as a standard target has it
		if at == policy {
			look.policy = drops
		} else {
			asks := target > size || slices.ContainsFunc(entry[:head-4], func(c byte) bool { return c != 0 })
			look.rule(entry, drops && !asks, link)
		}
		at += next
	}
	return look.why(), nil
}

// Owner guesses whose a chain is, by the names that programs give their tables: "Docker", or "iptables-nft", whose
// tables belong to many. It is empty where the table is somebody's own, whose name says what there is to say.
func (c BaseChain) Owner() string {
	iptables := []string{"filter", "nat", "mangle", "raw", "security"}
	if (c.Family == unix.NFPROTO_IPV4 || c.Family == unix.NFPROTO_IPV6) && slices.Contains(iptables, c.Table) {
		return "iptables-nft"
	}
	for _, t := range []struct{ prefix, owner string }{
		{"firewalld", "firewalld"}, {"docker-bridges", "Docker"}, {"kube-proxy", "kube-proxy"},
		{"libvirt_network", "libvirt"}, {"netavark", "netavark"}, {"cni_", "the reference plugins"}, {"fw4", "OpenWrt"},
		{"fairlead", "Fairlead"}, {"calico", "Calico"}, {"lxd", "LXD"}, {"incus", "Incus"}, {"f2b-", "fail2ban"}, {"flannel",
			"flannel"},
	} {
		if strings.HasPrefix(c.Table, t.prefix) {
			return t.owner
		}
	}
	return ""
}
