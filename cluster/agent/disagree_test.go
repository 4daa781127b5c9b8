package agent

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
)

// Each thing that two nodes know differently is said, and all that they agree on is not.
func TestDisagreements(t *testing.T) {
	p := agentstatus.Packet{Src: netip.MustParseAddr("10.244.1.2"), Dst: netip.MustParseAddr("10.244.2.2")}
	addrA, addrB := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for text, change := range map[string]func(a, b *side){
		"": func(_, _ *side) {},
		"a has 10.244.2.2 at b, and no container of b has it":           func(_, b *side) { b.Home = false },
		"a has 10.244.2.2 at b, and b has it at c":                      func(_, b *side) { b.Own = "c" },
		"a has 10.244.2.2 at b, and b has it at no node":                func(_, b *side) { b.Own = "" },
		"a has 10.244.1.2 at itself, and b has it at c":                 func(_, b *side) { b.Other = "c" },
		"a sends to the MAC address 02:99, and vx of b has 02:0b":       func(a, _ *side) { a.Way.MAC = "02:99" },
		"b sends to the MAC address 02:99, and vx of a has 02:0a":       func(_, b *side) { b.Way.MAC = "02:99" },
		"a sends to 192.0.2.99, and b has [192.0.2.2]":                  func(a, _ *side) { a.Way.Endpoint = netip.MustParseAddr("192.0.2.99") },
		"b sends to 192.0.2.99, and a has [192.0.2.1]":                  func(_, b *side) { b.Way.Endpoint = netip.MustParseAddr("192.0.2.99") },
		"a sends VXLAN id 7 to port 8472, and b has id 8 and port 8472": func(_, b *side) { b.Tunnels[0].ID = 8 },
		"a sends VXLAN id 7 to port 8472, and b has id 7 and port 4789": func(_, b *side) { b.Tunnels[0].Port = 4789 },
		"a sends to b by VXLAN, and b has no device for that":           func(_, b *side) { b.Tunnels = nil },
		"b sends to 10.244.1.2 by eth0 to 192.0.2.254, and a has [192.0.2.1]": func(_, b *side) {
			b.Way = way{Link: "eth0", Via: netip.MustParseAddr("192.0.2.254"), MTU: 1450}
		},
		"a sends to b by WireGuard, and b has no device for that": func(a, _ *side) {
			a.Way, a.OtherKey = way{Link: "wg", Via: p.Dst, MTU: 1450, Encrypted: true}, "K2"
		},
		"a encrypts for the key K2, and b has K3": func(a, b *side) {
			a.Way, a.OtherKey, b.Key = way{Link: "wg", Via: p.Dst, MTU: 1450, Encrypted: true}, "K2", "K3"
		},
		"b has no route to 10.244.1.2, which is at a":                    func(_, b *side) { b.Way = way{} },
		"packets from a to b may have 1,450 bytes, and those back 1,400": func(_, b *side) { b.Way.MTU = 1400 },
		"the filter of the VXLAN port of b does not let in what a sends from 192.0.2.1 for 10.244.1.2": func(_, b *side) {
			b.Admits = false
		},
	} {
		tunnelA := tunnel{Name: "vx", Local: addrA, ID: 7, Port: 8472, MAC: "02:0a"}
		tunnelB := tunnel{Name: "vx", Local: addrB, ID: 7, Port: 8472, MAC: "02:0b"}
		a := side{Node: "a", Own: "a", Other: "b", Home: true, Admits: true, Tunnels: []tunnel{tunnelA}, Addrs: []netip.Addr{addrA},
			Way: way{Link: "vx", MTU: 1450, Tunnel: &tunnelA, MAC: "02:0b", Endpoint: addrB}}
		b := side{Node: "b", Own: "b", Other: "a", Home: true, Admits: true, Tunnels: []tunnel{tunnelB}, Addrs: []netip.Addr{addrB},
			Way: way{Link: "vx", MTU: 1450, Tunnel: &tunnelB, MAC: "02:0a", Endpoint: addrA}}
		change(&a, &b)
		var said []string
		for _, d := range disagreements(p, a, b) {
			if isSize := strings.Contains(d.Text, "bytes"); d.Stops == isSize {
				t.Errorf("%q: stops: %v", d.Text, d.Stops)
			}
			said = append(said, d.Text)
		}
		if len(said) == 0 {
			said = []string{""}
		}
		if !slices.Contains(said, text) || len(said) > 2 || text == "" && len(said) > 1 {
			t.Errorf("want %q, said %q", text, said)
		}
	}
}

// A side knows the other node's key, whichever of the nodes it is.
func TestSideKey(t *testing.T) {
	a := &Agent{Node: "b", World: newHost(t, 1).w}
	addr := netip.MustParseAddr("10.244.1.2")
	nodes := []agentstatus.Node{{Name: "a", PublicKey: "K1", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}, {Name: "b"}}
	for _, all := range [][]agentstatus.Node{nodes, {nodes[1], nodes[0]}} {
		if is := a.side(agentstatus.Status{Nodes: all}, addr, addr); is.Other != "a" || is.OtherKey != "K1" {
			t.Errorf("with %s first, the other node is %q with the key %q", all[0].Name, is.Other, is.OtherKey)
		}
	}
}
