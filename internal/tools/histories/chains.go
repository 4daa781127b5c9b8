package main

// A chain is the plugins of a list, and what they need of the host.
type chain struct {
	plugins []any
	setup   []string // commands of a shell
	dhcp    bool     // a server serves the link wire, and the daemon asks it
	granted bool     // agents change the grant
	kin     string   // the chain whose calls have the same steps; "": none
}

// plugins are those that the chains call, and the address managers that those call.
func plugins() []string {
	return []string{"bridge", "chain", "cluster", "dhcp", "firewall", "host-local", "macvlan", "portmap", "ptp", "tuning"}
}

type object = map[string]any

func chains() map[string]chain {
	hostLocal := object{"type": "host-local", "ranges": [][]object{ // of as many addresses as there is room for
		{{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.11", "rangeEnd": "10.77.0.12"}},
		{{"subnet": "fd00:77::/64", "rangeStart": "fd00:77::11", "rangeEnd": "fd00:77::12"}}},
		"routes": []object{{"dst": "0.0.0.0/0"}}}
	bridge := object{"type": "bridge", "isGateway": true, "ipMasq": true, "ipam": hostLocal}
	portmap := object{"type": "portmap", "capabilities": object{"portMappings": true}}
	firewall := object{"type": "firewall", "ingressPolicy": "isolated"}
	tuning := object{"type": "tuning", "sysctl": object{"net.core.somaxconn": "501"}}
	ports := object{"portMappings": true}
	wire := []string{"ip link add ens3 up address 02:00:00:00:00:03 type veth peer name wire address 02:00:00:00:00:04",
		"ip addr add 10.77.0.1/24 dev wire", "ip link set wire up"}
	return map[string]chain{
		"bridge": {plugins: []any{bridge, portmap, firewall, tuning}},
		"chain": {plugins: []any{object{"type": "chain", "capabilities": ports,
			"plugins": []any{bridge, portmap, firewall, tuning}}}, kin: "bridge"},
		"empty": {plugins: []any{object{"type": "bridge", "bridge": "br-empty", "removeWhenEmpty": true, "isGateway": true,
			"ipMasq": true, "ipam": hostLocal}, object{"type": "firewall", "backend": "nftables", "ingressPolicy": "strict"}}},
		"cluster": {plugins: []any{object{"type": "ptp", "ipMasq": true, "ipam": object{"type": "cluster"}}, portmap},
			setup: []string{"mkdir -p /run/fairlead/cluster; printf '" + grantOf() +
				"' $(cat /proc/sys/kernel/random/boot_id) >/run/fairlead/cluster/n.json"}, granted: true},
		"dhcp":    {plugins: []any{object{"type": "macvlan", "master": "ens3", "ipam": object{"type": "dhcp"}}}, setup: wire, dhcp: true},
		"macvlan": {plugins: []any{object{"type": "macvlan", "master": "ens3", "ipam": hostLocal}, tuning}, setup: wire},
	}
}
