package doctor

import (
	"slices"

	"github.com/fairlead-cni/fairlead/cli/advice"
)

// findingKind is a kind of finding, with its text in docs/doctor.md.
type findingKind struct {
	ID      string
	section string
	Warning bool // containers have their network for now
	What    string
	Why     string
	// Words in capitals are placeholders.
	Fix  string // the command that corrects it
	Look string // where no command can: one that shows more, or what to change by hand
}

const smallerMTU = "nsenter --net=NETNS ip route replace default via GATEWAY dev INTERFACE mtu MTU"

// The sections of the answer.
const (
	OnHost      = "host"
	onNetwork   = "networks"
	onContainer = "containers"
)

// FindingKinds returns all kinds, in the order in which doctor prints them.
func FindingKinds() []findingKind {
	return slices.Concat(hostKinds(), networkKinds(), addressKinds(), containerKinds())
}

func hostKinds() []findingKind {
	const repairs, filter = "fairlead repair", "fairlead repair --firewall"
	return []findingKind{
		{"packet-filter-missing", OnHost, false, "a table of Fairlead is missing in nf_tables",
			"The packet filter was flushed or reloaded. Without the table, no connection is masqueraded, no port is " +
				"published, and no policy applies.", filter, ""},
		{"packet-filter-incomplete", OnHost, false, "rules of attachments are missing in the packet filter",
			"Rules or elements of sets were deleted. Their effect for the container is gone.", filter, ""},
		{"accepts-missing", OnHost, true, "another program's packet filter lacks the accepts of the plugin firewall",
			"The other program's filter was reloaded, or was loaded after the containers were attached. It may drop " +
				"their packets.", filter, ""},
		{"bridge-missing", OnHost, false, "a bridge does not exist",
			"The bridge was deleted. Its containers reach neither each other nor the host.", repairs, ""},
		{"bridge-down", OnHost, false, "a bridge is down",
			"A bridge that is down forwards no packets, and the host has no route to its subnet.", repairs, ""},
		{"bridge-address-missing", OnHost, false, "the gateway's address is missing on its link",
			"The containers get no answer from their gateway, so they reach only their own segment.", repairs, ""},
		{"bridge-route-missing", OnHost, false, "the host has no route to the subnet of a bridge",
			"The kernel added the route with the gateway's address, and the route was deleted. The host sends " +
				"packets to the containers elsewhere, so they get no answers.", repairs, ""},
		{"bridge-changed", OnHost, false, "a bridge differs from the configuration of its network",
			"A setting that containers depend on was changed.", repairs, ""},
		{"host-interface-down", OnHost, false, "the host-side interface is down",
			"Packets of the container do not get further than its own interface.", repairs, ""},
		{"host-interface-missing", OnHost, false, "the host-side interface does not exist",
			"The host-side interface was deleted, and the container interface with it.", advice.Remakes, ""},
		{"host-interface-detached", OnHost, false, "the host-side interface is not a port of its bridge",
			"The interface was taken out of the bridge, often by a network manager that was reloaded. The container " +
				"reaches neither the host nor other containers.",
			repairs, ""},
		{"host-interface-renamed", OnHost, false, "the host-side interface has another name",
			"Rules and limits name links. They do not apply to the new name.",
			"ip link set dev NOW down && ip link set dev NOW name THEN up", ""},
		{"host-interface-changed", OnHost, false, "the veth pair differs from what ADD made",
			"One of its ends was changed or deleted.", repairs, ""},
		{"host-has-address", OnHost, false, "the host itself has an address of a container",
			"Packets that the host sends or forwards to the address stay on the host, and never reach the container.",
			"ip addr del ADDRESS/PREFIX dev LINK", ""},
		{"forwarding-off", OnHost, false, "forwarding is off",
			"The host forwards no packets between containers and other networks. Tools that harden a host, and files " +
				"in /etc/sysctl.d, turn forwarding off.", "sysctl -w KEY=1", ""},
		{"foreign-filter-drops", OnHost, false, "another program's packet filter drops packets of containers",
			"An accept in Fairlead's table does not override a drop in another table. The plugin firewall, last in " +
				"the list of the network, puts accepts where they take effect. Drops that it cannot override need a " +
				"rule of the administrator.",
			"(depends on whose the chain is)", "fairlead trace CONTAINER to ADDRESS"},
		{"host-input-drops", OnHost, false, "a packet filter drops the containers' questions to the host's name server",
			"The name server listens on the gateway's address, as podman's and Docker's do. A filter at the host's " +
				"input hook drops the questions, so names do not resolve in the containers.",
			"(depends on whose the chain is)", "nft list ruleset"},
		{"host-route-missing", OnHost, false, "the host has no default route",
			"The containers' default route leads to the host, and the host cannot route their packets further.",
			"", "ip route add default via ROUTER dev UPLINK"},
		{"host-route6-missing", OnHost, true, "the host has no IPv6 default route",
			"The containers have default routes of both families. Their programs try IPv6 first, and wait until that " +
				"has failed.",
			"", "ip -6 route add default via ROUTER dev UPLINK"},
		{"bridge-filter-drops", OnHost, false, "another program's packet filter drops packets between containers",
			"The module br_netfilter is loaded and its setting is 1, so the packet filter of IP also sees packets " +
				"that a bridge forwards. A rule for packets that the host routes then also drops packets between " +
				"containers.",
			"(depends on whose the chain is)", "nft list ruleset"},
		{"bridge-filter-off", OnHost, false, "kube-proxy does not see packets between containers of one bridge",
			"If a pod calls a Service, and a pod on the same bridge answers, the answer is not translated back " +
				"without br_netfilter. The caller drops it.",
			"sysctl -w KEY=1", "modprobe br_netfilter && sysctl -w KEY=1"},
		{"clock-behind", OnHost, true, "the clock of the host was set back",
			"A valid certificate may seem not to be valid yet, so that TLS fails in containers. The ages that are " +
				"printed are wrong.", "", "timedatectl set-ntp true"},
		{"published-port-diverted", OnHost, false,
			"another program's packet filter takes the packets for a published port",
			"A rule of Docker, podman, a Kubernetes Service or the administrator comes before Fairlead's. It sends " +
				"the packets elsewhere or drops them, so the container gets none.",
			"(depends on whose the rule is)", "nft list ruleset"},
		{"published-port-taken", OnHost, true, "a process of the host listens on a published port",
			"Packets for the port go to the container. The process gets only those that the host itself sends.",
			"", "ss -lntup sport = :PORT"},
		{"published-address-missing", OnHost, true, "the host lacks an address that a port is published on",
			"The address was removed, or moved to another host. Packets for the address do not come to this host.",
			"", "ip addr add ADDRESS/PREFIX dev UPLINK"},
		{"host-state-differs", OnHost, false, "something that an attachment has on the host is missing or was changed",
			"It was changed after the container was attached.", repairs, ""},
		{"conntrack-full", OnHost, false, "the connection tracking table is full",
			"The kernel drops the first packet of each new connection, of containers and of the host.",
			"", "sysctl -w net.netfilter.nf_conntrack_max=MORE"},
		{"conntrack-near", OnHost, true, "the connection tracking table is nearly full",
			"If it is full, the kernel drops the first packet of each new connection.",
			"", "sysctl -w net.netfilter.nf_conntrack_max=MORE"},
		{"neighbour-table-full", OnHost, false, "the neighbour table is full",
			"The kernel cannot resolve new addresses to MACs, and drops packets for them.",
			"", "sysctl -w net/FAMILY/neigh/default/gc_thresh3=MORE"},
		{"state-unwritable", OnHost, false, "the state of attachments cannot be written",
			"The disk is full, or its file system became read-only after an error. Leases and attachments are files " +
				"on it: no container can be attached, and none can be detached completely.",
			"mount -o remount,rw MOUNTPOINT", "df -h DIRECTORY && df -i DIRECTORY"},
		{"cache-missing", OnHost, true, "an attachment has no entry in the cache of attachments",
			"Files of /var/lib/cni/results were removed, or the runtime has its own cache, as Multus has in " +
				"/var/lib/cni/multus. Fairlead can neither check nor repair an attachment without an entry.",
			advice.Remakes, ""},
		{"host-path-blocked", OnHost, false, "packets of containers are stopped on the host",
			"Doctor followed a packet through the host's routes, rules, neighbours, links and bridges, without " +
				"sending it. One of these was changed.",
			"(depends on what stops them)", "fairlead trace CONTAINER to ADDRESS"},
		{"cache-unreadable", OnHost, true, "an entry of the cache of attachments cannot be read",
			"The attachment is unknown without it, so it is neither checked, nor repaired, nor removed.",
			"", "fairlead ls"},
	}
}

func networkKinds() []findingKind {
	return []findingKind{
		{"network-file-unusable", onNetwork, false, "a network's file cannot be used",
			"The file does not parse, or contradicts itself. Runtimes do not know its network, or report that the " +
				"node is not ready.",
			"", "fairlead validate FILE"},
		{"network-file-missing", onNetwork, true, "the file of a network with attached containers does not exist",
			"No container can be attached to the network, and a runtime that reads the file for DEL detaches " +
				"nothing. The cache of attachments has a copy of the list, which the fix writes back.",
			"jq -r .config ENTRY | base64 -d > FILE", ""},
		{"bridge-shared", onNetwork, true, "two networks use one bridge",
			"Their containers are on one segment: each sees the broadcasts of the other network and reaches its " +
				"containers, whatever subnets and policies these have.",
			"", "give each network a bridge or a VLAN of its own, in the files that `fairlead net ls` names"},
		{"network-shadowed", onNetwork, true, "two files define one network",
			"The first file by name applies, and lists apply before single configurations. The other file has no " +
				"effect.",
			"rm FILE", ""},
		{"plugin-missing", onNetwork, false, "a plugin of a network is missing",
			"The plugin is in none of the plugin directories, or is not executable. No container can be attached or " +
				"detached. For a plugin of Fairlead, doctor prints the `fairlead install` that installs it there.",
			"fairlead install --dir DIRECTORY", "fairlead validate FILE"},
		{"kernel-lacks-kind", onNetwork, false, "the kernel lacks a kind of link that a network needs",
			"The kernel module is not installed, or the kernel was built without this kind. No container can be " +
				"attached.",
			"", "modprobe MODULE"},
		{"version-too-new", onNetwork, true, "an installed program does not accept the network's cniVersion",
			"Its CNI library does not know CNI 1.1. With 1.0.0 in cniVersion, and 1.1.0 in cniVersions, each program " +
				"uses the newest version that it knows.",
			`sed -i 's/"cniVersion": *"1.1.0"/"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"]/' FILE`, ""},
	}
}

// addressKinds are those of networks' addresses and leases, and of what STATUS says.
func addressKinds() []findingKind {
	return []findingKind{
		{"range-exhausted", onNetwork, false, "a network has no address left",
			"New containers are refused. If leases of containers that are gone remain, they can be reclaimed. " +
				"Otherwise the range is too small.",
			"fairlead ipam reclaim NET", "fairlead ipam ls NET"},
		{"range-near", onNetwork, true, "a network is about to run out of addresses",
			"Less than 5 % of the addresses are available.", "fairlead ipam reclaim NET", "fairlead ipam ls NET"},
		{"leases-of-the-dead", onNetwork, true, "containers that are gone still have leases",
			"Their DEL was never called, for example because of a crash or a reboot. The addresses cannot be " +
				"allocated.", "fairlead ipam reclaim NET", ""},
		{"lease-missing", onNetwork, false, "leases of running containers are missing",
			"Their files were removed, so each address can be allocated a second time. The fix writes the file " +
				"again, unless another container has the address by now.",
			`(set -C; printf 'CONTAINER\r\nINTERFACE' > FILE)`, ""},
		{"dhcp-daemon-absent", onNetwork, false, "no DHCP daemon runs for a network that needs one",
			"Nothing listens on the daemon's socket, so leases are neither requested nor renewed.",
			"", "systemctl enable --now cni-dhcp.socket"},
		{"dhcp-daemon-silent", onNetwork, false, "the DHCP daemon does not answer",
			"The daemon runs and is stuck: leases are neither requested nor renewed. After a restart it continues " +
				"with the leases that it has.",
			"", "systemctl restart cni-dhcp.service"},
		{"dhcp-lease-lost", onNetwork, false, "DHCP leases have expired",
			"No server renewed them. The daemon removed their addresses from the container interfaces, and keeps " +
				"requesting new ones.",
			"", "fairlead dhcp ls NET"},
		{"dhcp-server-silent", onNetwork, true, "a DHCP server does not answer",
			"The daemon asks this server, and later every server, to renew the lease. If none answers before the " +
				"lease expires, the daemon removes its addresses from the container interface.",
			"", "fairlead dhcp ls NET"},
		{"subnet-overlap", onNetwork, false, "a network overlaps with another one, or with a route of the host",
			"The host reaches only one of the two, or both allocate the same address.",
			"", "give the network another subnet, in the file that `fairlead net ls` names"},
		{"subnet-inside-route", onNetwork, true,
			"a network's subnet is part of a larger one that the host has a route to",
			"Packets for this part go to the containers. If the larger network, for example of a VPN, also uses it, " +
				"host and containers do not reach it there.",
			"", "give the network another subnet, in the file that `fairlead net ls` names"},
		{"network-not-ready", onNetwork, false, "a network would refuse a new container",
			"A plugin of its list answers STATUS with an error.", "", "fairlead status NET"},
	}
}

func containerKinds() []findingKind {
	return []findingKind{
		{"container-interface-missing", onContainer, false, "the container lacks the interface that it was given",
			"The interface was deleted or renamed in the container.", advice.Remakes, ""},
		{"container-interface-down", onContainer, false, "the container interface is down",
			"It was set down in the container. The kernel deletes the routes of an interface that is set down, and " +
				"does not restore them.", advice.Remakes, ""},
		{"container-interface-changed", onContainer, false, "the container interface differs from what ADD made",
			"It was changed in the container.", advice.Remakes, ""},
		{"container-address-missing", onContainer, false, "the container lacks an address that it was given",
			"The address was flushed or deleted in the container. Its routes were removed with it.",
			advice.Remakes, ""},
		{"container-route-missing", onContainer, false, "the container lacks a route that it was given",
			"The route was deleted or replaced in the container. Without a default route the container reaches only " +
				"its own subnet.",
			advice.Remakes, ""},
		{"address-duplicate", onContainer, false, "another interface on the segment has an address of the container",
			"For IPv6, duplicate address detection found it, and the kernel does not use the address. For IPv4, a " +
				"probe found it, and packets for the address go to either of the two. A container that is attached " +
				"again gets another address; `fairlead ipam reserve` keeps the first one out of use.",
			advice.Remakes, ""},
		{"mtu-too-large", onContainer, true, "the container's MTU is larger than that of the way out",
			"Large packets are lost if a firewall on the way drops the ICMP messages that report it: small requests " +
				"work, and transfers hang. The fix is for this container; for new ones set \"mtu\": \"auto\" in the " +
				"network's list.",
			smallerMTU, "set \"mtu\" in the network's list"},
		{"path-mtu", onContainer, false, "large packets are lost on the way out, without an error",
			"Small packets are answered. No ICMP message reports that the large ones are too large, so senders do " +
				"not reduce their size: small requests work, and transfers hang. The fix is for this container; for " +
				"new ones set a smaller \"mtu\" in the network's list.",
			smallerMTU, "set \"mtu\" in the network's list"},
		{"container-state-differs", onContainer, false, "something in the container differs from what ADD made",
			"It was changed in the container, where Fairlead repairs nothing.", advice.Remakes, ""},
		{"port-nobody-listens", onContainer, false, "no process in the container listens on a published port",
			"The kernel refuses connections to the port. The server has not started yet, has ended, or uses another " +
				"port.",
			"", "nsenter --net=NETNS ss -lntu"},
		{"reverse-path-filter", onContainer, false, "the container drops packets for its published port",
			"Its default route leads through another interface, and rp_filter is strict: the kernel accepts a packet " +
				"only on the interface through which it would send the answer.",
			"nsenter --net=NETNS sysctl -w net/ipv4/conf/all/rp_filter=2", ""},
		{"port-loopback-only", onContainer, false, "the server of a published port listens on another address only",
			"Packets from outside are sent to the container's own address, on which the server does not listen. Have " +
				"the server listen on 0.0.0.0 or [::].", "", "nsenter --net=NETNS ss -lntu"},
		{"container-path-blocked", onContainer, false, "packets are stopped in the container",
			"The container's own packet filter, a route, a rule or a neighbour entry stops them. A program that may " +
				"change these in the container, such as the proxy of a service mesh, set it.",
			"(depends on what stops them)", "fairlead trace CONTAINER to ADDRESS"},
		{"gateway-unreachable", onContainer, false, "the container does not reach its gateway",
			"The probe got no answer. If the host has no finding, a filter at its input hook may drop packets from " +
				"containers to the host.", "", "nft list ruleset"},
		{"dns-unreachable", onContainer, false, "the container gets no answer from a name server",
			"Names do not resolve in the container. Many programs report that as \"no network\".",
			"", "ip netns exec NAME resolvectl query example.org"},
		{"address-unreachable", onContainer, false, "the container does not reach the address that --to gives",
			"The probe got no answer from the address. The lines of the container say what becomes of a packet to " +
				"it, and of one back if this host can follow it.", "", "traceroute ADDRESS"},
		{"attachment-broken", onContainer, false, "an attachment has a fault that repair cannot correct",
			"The finding says what it is.", "", "fairlead repair --dry-run"},
		{"del-unfinished", onContainer, false, "a DEL was not completed",
			"One of its plugins failed. The interface is removed, and the state of that plugin remains.",
			"fairlead del NET NETNS", ""},
		{"reference-rules-missing", onContainer, false, "rules that the reference plugins made are missing",
			"The packet filter was flushed. `fairlead repair` does not change attachments that other programs made.",
			"fairlead repair --adopt", ""},
		{"container-gone", onContainer, true, "containers that are gone still have attachments",
			"Their DEL was never called. The attachments keep addresses, ports and rules.", "fairlead gc --gone", ""},
	}
}
