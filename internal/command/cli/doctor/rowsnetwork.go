package doctor

// The kinds of findings about networks.
const (
	NetworkFileUnusable ID = "network-file-unusable"
	NetworkFileMissing  ID = "network-file-missing"
	BridgeShared        ID = "bridge-shared"
	NetworkShadowed     ID = "network-shadowed"
	PluginMissing       ID = "plugin-missing"
	KernelLacksKind     ID = "kernel-lacks-kind"
	VersionTooNew       ID = "version-too-new"
	RangeExhausted      ID = "range-exhausted"
	RangeNear           ID = "range-near"
	LeasesOfTheDead     ID = "leases-of-the-dead"
	LeaseMissing        ID = "lease-missing"
	DHCPDaemonAbsent    ID = "dhcp-daemon-absent"
	DHCPDaemonSilent    ID = "dhcp-daemon-silent"
	DHCPLeaseLost       ID = "dhcp-lease-lost"
	DHCPServerSilent    ID = "dhcp-server-silent"
	SubnetOverlap       ID = "subnet-overlap"
	SubnetInsideRoute   ID = "subnet-inside-route"
	NetworkNotReady     ID = "network-not-ready"

	ClusterAgentSilent     ID = "cluster-agent-silent"
	ClusterNodeUnreachable ID = "cluster-node-unreachable"
)

func networkKinds() []Kind {
	const anotherSubnet = "give the network another subnet, in the file that `fairlead net ls` names"
	return []Kind{
		{ID: NetworkFileUnusable,
			What: "a network's file cannot be used",
			Why: "The file does not parse, or contradicts itself. Runtimes do not know its network, or report that " +
				"the node is not ready.",
			Look: "fairlead validate FILE"},
		{ID: NetworkFileMissing, Warning: true,
			What: "the file of a network with attached containers does not exist",
			Why: "No container can be attached to the network, and a runtime that reads the file for DEL detaches " +
				"nothing. The cache of attachments has a copy of the list, which the fix writes back.",
			Fix: "jq -r .config ENTRY | base64 -d > FILE"},
		{ID: BridgeShared, Warning: true,
			What: "two networks use one bridge",
			Why: "Their containers are on one segment: each sees the broadcasts of the other network and reaches " +
				"its containers, whatever subnets and policies these have.",
			Look: "give each network a bridge or a VLAN of its own, in the files that `fairlead net ls` names"},
		{ID: NetworkShadowed, Warning: true,
			What: "two files define one network",
			Why: "The first file by name applies, and lists apply before single configurations. The other file has " +
				"no effect.",
			Fix: "rm FILE"},
		{ID: PluginMissing,
			What: "a plugin of a network is missing",
			Why: "The plugin is in none of the plugin directories, or is not executable. No container can be " +
				"attached or detached. For a plugin of Fairlead, doctor prints the `fairlead install` that installs " +
				"it there.",
			Fix:  "fairlead install --dir DIRECTORY",
			Look: "fairlead validate FILE"},
		{ID: KernelLacksKind,
			What: "the kernel lacks a kind of link that a network needs",
			Why: "The kernel module is not installed, or the kernel was built without this kind. No container can " +
				"be attached.",
			Look: "modprobe MODULE"},
		{ID: ClusterAgentSilent, Warning: true,
			What: "fairlead-agent does not answer",
			Why: "Containers keep their network, and are attached and detached. But nodes that join the cluster " +
				"get no way, and nothing restores a route or a device that another program removes.",
			Look: "journalctl -u fairlead-agent; kubectl -n fairlead logs ds/fairlead -c agent"},
		{ID: ClusterNodeUnreachable,
			What: "containers of another node of the cluster cannot be reached, or not with all packets",
			Why: "fairlead-agent has no way to the node, or its tests of the path failed. The text says which " +
				"packets are lost in which direction, or what takes the node's range.",
			Look: "fairlead cluster status NET"},
		{ID: VersionTooNew, Warning: true,
			What: "an installed program does not accept the network's cniVersion",
			Why: "Its CNI library does not know CNI 1.1. With 1.0.0 in cniVersion, and 1.1.0 in cniVersions, each " +
				"program uses the newest version that it knows.",
			Fix: `sed -i 's/"cniVersion": *"1.1.0"/"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"]/' FILE`},
		{ID: RangeExhausted,
			What: "a network has no address left",
			Why: "New containers are refused: all leases belong to containers that may run. The range is too " +
				"small.",
			Look: "fairlead ipam ls NET"},
		{ID: RangeNear, Warning: true,
			What: "a network is about to run out of addresses",
			Why: "Less than 5 % of the addresses are available. If none is, an ADD reclaims leases of containers " +
				"that are gone.",
			Fix:  "fairlead ipam reclaim NET",
			Look: "fairlead ipam ls NET"},
		{ID: LeasesOfTheDead, Warning: true,
			What: "containers that are gone still have leases",
			Why: "Their DEL was never called, for example because of a crash or a reboot. The addresses cannot be " +
				"allocated.",
			Fix: "fairlead ipam reclaim NET"},
		{ID: LeaseMissing,
			What: "leases of running containers are missing",
			Why: "Their files were removed, so each address can be allocated a second time. The fix writes the " +
				"file again, unless another container has the address by now.",
			Fix: `(set -C; printf 'CONTAINER\r\nINTERFACE' > FILE)`},
		{ID: DHCPDaemonAbsent,
			What: "no DHCP daemon runs for a network that needs one",
			Why:  "Nothing listens on the daemon's socket, so leases are neither requested nor renewed.",
			Look: "systemctl enable --now cni-dhcp.socket"},
		{ID: DHCPDaemonSilent,
			What: "the DHCP daemon does not answer",
			Why: "The daemon runs and is stuck: leases are neither requested nor renewed. After a restart it " +
				"continues with the leases that it has.",
			Look: "systemctl restart cni-dhcp.service"},
		{ID: DHCPLeaseLost,
			What: "DHCP leases have expired",
			Why: "No server renewed them. The daemon removed their addresses from the container interfaces, and " +
				"keeps requesting new ones.",
			Look: "fairlead dhcp ls NET"},
		{ID: DHCPServerSilent, Warning: true,
			What: "a DHCP server does not answer",
			Why: "The daemon asks this server, and later every server, to renew the lease. If none answers before " +
				"the lease expires, the daemon removes its addresses from the container interface.",
			Look: "fairlead dhcp ls NET"},
		{ID: SubnetOverlap,
			What: "a network overlaps with another one, or with a route of the host",
			Why:  "The host reaches only one of the two, or both allocate the same address.",
			Look: anotherSubnet},
		{ID: SubnetInsideRoute, Warning: true,
			What: "a network's subnet is part of a larger one that the host has a route to",
			Why: "Packets for this part go to the containers. If the larger network, for example of a VPN, also " +
				"uses it, host and containers do not reach it there.",
			Look: anotherSubnet},
		{ID: NetworkNotReady,
			causes: causes{StateUnwritable: here},
			What:   "a network would refuse a new container",
			Why:    "A plugin of its list answers STATUS with an error.",
			Look:   "fairlead status NET"},
	}
}
