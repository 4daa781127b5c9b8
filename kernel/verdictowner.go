package kernel

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// iptablesTable reports whether a table of nf_tables is one that iptables-nft made, or uses.
func iptablesTable(family byte, table string) bool {
	return (family == unix.NFPROTO_IPV4 || family == unix.NFPROTO_IPV6) &&
		slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, table)
}

// OwnerOfChain guesses whose a rule in a chain is, by the names that programs give their tables and chains. A table of
// iptables belongs to many.
func OwnerOfChain(family byte, table, chain string) string {
	if iptablesTable(family, table) {
		if owner := chainOwner(chain); owner != "" {
			return owner
		}
		return "iptables-nft"
	}
	for _, t := range []struct{ prefix, owner string }{
		{"firewalld", "firewalld"}, {"docker-bridges", "Docker"}, {"kube-proxy", "kube-proxy"}, {"libvirt_network", "libvirt"},
		{"netavark", "netavark"}, {"cni_", "the reference plugins"}, {"fw4", "OpenWrt"}, {"fairlead", "Fairlead"}, {"calico", "Calico"},
		{"lxd", "LXD"}, {"incus", "Incus"}, {"f2b-", "fail2ban"}, {"flannel", "flannel"},
	} {
		if strings.HasPrefix(table, t.prefix) {
			return t.owner
		}
	}
	return "" // somebody's own, which the name of the table says already
}

// chainOwner knows the programs that put chains into the tables of iptables.
func chainOwner(chain string) string {
	for _, c := range []struct{ prefix, owner string }{
		{"DOCKER", "Docker"}, {"ufw-", "ufw"}, {"ufw6-", "ufw"}, {"KUBE-", "kube-proxy"}, {"LIBVIRT_", "libvirt"}, {"CNI-", "the reference plugins"},
		{"NETAVARK", "netavark"}, {"cali-", "Calico"}, {"FLANNEL", "flannel"}, {"CILIUM", "Cilium"}, {"WEAVE", "Weave"}, {"ts-", "Tailscale"},
		{"f2b-", "fail2ban"}, {"FWD", "firewalld"}, {"FORWARD_", "firewalld"}, {"PODMAN", "podman"},
	} {
		if strings.HasPrefix(chain, c.prefix) {
			return c.owner
		}
	}
	return ""
}

// owner guesses whose a verdict is. A policy is that of the program whose chains are there as well, and that is known
// to set it.
func (h hook) owner(v Verdict) string {
	owner := OwnerOfChain(v.Chain.Family, v.Chain.Table, v.Jumped)
	if owner != "iptables-nft" {
		return owner
	}
	if v.Legacy {
		owner = "iptables-legacy"
	}
	if v.Rule == "" {
		for _, p := range []struct{ chain, owner string }{{"DOCKER-USER", "Docker"}, {"ufw-before-forward", "ufw"}, {"ufw6-before-forward", "ufw"}, {"FORWARD_direct", "firewalld"}} {
			if h.has(p.chain) {
				return owner + " of " + p.owner
			}
		}
	}
	return owner
}

// has reports whether a table has a chain.
func (f *nftFilter) has(chain string) bool {
	q := (&NFTTable{Family: f.family, Name: f.table}).chainQuestion(chain)
	return f.nft.ask([]*question{q}) == nil && q.found
}
