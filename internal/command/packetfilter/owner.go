package packetfilter

import "strings"

// The values of Verdict.Program that advice depends on.
const (
	Docker    = "Docker"
	Firewalld = "firewalld"
	KubeProxy = "kube-proxy"
	Netavark  = "netavark"
	Reference = "the reference plugins"
	UFW       = "ufw"
)

// owner guesses whose a verdict is, for people and as a program. A policy is that of the program whose chains are there
// as well, and that is known to set it.
func (h hook) owner(v Verdict) (owner, program string) {
	owner = v.Chain.Owner()
	if owner != "iptables-nft" {
		return owner, owner
	}
	if program = chainOwner(v.Jumped); program != "" {
		return program, program
	}
	if v.Legacy {
		owner = "iptables-legacy"
	}
	if v.Rule == "" {
		for _, chain := range []string{"DOCKER-USER", "ufw-before-forward", "ufw6-before-forward", "FORWARD_direct"} {
			if h.table.has(chain) {
				program = chainOwner(chain)
				return owner + " of " + program, program
			}
		}
	}
	return owner, ""
}

// chainOwner knows the programs that put chains into the tables of iptables.
func chainOwner(chain string) string {
	for _, c := range []struct{ prefix, owner string }{
		{"DOCKER", Docker}, {"ufw-", UFW}, {"ufw6-", UFW}, {"KUBE-", KubeProxy}, {"LIBVIRT_", "libvirt"},
		{"CNI-", Reference}, {"NETAVARK", Netavark}, {"cali-", "Calico"}, {"FLANNEL", "flannel"},
		{"CILIUM", "Cilium"}, {"WEAVE", "Weave"}, {"ts-", "Tailscale"}, {"f2b-", "fail2ban"}, {"FWD", Firewalld},
		{"FORWARD_", Firewalld}, {"PODMAN", "podman"},
	} {
		if strings.HasPrefix(chain, c.prefix) {
			return c.owner
		}
	}
	return ""
}
