package doctor

import (
	"maps"

	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
)

// The kinds of findings about containers.
const (
	ContainerInterfaceMissing ID = "container-interface-missing"
	ContainerInterfaceDown    ID = "container-interface-down"
	ContainerInterfaceChanged ID = "container-interface-changed"
	ContainerAddressMissing   ID = "container-address-missing"
	ContainerRouteMissing     ID = "container-route-missing"
	AddressDuplicate          ID = "address-duplicate"
	MTUTooLarge               ID = "mtu-too-large"
	PathMTU                   ID = "path-mtu"
	ContainerStateDiffers     ID = "container-state-differs"
	PortWithoutListener       ID = "port-without-listener"
	ReversePathFilter         ID = "reverse-path-filter"
	PortLoopbackOnly          ID = "port-loopback-only"
	ContainerPathBlocked      ID = "container-path-blocked"
	GatewayUnreachable        ID = "gateway-unreachable"
	DNSUnreachable            ID = "dns-unreachable"
	AddressUnreachable        ID = "address-unreachable"
	AttachmentBroken          ID = "attachment-broken"
	DELUnfinished             ID = "del-unfinished"
	ReferenceRulesMissing     ID = "reference-rules-missing"
	ContainerGone             ID = "container-gone"
)

func containerKinds() []Kind {
	const smallerMTU = "nsenter --net=NETNS ip route replace default via GATEWAY dev INTERFACE mtu MTU"
	unreached := causes{BridgeMissing: here, BridgeDown: here, BridgeAddressMissing: here, BridgeRouteMissing: here,
		HostInterfaceDown:    here,
		HostInterfaceMissing: here, HostInterfaceDetached: here, ForeignFilterDrops: here, HostPathBlocked: here,
		ContainerPathBlocked: here, SubnetOverlap: here, AddressDuplicate: here, ContainerInterfaceMissing: here,
		ContainerInterfaceDown: merged, ContainerAddressMissing: here}
	unanswered := causes{GatewayUnreachable: here, ContainerRouteMissing: here}
	maps.Copy(unanswered, unreached)
	return []Kind{
		{ID: ContainerInterfaceMissing,
			What: "the container lacks the interface that it was given",
			Why:  "The interface was deleted or renamed in the container.",
			Fix:  advice.Remakes},
		{ID: ContainerInterfaceDown,
			What: "the container interface is down",
			Why: "It was set down in the container. The kernel deletes the routes of an interface that is set " +
				"down, and does not restore them.",
			Fix: advice.Remakes},
		{ID: ContainerInterfaceChanged,
			causes: causes{ContainerInterfaceMissing: here},
			What:   "the container interface differs from what ADD made",
			Why:    "It was changed in the container.",
			Fix:    advice.Remakes},
		{ID: ContainerAddressMissing,
			causes: causes{AddressDuplicate: here, DHCPLeaseLost: here, ContainerInterfaceMissing: here,
				ContainerInterfaceDown: merged},
			What: "the container lacks an address that it was given",
			Why:  "The address was flushed or deleted in the container. Its routes were removed with it.",
			Fix:  advice.Remakes},
		{ID: ContainerRouteMissing,
			causes: causes{AddressDuplicate: here, DHCPLeaseLost: here, ContainerInterfaceMissing: here,
				ContainerAddressMissing: here, ContainerInterfaceDown: merged},
			What: "the container lacks a route that it was given",
			Why: "The route was deleted or replaced in the container. Without a default route the container " +
				"reaches only its own subnet.",
			Fix: advice.Remakes},
		{ID: AddressDuplicate,
			What: "another interface on the segment has an address of the container",
			Why: "For IPv6, duplicate address detection found it, and the kernel does not use the address. For " +
				"IPv4, a probe found it, and packets for the address go to either of the two. A container that is " +
				"attached again gets another address; `fairlead ipam reserve` keeps the first one out of use.",
			Fix: advice.Remakes},
		{ID: MTUTooLarge, Warning: true,
			What: "the container's MTU is larger than that of the way out",
			Why: "Large packets are lost if a firewall on the way drops the ICMP messages that report it: small " +
				"requests work, and transfers hang. The fix is for this container; for new ones set \"mtu\": " +
				"\"auto\" in the network's list.",
			Fix:  smallerMTU,
			Look: "set \"mtu\" in the network's list"},
		{ID: PathMTU,
			What: "large packets are lost on the way out, without an error",
			Why: "Small packets are answered. No ICMP message reports that the large ones are too large, so " +
				"senders do not reduce their size: small requests work, and transfers hang. The fix is for this " +
				"container; for new ones set a smaller \"mtu\" in the network's list.",
			Fix:  smallerMTU,
			Look: "set \"mtu\" in the network's list"},
		{ID: ContainerStateDiffers,
			causes: causes{AddressDuplicate: here},
			What:   "something in the container differs from what ADD made",
			Why:    "It was changed in the container, where Fairlead repairs nothing.",
			Fix:    advice.Remakes},
		{ID: PortWithoutListener,
			What: "no process in the container listens on a published port",
			Why: "The kernel refuses connections to the port. The server has not started yet, has ended, or uses " +
				"another port.",
			Look: "nsenter --net=NETNS ss -lntu"},
		{ID: ReversePathFilter,
			What: "the container drops packets for its published port",
			Why: "Its default route leads through another interface, and rp_filter is strict: the kernel accepts a " +
				"packet only on the interface through which it would send the answer.",
			Fix: "nsenter --net=NETNS sysctl -w net/ipv4/conf/all/rp_filter=2"},
		{ID: PortLoopbackOnly,
			What: "the server of a published port listens on another address only",
			Why: "Packets from outside are sent to the container's own address, on which the server does not " +
				"listen. Have the server listen on 0.0.0.0 or [::].",
			Look: "nsenter --net=NETNS ss -lntu"},
		{ID: ContainerPathBlocked,
			causes: causes{AddressDuplicate: here, ContainerInterfaceDown: merged},
			What:   "packets are stopped in the container",
			Why: "The container's own packet filter, a route, a rule or a neighbour entry stops them. A program " +
				"that may change these in the container, such as the proxy of a service mesh, set it.",
			Fix:  "(depends on what stops them)",
			Look: "fairlead trace CONTAINER to ADDRESS"},
		{ID: GatewayUnreachable,
			causes: unreached,
			What:   "the container does not reach its gateway",
			Why: "The probe got no answer. If the host has no finding, a filter at its input hook may drop packets " +
				"from containers to the host.",
			Look: "nft list ruleset"},
		{ID: DNSUnreachable,
			causes: unanswered,
			What:   "the container gets no answer from a name server",
			Why:    "Names do not resolve in the container. Many programs report that as \"no network\".",
			Look:   "ip netns exec NAME resolvectl query example.org"},
		{ID: AddressUnreachable,
			causes: unanswered,
			What:   "the container does not reach the address that --to gives",
			Why: "The probe got no answer from the address. The lines of the container say what becomes of a " +
				"packet to it, and of one back if this host can follow it.",
			Look: "traceroute ADDRESS"},
		{ID: AttachmentBroken,
			What: "an attachment has a fault that repair cannot correct",
			Why:  "The finding says what it is.",
			Look: "fairlead repair --dry-run"},
		{ID: DELUnfinished,
			What: "a DEL was not completed",
			Why:  "One of its plugins failed. The interface is removed, and the state of that plugin remains.",
			Fix:  "fairlead del NET NETNS"},
		{ID: ReferenceRulesMissing,
			What: "rules that the reference plugins made are missing",
			Why: "The packet filter was flushed. `fairlead repair` does not change attachments that other " +
				"programs made.",
			Fix: "fairlead repair --adopt"},
		{ID: ContainerGone, Warning: true,
			What: "containers that are gone still have attachments",
			Why:  "Their DEL was never called. The attachments keep addresses, ports and rules.",
			Fix:  "fairlead gc --gone"},
	}
}
