package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// A benchCase is a chain of plugins as a network configuration has it.
type benchCase struct {
	Name      string
	Plugins   []map[string]any
	Subnet    string // of the addresses, 16 bits long
	Ports     bool   // publish one tcp and one udp port for each container
	Grows     bool   // measured beside many others, too
	Burst     bool   // also many at once
	Exclusive bool   // no two interfaces of it fit into one namespace: the reference has one route to the gateway
	Single    bool   // one container at a time has it, so none is there beside the measured one
	ByLease   bool   // what grows is the number of leases, not of attachments
	Host      string // what the host has before, for sh(1)
	Names     bool   // our name server runs, where the plugin alias is
	Extra     bool   // the reference goes without the plugins that it does not have
	Chained   bool   // also as one plugin chain of ours
	Newer     bool   // the reference of Debian 12 does not know what it has
	Virtual   bool   // measured in the virtual machine: few kernels have it
}

// uplink is a network card of a kind, and a neighbor at its other end.
const uplink = "ip link add ens3 type veth peer name wire; ip link set ens3 up; ip link set wire up"

// spare is a card that is down, as the reference leaves it, and whose cable leads to a neighbor.
const spare = "ip link add ens4 type veth peer name wire; ip link set wire up"

// cniVersion is the newest that the reference in Debian 12 speaks.
const cniVersion = "1.0.0"

// wholeChain is what the tools that write configurations for people write: every plugin that matters.
const wholeChain = "bridge + host-local + ipMasq + portmap + firewall + tuning"

func cases() []benchCase {
	hostLocal := func(subnet string) map[string]any {
		return map[string]any{
			"type":   "host-local",
			"ranges": [][]map[string]string{{{"subnet": subnet + ".0.0/16"}}},
			"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
		}
	}
	return []benchCase{
		{Name: "host-local", Subnet: "10.20", ByLease: true, Plugins: []map[string]any{
			{"type": "host-local", "ipam": hostLocal("10.20")},
		}},
		{Name: "bridge + host-local", Subnet: "10.21", Grows: true, Plugins: []map[string]any{
			{"type": "bridge", "bridge": "bench0", "isGateway": true, "ipam": hostLocal("10.21")},
		}},
		{Name: "bridge + host-local + ipMasq + portmap", Subnet: "10.22", Ports: true, Plugins: []map[string]any{
			{"type": "bridge", "bridge": "bench0", "isGateway": true, "ipMasq": true, "ipam": hostLocal("10.22")},
			{"type": "portmap"},
		}},
		{Name: "bridge + host-local + ipMasq + portmap, backend nftables", Subnet: "10.33", Ports: true, Newer: true,
			Plugins: []map[string]any{
				{"type": "bridge", "bridge": "bench0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables",
					"ipam": hostLocal("10.33")},
				{"type": "portmap", "backend": "nftables"},
			}},
		{Name: "bridge + host-local + sbr", Subnet: "10.28", Plugins: []map[string]any{
			{"type": "bridge", "bridge": "bench0", "isGateway": true, "ipam": hostLocal("10.28")},
			{"type": "sbr"},
		}},
		{Name: "bridge + host-local + bandwidth", Subnet: "10.29", Plugins: []map[string]any{
			{"type": "bridge", "bridge": "bench0", "isGateway": true, "ipam": hostLocal("10.29")},
			{"type": "bandwidth", "ingressRate": 100_000_000, "ingressBurst": 5_000_000, "egressRate": 100_000_000,
				"egressBurst": 5_000_000},
		}},
		{Name: "bridge + host-local + tuning", Subnet: "10.30", Plugins: []map[string]any{
			{"type": "bridge", "bridge": "bench0", "isGateway": true, "ipam": hostLocal("10.30")},
			{"type": "tuning", "mtu": 1400, "promisc": true, "sysctl": map[string]string{"net.core.somaxconn": "500"}},
		}},
		{Name: "bridge + host-local + route + debug (the reference without these two)", Subnet: "10.38", Extra: true,
			Plugins: []map[string]any{
				{"type": "bridge", "bridge": "bench0", "isGateway": true, "ipam": hostLocal("10.38")},
				{"type": "route", "routes": []map[string]any{
					{"dst": "192.0.2.0/24", "nexthops": []map[string]any{{"via": "10.38.255.1"},
						{"via": "10.38.255.2"}}},
					{"action": "replace", "dst": "default", "via": "10.38.0.1"},
				}, "rules": []map[string]any{{"priority": 1000, "to": "192.0.2.0/24", "table": 254}}},
				{"type": "debug", "cniOutput": "/run/bench-calls"},
			}},
		{Name: "bridge + host-local + alias (the reference without it)", Subnet: "10.39", Grows: true, Extra: true,
			Names: true, Plugins: []map[string]any{
				{"type": "bridge", "bridge": "bench0", "isGateway": true, "ipam": hostLocal("10.39")},
				{"type": "alias", "runtimeConfig": map[string]any{"aliases": []string{"www"}}},
			}},
		{Name: "ptp + host-local + ipMasq", Subnet: "10.32", Exclusive: true, Plugins: []map[string]any{
			{"type": "ptp", "ipMasq": true, "ipam": hostLocal("10.32")},
		}},
		{Name: "macvlan + host-local", Subnet: "10.34", Host: uplink, Plugins: []map[string]any{
			{"type": "macvlan", "master": "ens3", "mtu": 1400, "ipam": hostLocal("10.34")},
		}},
		{Name: "host-device + host-local", Subnet: "10.35", Single: true, Host: spare, Plugins: []map[string]any{
			{"type": "host-device", "device": "ens4", "ipam": hostLocal("10.35")},
		}},
		{Name: "ipvlan + host-local", Subnet: "10.36", Host: uplink, Virtual: true, Plugins: []map[string]any{
			{"type": "ipvlan", "master": "ens3", "mtu": 1400, "ipam": hostLocal("10.36")},
		}},
		{Name: "vlan + host-local", Subnet: "10.37", Single: true, Host: uplink, Virtual: true,
			Plugins: []map[string]any{
				{"type": "vlan", "master": "ens3", "vlanId": 100, "mtu": 1400, "ipam": hostLocal("10.37")},
			}},
		{Name: wholeChain, Subnet: "10.23", Grows: true, Ports: true, Chained: true, Burst: true,
			Plugins: []map[string]any{
				{"type": "bridge", "bridge": "bench0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
					"ipam": hostLocal("10.23")},
				{"type": "portmap"},
				{"type": "firewall"},
				{"type": "tuning", "sysctl": map[string]string{"net.core.somaxconn": "500"}},
			}},
	}
}

// inChain is c with its plugins in one chain, as `fairlead net chain` writes it.
func (c benchCase) inChain() benchCase {
	declared := map[string]bool{"portMappings": c.Ports}
	var inner []map[string]any
	for _, p := range c.Plugins {
		p = maps.Clone(p)
		if p["type"] == "portmap" {
			p["capabilities"] = declared
		}
		inner = append(inner, p)
	}
	c.Plugins = []map[string]any{{"type": "chain", "capabilities": declared, "plugins": inner}}
	return c
}

// parts are what the floor does for c: nil where it has no work of the kind.
func (c benchCase) parts() (all []string) {
	known := []string{"bridge", "host-local", "portmap", "firewall", "tuning"}
	for _, p := range c.Plugins {
		if !slices.Contains(known, p["type"].(string)) {
			return nil
		}
		all = append(all, p["type"].(string))
		if p["ipam"] != nil && p["type"] != "host-local" {
			all = append(all, "host-local")
		}
		if p["ipMasq"] == true {
			all = append(all, "ipMasq")
		}
	}
	return all
}

// A load is what is there already when a container is measured.
type load struct {
	Count int
	Of    string // "attachments" or "leases"
}

func (l load) String() string { return fmt.Sprintf("%d %s", l.Count, l.Of) }

func (c benchCase) loads(o options) (loads []load) {
	counts, of := o.attachments, "attachments"
	if c.ByLease {
		counts, of = o.leases, "leases"
	}
	if !c.Grows && !c.ByLease {
		counts = counts[:min(1, len(counts))]
	}
	for _, n := range counts {
		loads = append(loads, load{n, of})
	}
	return loads
}

// conf is what the i-th plugin of the chain gets on stdin for the container of that number, as a runtime
// makes it.
func (c benchCase) conf(i, container int, prev json.RawMessage) ([]byte, error) {
	m := map[string]any{"cniVersion": cniVersion, "name": "bench"}
	for k, v := range c.Plugins[i] {
		m[k] = v
	}
	if prev != nil {
		m["prevResult"] = prev
	}
	if c.Ports && (m["type"] == "portmap" || m["type"] == "chain") {
		port := 20000 + 2*container
		m["runtimeConfig"] = map[string]any{"portMappings": []map[string]any{
			{"hostPort": port, "containerPort": 80, "protocol": "tcp"},
			{"hostPort": port + 1, "containerPort": 53, "protocol": "udp"},
		}}
	}
	return json.Marshal(m)
}
