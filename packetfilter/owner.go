package packetfilter

import "strings"

// owner guesses whose a verdict is. A policy is that of the program whose chains are there as well, and that is known
// to set it.
func (h hook) owner(v Verdict) string {
	owner := v.Chain.Owner()
	if owner != "iptables-nft" {
		return owner
	}
	if owner := chainOwner(v.Jumped); owner != "" {
		return owner
	}
	if v.Legacy {
		owner = "iptables-legacy"
	}
	if v.Rule == "" {
		for _, chain := range []string{"DOCKER-USER", "ufw-before-forward", "ufw6-before-forward", "FORWARD_direct"} {
			if h.table.has(chain) {
				return owner + " of " + chainOwner(chain)
			}
		}
	}
	return owner
}

// chainOwner knows the programs that put chains into the tables of iptables.
func chainOwner(chain string) string {
	for _, c := range []struct{ prefix, owner string }{
		{"DOCKER", "Docker"}, {"ufw-", "ufw"}, {"ufw6-", "ufw"}, {"KUBE-", "kube-proxy"}, {"LIBVIRT_", "libvirt"},
		{"CNI-", "the reference plugins"}, {"NETAVARK", "netavark"}, {"cali-", "Calico"}, {"FLANNEL", "flannel"},
		{"CILIUM", "Cilium"}, {"WEAVE", "Weave"}, {"ts-", "Tailscale"}, {"f2b-", "fail2ban"}, {"FWD", "firewalld"},
		{"FORWARD_", "firewalld"}, {"PODMAN", "podman"},
	} {
		if strings.HasPrefix(chain, c.prefix) {
			return c.owner
		}
	}
	return ""
}
