package cli

// A findingKind is a kind of trouble that doctor knows: its entry in docs/doctor.md.
type findingKind struct {
	id      string
	section string
	warning bool // it does not keep a container from its network today
	what    string
	why     string
	mend    string // words in capitals are placeholders
}

// The sections of doctor's answer.
const (
	onHost      = "host"
	onNetwork   = "networks"
	onContainer = "containers"
)

// remakes is the mend of what no command of ours can mend while the container lives.
const remakes = "recreate the container by the runtime that attached it"

// findingKinds are all, in the order in which doctor prints them.
func findingKinds() []findingKind {
	return append(append(hostKinds(), networkKinds()...), containerKinds()...)
}

func hostKinds() []findingKind {
	const repairs, filter = "fairlead repair", "fairlead repair --firewall"
	return []findingKind{
		{"packet-filter-missing", onHost, false, "a table of Fairlead is missing in nf_tables",
			"Somebody flushed or reloaded the packet filter. Without the table nothing is masqueraded, no port is " +
				"published, and no policy is in force.", filter},
		{"packet-filter-incomplete", onHost, false, "rules of attachments are missing in the packet filter",
			"Somebody deleted rules or elements of sets. What these did for the container is not done.", filter},
		{"accepts-missing", onHost, false, "another program's packet filter lacks the accepts of the plugin firewall",
			"Somebody reloaded it, or it came after the containers. It may drop what they send.", filter},
		{"bridge-missing", onHost, false, "a bridge does not exist",
			"Somebody deleted it. Its containers reach neither each other nor the host.", repairs},
		{"bridge-down", onHost, false, "a bridge is down",
			"A bridge that is down passes nothing on, and the host has no route to its subnet.", repairs},
		{"bridge-address-missing", onHost, false, "the gateway's address is missing on its link",
			"The containers' gateway answers nobody, so they reach nothing beyond their own segment.", repairs},
		{"bridge-changed", onHost, false, "a bridge is otherwise than its network has it",
			"Somebody changed a setting that containers depend on.", repairs},
		{"host-interface-down", onHost, false, "the host-side interface is down",
			"The container's packets end at its own interface.", repairs},
		{"host-interface-missing", onHost, false, "the host-side interface does not exist",
			"Somebody deleted it, and with it the container's end.", remakes},
		{"host-interface-detached", onHost, false, "the host-side interface is not a port of its bridge",
			"Somebody took it out of the bridge, often a network manager that was reloaded. The container reaches nobody.",
			repairs},
		{"host-interface-renamed", onHost, false, "the host-side interface has another name",
			"Rules and limits go by names of links. Under another name the interface has neither.",
			"ip link set dev NOW down && ip link set dev NOW name THEN up"},
		{"host-interface-changed", onHost, false, "the pair of interfaces is otherwise than it was made",
			"Somebody changed or deleted one of its ends.", repairs},
		{"forwarding-off", onHost, false, "forwarding is off",
			"The host drops what containers send to other networks and what others send to them. Tools that harden a host, " +
				"and files in /etc/sysctl.d, set it.", "sysctl -w KEY=1"},
		{"foreign-filter-drops", onHost, false, "another program's packet filter drops packets of containers",
			"An accept in Fairlead's table does not lift a drop in another one. The plugin firewall, last in the list of " +
				"the network, puts accepts where they count; what it cannot lift needs a rule of the administrator.",
			"(depends on whose the chain is)"},
		{"host-input-drops", onHost, false, "a packet filter drops what containers send to the host's name server",
			"The name server listens on the gateway's address, as podman's and Docker's do. A filter at the host's input " +
				"hook drops questions, so names do not resolve in the containers.", "(depends on whose the chain is)"},
		{"host-route-missing", onHost, false, "the host has no default route",
			"The containers' default route ends at the host, which does not know the way on.",
			"ip route add default via ROUTER dev UPLINK"},
		{"host-route6-missing", onHost, true, "the host has no default route of IPv6",
			"The containers have one of both families. Programs in them try IPv6 first, and wait until that has failed.",
			"ip -6 route add default via ROUTER dev UPLINK"},
		{"bridge-filter-drops", onHost, false, "another program's packet filter drops packets between containers",
			"The kernel sends what a bridge passes on through the packet filter of IP, for the module br_netfilter is " +
				"loaded and its setting is 1. A rule for the host's routed packets then hits those on one bridge.",
			"(depends on whose the chain is)"},
		{"bridge-filter-off", onHost, false, "kube-proxy does not see packets between containers of one bridge",
			"A pod calls a Service, and a pod on the same bridge answers. Without br_netfilter the answer is not translated " +
				"back, and the caller drops it.", "modprobe br_netfilter && sysctl -w KEY=1"},
		{"clock-behind", onHost, true, "the clock of the host was set back",
			"Certificates that are valid may seem not to be valid yet, so that TLS fails in containers, and the ages that " +
				"are printed are wrong.", "timedatectl set-ntp true"},
		{"published-port-diverted", onHost, false, "another program's packet filter takes what comes to a published port",
			"Its rule comes before Fairlead's, and sends the packets elsewhere or drops them, so that the container gets none. " +
				"Docker, podman, a Service of Kubernetes or the administrator publishes the port, too.",
			"(depends on whose the rule is)"},
		{"published-port-taken", onHost, true, "a process of the host listens on a published port",
			"Packets for the port go to the container, and the process gets none but from the host itself.",
			"ss -lntup sport = :PORT"},
		{"published-address-missing", onHost, true, "the host lacks an address that a port is published on",
			"Nobody who is not told otherwise sends packets for the address to this host. It was taken away, or has moved.",
			"ip addr add ADDRESS/PREFIX dev UPLINK"},
		{"host-state-differs", onHost, false, "something that an attachment has on the host is missing or was changed",
			"Somebody changed it after the container was attached.", repairs},
		{"conntrack-full", onHost, false, "the table of connections is full",
			"The kernel drops the first packet of each new connection, of containers and of the host.",
			"sysctl -w net.netfilter.nf_conntrack_max=MORE"},
		{"conntrack-near", onHost, true, "the table of connections is nearly full",
			"Once it is full, the kernel drops the first packet of each new connection.",
			"sysctl -w net.netfilter.nf_conntrack_max=MORE"},
		{"neighbour-table-full", onHost, false, "the table of neighbours is full",
			"The kernel finds no MAC for a new address, and drops what is sent to it.",
			"sysctl -w net/FAMILY/neigh/default/gc_thresh3=MORE"},
		{"state-unwritable", onHost, false, "what is remembered of attachments cannot be written",
			"The disk is full, or its file system was set read-only after an error. Leases and attachments are files there: no " +
				"container can be attached, and none detached completely.", "df -h DIRECTORY && df -i DIRECTORY"},
		{"cache-missing", onHost, true, "no entry of the attachments' cache remembers an attachment",
			"Somebody removed files of /var/lib/cni/results, or the runtime keeps its own elsewhere, as Multus does in " +
				"/var/lib/cni/multus. Fairlead neither checks nor repairs what nobody remembers.", remakes},
		{"host-path-blocked", onHost, false, "packets of containers are stopped on the host",
			"Routes, rules, neighbours, links and bridges were asked what becomes of a packet, and none was sent. Somebody has " +
				"changed one of them.", "fairlead trace CONTAINER to ADDRESS"},
		{"cache-unreadable", onHost, true, "an entry of the attachments' cache cannot be read",
			"Nobody knows what that attachment is, so it is neither checked, nor repaired, nor removed.", "fairlead ls"},
	}
}

func networkKinds() []findingKind {
	return []findingKind{
		{"network-file-unusable", onNetwork, false, "a file of networks cannot be used",
			"It does not parse, or says what cannot be meant. Runtimes do not know its network, or call the node not ready.",
			"fairlead net ls"},
		{"network-shadowed", onNetwork, true, "two files define one network",
			"The first by name is taken, lists before single configurations. What the other one says has no effect.",
			"rm FILE"},
		{"plugin-missing", onNetwork, false, "a plugin of a network is missing",
			"Its file is in none of the plugin directories, or is not executable. No container can be attached or detached.",
			"fairlead version NET"},
		{"kernel-lacks-kind", onNetwork, false, "the kernel lacks a kind of links that a network needs",
			"Its module is not installed, or the kernel was built without it. No container can be attached.",
			"modprobe MODULE"},
		{"version-too-new", onNetwork, true, "a program that is installed refuses the network's cniVersion",
			"It reads the files of networks by a library that knows no CNI 1.1. With 1.0.0 in cniVersion, and 1.1.0 in " +
				"cniVersions, every program takes the best that it knows.",
			`sed -i 's/"cniVersion": *"1.1.0"/"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"]/' FILE`},
		{"range-exhausted", onNetwork, false, "a network has no address left",
			"New containers are refused. Leases of containers that are gone can be removed; else the range is too small.",
			"fairlead ipam reclaim NET"},
		{"range-near", onNetwork, true, "a network is about to run out of addresses",
			"Fewer than one in twenty are left.", "fairlead ipam reclaim NET"},
		{"leases-of-the-dead", onNetwork, true, "leases are left of containers that are gone",
			"A DEL never came, as after a crash or a boot. The addresses cannot be given out.", "fairlead ipam reclaim NET"},
		{"lease-missing", onNetwork, false, "leases of containers that live are missing",
			"Somebody removed their files. The address of each can be given to another container, too; keep it back until the " +
				"container is attached anew.", "fairlead ipam reserve NET ADDRESS"},
		{"dhcp-daemon-absent", onNetwork, false, "no DHCP daemon serves a network that asks for one",
			"Nothing listens on the daemon's socket, so that no lease is asked for and none is renewed.",
			"systemctl enable --now cni-dhcp.socket"},
		{"dhcp-daemon-silent", onNetwork, false, "the DHCP daemon does not answer",
			"It runs and is stuck: no lease is asked for, and none is renewed. Restarted it goes on with the leases that it has.",
			"systemctl restart cni-dhcp.service"},
		{"dhcp-lease-lost", onNetwork, false, "leases of DHCP are over",
			"No server gave more time. Their addresses are off the containers' links, and the daemon goes on asking for others.",
			"fairlead dhcp ls NET"},
		{"dhcp-server-silent", onNetwork, true, "a DHCP server does not answer",
			"The daemon asks it, and every other one, for more time. Where none answers until a lease ends, its addresses go " +
				"off the container's link.", "fairlead dhcp ls NET"},
		{"subnet-overlap", onNetwork, false, "a network overlaps with another one, or with a route of the host",
			"The host reaches only one of the two, or both give away the same address.",
			"give the network another subnet, in the file that `fairlead net ls` names"},
		{"subnet-inside-route", onNetwork, true, "a network's subnet is part of a larger one that the host has a route to",
			"Packets for this part go to the containers. If the larger network, of a VPN say, uses it too, host and " +
				"containers do not reach it there.", "give the network another subnet, in the file that `fairlead net ls` names"},
		{"network-not-ready", onNetwork, false, "a network would refuse a new container",
			"A plugin of its list answers STATUS with an error.", "fairlead status NET"},
	}
}

func containerKinds() []findingKind {
	return []findingKind{
		{"container-interface-missing", onContainer, false, "the container lacks the interface that it was given",
			"Somebody deleted or renamed it in the container.", remakes},
		{"container-interface-changed", onContainer, false, "the container's interface is otherwise than it was made",
			"Somebody changed it in the container.", remakes},
		{"container-address-missing", onContainer, false, "the container lacks an address that it was given",
			"Somebody flushed or deleted it in the container. Its routes went with it.", remakes},
		{"container-route-missing", onContainer, false, "the container lacks a route that it was given",
			"Somebody deleted or replaced it in the container. Without a default route it reaches its own subnet only.",
			remakes},
		{"address-duplicate", onContainer, false, "somebody else on the segment has an address of the container",
			"Of IPv6 duplicate address detection found it, and the kernel does not use the address. Of IPv4 a probe found it, and " +
				"who sends to the address reaches now the one and now the other. Reserve it, and attach the container anew.",
			"fairlead ipam reserve NET ADDRESS"},
		{"mtu-too-large", onContainer, true, "the container's MTU is larger than that of the way out",
			"Large packets are lost where somebody drops the ICMP messages that would say so: small requests work, and " +
				"transfers hang. Set \"mtu\": \"auto\" in the network's list.", remakes},
		{"path-mtu", onContainer, false, "the way out loses large packets without a word",
			"Small ones are answered, and nobody says that the large ones are too large, so that no sender learns it: small " +
				"requests work, and transfers hang. Set a smaller \"mtu\" in the network's list.", remakes},
		{"container-state-differs", onContainer, false, "something in the container is otherwise than it was made",
			"Somebody changed it in the container, where Fairlead mends nothing.", remakes},
		{"port-nobody-listens", onContainer, false, "nobody listens in the container on a port that is published",
			"The kernel refuses connections to the port. The server has not started yet, has ended, or has another port.",
			"nsenter --net=NETNS ss -lntu"},
		{"reverse-path-filter", onContainer, false, "the container drops what comes to its published port",
			"Its default route leads by another interface, and rp_filter is strict: the kernel takes a packet only from the " +
				"interface by which it would send the answer.",
			"nsenter --net=NETNS sysctl -w net/ipv4/conf/all/rp_filter=2"},
		{"port-loopback-only", onContainer, false, "the server of a published port listens on another address only",
			"What comes from outside is sent to the container's own address, where nobody listens. Have the server listen " +
				"on 0.0.0.0 or [::].", "nsenter --net=NETNS ss -lntu"},
		{"container-path-blocked", onContainer, false, "packets are stopped in the container",
			"Its own packet filter, a route, a rule or a neighbour's entry does it. Whoever may change these in the container, " +
				"such as the proxy of a service mesh, has done so.", "fairlead trace CONTAINER to ADDRESS"},
		{"gateway-unreachable", onContainer, false, "the container does not reach its gateway",
			"The probe got no answer. Where the host has no finding, a filter at its input hook may drop what containers send " +
				"to it.", "nft list ruleset"},
		{"dns-unreachable", onContainer, false, "the container gets no answer from a name server",
			"Names do not resolve in the container, which many programs call \"no network\".",
			"ip netns exec NAME resolvectl query example.org"},
		{"address-unreachable", onContainer, false, "the container does not reach the address that --to gives",
			"The probe got no answer from it.", "traceroute ADDRESS"},
		{"attachment-broken", onContainer, false, "an attachment has something wrong that repair does not mend",
			"See what is said of it.", "fairlead repair --dry-run"},
		{"del-unfinished", onContainer, false, "a DEL was begun and is not finished",
			"A plugin failed at it. The interface is gone, and what that plugin had is left.", "fairlead del NET NETNS"},
		{"reference-rules-missing", onContainer, false, "rules that the reference plugins made are missing",
			"Somebody flushed the packet filter. `fairlead repair` leaves alone what other programs attached.",
			"fairlead repair --adopt"},
		{"container-gone", onContainer, true, "attachments are left of containers that are gone",
			"A DEL never came. They keep addresses, ports and rules.", "fairlead gc --gone"},
	}
}
