package cli

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/spec"
)

// What a plugin says leads to who has what was asked for, and to where a value comes from.
func TestAdvice(t *testing.T) {
	attached := []attach.Cached{
		{Network: "lan", ContainerID: containerID("/proc/self/ns/net"), IfName: "eth0", Netns: "/proc/self/ns/net"},
		{Network: "lan", ContainerID: "web", IfName: "net1", Netns: "/proc/self/ns/net"},
		{Network: "lan", ContainerID: "run-1", IfName: "eth0", Netns: "/proc/self/ns/net"},
		{Network: "lan", ContainerID: "old", IfName: "eth0", Netns: "/run/netns/none"},
	}
	for msg, want := range map[string]string{
		`link cont/eth0 moved from host/ens9: device: "ens9": lan/` + attached[0].ContainerID + `/eth0 has it, as eth0, in /x`: "`fairlead del lan /proc/self/ns/net` detaches who has it.",
		`hostInterfaceName: "web0": lan/web/net1 has it; a name is for one link at a time`:                                     "It is free when web is removed by the runtime that made it; where none does that any more, `fairlead del lan /proc/self/ns/net --container-id web -i net1` detaches it.",
		`runtimeConfig.hostInterfaceName: "web0": lan/run-1/eth0 has it; a name is for one link at a time`:                     "No file says that: it comes from CAP_ARGS. run-1 is a `fairlead run`: it is free when that ends.",
		`requested address 10.1.2.5 is in use by old eth0`:                                                                     "The network namespace of lan/old/eth0 is gone: `fairlead gc lan --gone` removes what it left.",
		`requested address 10.1.2.5 is in use by older eth0`:                                                                   "`fairlead ls` knows nothing of that container. If it is gone, `fairlead ipam release NET ADDRESS --force`",
		`device: "ens9": other/c1/eth1 has it, as eth1, in /run/netns/c1; a device is for one container`:                       "`fairlead del other gone --container-id c1 -i eth1` gives back what it holds.",
		`probe 10.1.2.5 on cont/eth0: address 10.1.2.5: 02:00:00:00:00:01 on the link has it`:                                  "Something on that segment uses the address: find it by its MAC",
		`probe 10.1.2.5 on cont/eth0: address 10.1.2.5: br0 itself, on the host, has it`:                                       "Something on that segment",
		`requested address 10.1.2.5 is the gateway of 10.1.2.0/24`:                                                             "It was asked for by IP of CNI_ARGS",
		`CNI_ARGS: GATEWAY: "x": want an address`:                                                                              "No file says that: it comes from CNI_ARGS.",
		`runtimeConfig.mac: "x": want 6 bytes`:                                                                                 "No file says that: it comes from CAP_ARGS.",
		`runtimeConfig.portMappings[0].hostPort: 70000: want 1 to 65535`:                                                       "No file says that: it comes from -p of `fairlead run`, or from CAP_ARGS.",
		`master: "ens3": is down; set it up (ip link set ens3 up)`:                                                             "That is the host's to mend: no file is wrong.",
		`route default via 10.2.0.1 dev cont/eth0: add route: network is unreachable (Nexthop has invalid gateway) (no address of eth0 has 10.2.0.1 in its subnet; a scope of 253 says that it is on the link all the same)`: "Give the route a router in a subnet of the container's",
		`link cont/eth0 type macvlan: in the container: add link eth0 type macvlan: an interface of that name exists already`:                                                                                                "Choose another name with -i NAME",
		`ask the DHCP daemon: dial unix /run/cni/dhcp.sock: connect: no such file or directory; start the daemon that keeps leases: systemctl start cni-dhcp.socket, or`:                                                     "It does not start by itself: ",
		`tuned cont/eth0 mtu 9000: mtu: 9000: the kernel does not take this for eth0: set link eth0: invalid argument`:                                                                                                       "has at most the MTU of that one",
		`give the network a subnet of its own. To be on the network of ens3 itself, a container takes macvlan`:                                                                                                               "",
		`device: is missing: want one of device, hwaddr, kernelpath, pciBusID, or runtimeConfig.deviceID from the runtime`:                                                                                                   "",
		`ipam.ranges[0][0]: no address is left in 10.1.2.1-10.1.2.2: 2 of 2 are in use`:                                                                                                                                      "",
		`hostInterfaceName: "web0": a bridge of the host's; a name is for one link at a time`:                                                                                                                                "",
		`hostInterfaceName: "web0": an attachment that is being made has it; a name is for one link at a time`:                                                                                                               "",
	} {
		got := advice(&spec.Error{Code: spec.CodeConfig, Msg: msg}, attached)
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", msg, got, want)
		}
	}
}
