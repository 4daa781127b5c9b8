package doctor

import "github.com/fairlead-cni/fairlead/internal/command/cli/advice"

// The kinds of findings about the host.
const (
	PacketFilterMissing     ID = "packet-filter-missing"
	PacketFilterIncomplete  ID = "packet-filter-incomplete"
	AcceptsMissing          ID = "accepts-missing"
	BridgeMissing           ID = "bridge-missing"
	BridgeDown              ID = "bridge-down"
	BridgeAddressMissing    ID = "bridge-address-missing"
	BridgeRouteMissing      ID = "bridge-route-missing"
	BridgeChanged           ID = "bridge-changed"
	HostInterfaceDown       ID = "host-interface-down"
	HostInterfaceMissing    ID = "host-interface-missing"
	HostInterfaceDetached   ID = "host-interface-detached"
	HostInterfaceRenamed    ID = "host-interface-renamed"
	HostInterfaceChanged    ID = "host-interface-changed"
	HostHasAddress          ID = "host-has-address"
	ForwardingOff           ID = "forwarding-off"
	ForeignFilterDrops      ID = "foreign-filter-drops"
	HostInputDrops          ID = "host-input-drops"
	HostRouteMissing        ID = "host-route-missing"
	HostRoute6Missing       ID = "host-route6-missing"
	BridgeFilterDrops       ID = "bridge-filter-drops"
	BridgeFilterOff         ID = "bridge-filter-off"
	ClockBehind             ID = "clock-behind"
	PublishedPortDiverted   ID = "published-port-diverted"
	PublishedPortTaken      ID = "published-port-taken"
	PublishedAddressMissing ID = "published-address-missing"
	HostStateDiffers        ID = "host-state-differs"
	ConntrackFull           ID = "conntrack-full"
	ConntrackNear           ID = "conntrack-near"
	NeighbourTableFull      ID = "neighbour-table-full"
	StateUnwritable         ID = "state-unwritable"
	CacheMissing            ID = "cache-missing"
	HostPathBlocked         ID = "host-path-blocked"
	CacheUnreadable         ID = "cache-unreadable"
)

func hostKinds() []Kind {
	const repairs, filter = "fairlead repair", "fairlead repair --firewall"
	return []Kind{
		{ID: PacketFilterMissing,
			What: "a table of Fairlead is missing in nf_tables",
			Why: "The packet filter was flushed or reloaded. Without the table, no connection is masqueraded, no " +
				"port is published, and no policy applies.",
			Fix: filter},
		{ID: PacketFilterIncomplete,
			What: "rules of attachments are missing in the packet filter",
			Why:  "Rules or elements of sets were deleted. Their effect for the container is gone.",
			Fix:  filter},
		{ID: AcceptsMissing, Warning: true,
			causes: causes{ForeignFilterDrops: anywhere},
			What:   "another program's packet filter lacks the accepts of the plugin firewall",
			Why: "The other program's filter was reloaded, or was loaded after the containers were attached. It " +
				"may drop their packets.",
			Fix: filter},
		{ID: BridgeMissing,
			What: "a bridge does not exist",
			Why:  "The bridge was deleted. Its containers reach neither each other nor the host.",
			Fix:  repairs},
		{ID: BridgeDown,
			What: "a bridge is down",
			Why:  "A bridge that is down forwards no packets, and the host has no route to its subnet.",
			Fix:  repairs},
		{ID: BridgeAddressMissing,
			causes: causes{BridgeMissing: here, BridgeDown: here},
			What:   "the gateway's address is missing on its link",
			Why:    "The containers get no answer from their gateway, so they reach only their own segment.",
			Fix:    repairs},
		{ID: BridgeRouteMissing,
			What: "the host has no route to the subnet of a bridge",
			Why: "The kernel added the route with the gateway's address, and the route was deleted or replaced. The " +
				"host sends packets to the containers elsewhere, so they get no answers.",
			Fix: repairs},
		{ID: BridgeChanged,
			What: "a bridge differs from the configuration of its network",
			Why:  "A setting that containers depend on was changed.",
			Fix:  repairs},
		{ID: HostInterfaceDown,
			What: "the host-side interface is down",
			Why:  "Packets of the container do not get further than its own interface.",
			Fix:  repairs},
		{ID: HostInterfaceMissing,
			What: "the host-side interface does not exist",
			Why:  "The host-side interface was deleted, and the container interface with it.",
			Fix:  advice.Remakes},
		{ID: HostInterfaceDetached,
			causes: causes{BridgeMissing: here},
			What:   "the host-side interface is not a port of its bridge",
			Why: "The interface was taken out of the bridge, often by a network manager that was reloaded. The " +
				"container reaches neither the host nor other containers.",
			Fix: repairs},
		{ID: HostInterfaceRenamed,
			What: "the host-side interface has another name",
			Why:  "Rules and limits name links. They do not apply to the new name.",
			Fix:  "ip link set dev NOW down && ip link set dev NOW name THEN up"},
		{ID: HostInterfaceChanged,
			What: "the veth pair differs from what ADD made",
			Why:  "One of its ends was changed or deleted.",
			Fix:  repairs},
		{ID: HostHasAddress,
			What: "the host itself has an address of a container",
			Why: "Packets that the host sends or forwards to the address stay on the host, and never reach the " +
				"container.",
			Fix: "ip addr del ADDRESS/PREFIX dev LINK"},
		{ID: ForwardingOff,
			What: "forwarding is off",
			Why: "The host forwards no packets between containers and other networks. Tools that harden a host, " +
				"and files in /etc/sysctl.d, turn forwarding off.",
			Fix: "sysctl -w KEY=1"},
		{ID: ForeignFilterDrops,
			What: "another program's packet filter drops packets of containers",
			Why: "An accept in Fairlead's table does not override a drop in another table. The plugin firewall, " +
				"last in the list of the network, puts accepts where they take effect. Drops that it cannot " +
				"override need a rule of the administrator.",
			Fix:  "(depends on whose the chain is)",
			Look: "fairlead trace CONTAINER to ADDRESS"},
		{ID: HostInputDrops,
			What: "a packet filter drops the containers' questions to the host's name server",
			Why: "The name server listens on the gateway's address, as podman's and Docker's do. A filter at the " +
				"host's input hook drops the questions, so names do not resolve in the containers.",
			Fix:  "(depends on whose the chain is)",
			Look: "nft list ruleset"},
		{ID: HostRouteMissing,
			What: "the host has no default route",
			Why: "The containers' default route leads to the host, and the host cannot route their packets " +
				"further.",
			Look: "ip route add default via ROUTER dev UPLINK"},
		{ID: HostRoute6Missing, Warning: true,
			What: "the host has no IPv6 default route",
			Why: "The containers have default routes of both families. Their programs try IPv6 first, and wait " +
				"until that has failed.",
			Look: "ip -6 route add default via ROUTER dev UPLINK"},
		{ID: BridgeFilterDrops,
			causes: causes{ForeignFilterDrops: samePlace},
			What:   "another program's packet filter drops packets between containers",
			Why: "The module br_netfilter is loaded and its setting is 1, so the packet filter of IP also sees " +
				"packets that a bridge forwards. A rule for packets that the host routes then also drops packets " +
				"between containers.",
			Fix:  "(depends on whose the chain is)",
			Look: "nft list ruleset"},
		{ID: BridgeFilterOff,
			What: "kube-proxy does not see packets between containers of one bridge",
			Why: "If a pod calls a Service, and a pod on the same bridge answers, the answer is not translated " +
				"back without br_netfilter. The caller drops it.",
			Fix:  "sysctl -w KEY=1",
			Look: "modprobe br_netfilter && sysctl -w KEY=1"},
		{ID: ClockBehind, Warning: true,
			What: "the clock of the host was set back",
			Why: "A valid certificate may seem not to be valid yet, so that TLS fails in containers. The ages that " +
				"are printed are wrong.",
			Look: "timedatectl set-ntp true"},
		{ID: PublishedPortDiverted,
			What: "another program's packet filter takes the packets for a published port",
			Why: "A rule of Docker, podman, a Kubernetes Service or the administrator comes before Fairlead's. It " +
				"sends the packets elsewhere or drops them, so the container gets none.",
			Fix:  "(depends on whose the rule is)",
			Look: "nft list ruleset"},
		{ID: PublishedPortTaken, Warning: true,
			What: "a process of the host listens on a published port",
			Why: "Packets for the port go to the container. The process gets only those that the host itself " +
				"sends.",
			Look: "ss -lntup sport = :PORT"},
		{ID: PublishedAddressMissing, Warning: true,
			What: "the host lacks an address that a port is published on",
			Why: "The address was removed, or moved to another host. Packets for the address do not come to this " +
				"host.",
			Look: "ip addr add ADDRESS/PREFIX dev UPLINK"},
		{ID: HostStateDiffers,
			What: "something that an attachment has on the host is missing or was changed",
			Why:  "It was changed after the container was attached.",
			Fix:  repairs},
		{ID: ConntrackFull,
			What: "the connection tracking table is full",
			Why:  "The kernel drops the first packet of each new connection, of containers and of the host.",
			Look: "sysctl -w net.netfilter.nf_conntrack_max=MORE"},
		{ID: ConntrackNear, Warning: true,
			What: "the connection tracking table is nearly full",
			Why:  "If it is full, the kernel drops the first packet of each new connection.",
			Look: "sysctl -w net.netfilter.nf_conntrack_max=MORE"},
		{ID: NeighbourTableFull,
			What: "the neighbour table is full",
			Why:  "The kernel cannot resolve new addresses to MACs, and drops packets for them.",
			Look: "sysctl -w net/FAMILY/neigh/default/gc_thresh3=MORE"},
		{ID: StateUnwritable,
			What: "the state of attachments cannot be written",
			Why: "The disk is full, or its file system became read-only after an error. Leases and attachments are " +
				"files on it: no container can be attached, and none can be detached completely.",
			Fix:  "mount -o remount,rw MOUNTPOINT",
			Look: "df -h DIRECTORY && df -i DIRECTORY"},
		{ID: CacheMissing, Warning: true,
			What: "an attachment has no entry in the cache of attachments",
			Why: "Files of /var/lib/cni/results were removed, or the runtime has its own cache, as Multus has in " +
				"/var/lib/cni/multus. Fairlead can neither check nor repair an attachment without an entry.",
			Fix: advice.Remakes},
		{ID: HostPathBlocked,
			What: "packets of containers are stopped on the host",
			Why: "Doctor followed a packet through the host's routes, rules, neighbours, links and bridges, " +
				"without sending it. One of these was changed.",
			Fix:  "(depends on what stops them)",
			Look: "fairlead trace CONTAINER to ADDRESS"},
		{ID: CacheUnreadable, Warning: true,
			What: "an entry of the cache of attachments cannot be read",
			Why:  "The attachment is unknown without it, so it is neither checked, nor repaired, nor removed.",
			Look: "`fairlead del NET NETNS` sets the file aside and detaches the container; then attach it again"},
	}
}
