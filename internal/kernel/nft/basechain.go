package nft

import (
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// TableName returns the table's family and name, such as "inet firewalld".
func (c BaseChain) TableName() string { return strings.TrimSuffix(c.String(), " "+c.Name) }

// Forwards reports whether packets that the host forwards pass the chain.
func (c BaseChain) Forwards() bool {
	return c.Hook == unix.NF_INET_FORWARD &&
		(c.Family == unix.NFPROTO_IPV4 || c.Family == unix.NFPROTO_IPV6 || c.Family == unix.NFPROTO_INET)
}

// dropPolicy reports whether a chain has the policy NF_DROP. A chain that is no base chain has none.
func dropPolicy(chain []byte) bool {
	return netlink.Attr(chain, unix.NFTA_CHAIN_POLICY) != nil && netlink.Attr32(chain, unix.NFTA_CHAIN_POLICY) == 0
}

const own = "Fairlead"

// Owner guesses which program made the chain, by the names that programs give their tables. Examples are "Docker" and
// "iptables-nft", whose tables several programs share. It returns "" for any other name.
func (c BaseChain) Owner() string {
	iptables := []string{"filter", "nat", "mangle", "raw", "security"}
	if (c.Family == unix.NFPROTO_IPV4 || c.Family == unix.NFPROTO_IPV6) && slices.Contains(iptables, c.Table) {
		return "iptables-nft"
	}
	for _, t := range []struct{ prefix, owner string }{
		{"firewalld", "firewalld"}, {"docker-bridges", "Docker"}, {"kube-proxy", "kube-proxy"},
		{"libvirt_network", "libvirt"}, {"netavark", "netavark"}, {"cni_", "the reference plugins"}, {"fw4", "OpenWrt"},
		{"fairlead", own}, {"calico", "Calico"}, {"lxd", "LXD"}, {"incus", "Incus"}, {"f2b-", "fail2ban"},
		{"flannel", "flannel"},
	} {
		if strings.HasPrefix(c.Table, t.prefix) {
			return t.owner
		}
	}
	return ""
}

// Own reports whether the chain is in a table of Fairlead's.
func (c BaseChain) Own() bool { return c.Owner() == own }

// A BaseChain is a chain that the kernel calls at a hook, whichever program made it.
type BaseChain struct {
	Family   byte // unix.NFPROTO_INET, …
	Table    string
	Name     string
	Type     string // filter, nat, route
	Hook     uint32 // unix.NF_INET_FORWARD, …
	Priority int32
	Drops    bool // what no rule decides about is dropped
	Rules    int
	Device   string // of a chain at a device: the links, with spaces between
}

// String returns the chain as nft(8) names it, such as "inet firewalld filter_FORWARD".
func (c BaseChain) String() string {
	return familyName(c.Family) + " " + c.Table + " " + c.Name
}

// BaseChains returns the base chains of all tables of all families. On a kernel without nf_tables there are none.
func (n *Conn) BaseChains() (all []BaseChain, err error) {
	err = n.dumpAll(unix.NFT_MSG_GETCHAIN, func(family byte, body []byte) {
		hook := netlink.Attr(body, unix.NFTA_CHAIN_HOOK)
		if hook == nil {
			return
		}
		all = append(all, BaseChain{
			Family:   family,
			Table:    netlink.AttrText(body, unix.NFTA_CHAIN_TABLE),
			Name:     netlink.AttrText(body, unix.NFTA_CHAIN_NAME),
			Type:     netlink.AttrText(body, unix.NFTA_CHAIN_TYPE),
			Device:   hookDevices(hook),
			Hook:     netlink.Attr32(hook, unix.NFTA_HOOK_HOOKNUM),
			Priority: int32(netlink.Attr32(hook, unix.NFTA_HOOK_PRIORITY)),
			Drops:    dropPolicy(body),
			Rules:    int(netlink.Attr32(body, unix.NFTA_CHAIN_USE)), // nothing else can refer to a base chain
		})
	})
	if Unsupported(err) {
		return nil, nil
	}
	return all, err
}

// DropPolicy reports whether a chain has the policy drop, and whether it exists.
func (n *Conn) DropPolicy(t *Table, chain string) (drops, there bool, err error) {
	q := t.chainQuestion(chain, func(b []byte) { drops = dropPolicy(b) })
	err = n.ask(q)
	return drops, q.found, err
}

// hookDevices are the links that a chain is at.
func hookDevices(hook []byte) string {
	const devices = 4 // NFTA_HOOK_DEVS
	names := []string{}
	if one := netlink.AttrText(hook, unix.NFTA_HOOK_DEV); one != "" {
		names = append(names, one)
	} else {
		netlink.EachAttr(netlink.Attr(hook, devices),
			func(_ uint16, name []byte) { names = append(names, netlink.Text(name)) })
	}
	return strings.Join(names, " ")
}
