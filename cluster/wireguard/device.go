package wireguard

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Device is what a node's WireGuard device has beyond other links. No two peers have one key or one prefix.
type Device struct {
	Name  string
	Key   wgtypes.Key // private
	Port  uint16      // UDP
	Peers []Peer
}

// A Peer is another node. Packets to its prefixes are encrypted for it, and of what it sends, those from its prefixes are
// let in.
type Peer struct {
	Node      string // name, for people
	Key       wgtypes.Key
	Endpoints []netip.AddrPort // the preferred one first
	Prefixes  []netip.Prefix
}

func (d Device) String() string {
	return resource.Line("wireguard host/"+d.Name, "public-key "+d.Key.PublicKey().String(),
		fmt.Sprint("listen-port ", d.Port), fmt.Sprint("peers ", len(d.Peers)))
}

// Sync makes the device as described, and returns what differed. What is as it should be is not touched: connections to a
// peer last over changes of others.
func (d Device) Sync(host *kernel.NS) (found spec.Differences, err error) {
	var client *wgctrl.Client
	err = host.Do(func() (err error) {
		client, err = wgctrl.New() // its socket is of the namespace that opens it
		return err
	})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	have, err := client.Device(d.Name)
	if err != nil {
		return nil, fmt.Errorf("read the WireGuard device %s: %w", d.Name, err)
	}
	found, change := d.compare(have)
	if len(found) == 0 {
		return nil, nil
	}
	if err := client.ConfigureDevice(d.Name, change); err != nil {
		return found, fmt.Errorf("configure the WireGuard device %s with UDP port %d: %w", d.Name, d.Port, err)
	}
	return found, nil
}

// compare returns how a device differs, and what makes it as described.
func (d Device) compare(have *wgtypes.Device) (found spec.Differences, change wgtypes.Config) {
	note := func(node string, is spec.Difference) {
		is.Resource, is.Kind, is.Object = d.String(), "WireGuard", node
		is.Where, is.Link = spec.OnHost, d.Name
		found = append(found, is)
	}
	if own := d.Key.PublicKey(); have.PublicKey != own {
		change.PrivateKey = &d.Key
		note("", spec.Differs("public-key", own.String(), have.PublicKey.String()))
	}
	if port := int(d.Port); have.ListenPort != port {
		change.ListenPort = &port
		note("", spec.Differs("listen-port", fmt.Sprint(port), fmt.Sprint(have.ListenPort)))
	}
	if have.FirewallMark != 0 {
		change.FirewallMark = new(int)
		note("", spec.Differs("fwmark", "0", fmt.Sprint(have.FirewallMark)))
	}

	there := map[wgtypes.Key]wgtypes.Peer{}
	wanted := map[wgtypes.Key]bool{}
	for _, p := range have.Peers {
		there[p.PublicKey] = p
	}
	for _, p := range d.Peers {
		wanted[p.Key] = true
	}
	for _, p := range have.Peers { // first, because the next one may be the same node with another key
		if !wanted[p.PublicKey] {
			change.Peers = append(change.Peers, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true})
			note("", spec.TooMuch("peer "+p.PublicKey.String()))
		}
	}
	for _, p := range d.Peers {
		is, known := there[p.Key]
		differs := p.compare(is, known)
		if len(differs) == 0 {
			continue
		}
		change.Peers = append(change.Peers, p.config(is))
		for _, one := range differs {
			note(p.Node, one)
		}
	}
	return found, change
}

// compare returns how a peer differs.
func (p Peer) compare(have wgtypes.Peer, known bool) (found []spec.Difference) {
	if !known {
		return []spec.Difference{spec.Missing("peer " + p.Key.String())}
	}
	differs := func(field, want, got string) {
		if want != got {
			found = append(found, spec.Differs(field+" of peer "+p.Key.String(), want, got))
		}
	}
	if !p.isAt(have.Endpoint) {
		differs("endpoint", p.Endpoints[0].String(), fmt.Sprint(have.Endpoint))
	}
	differs("allowed-ips", textOf(p.Prefixes), textOf(prefixesOf(have.AllowedIPs)))
	differs("persistent-keepalive", "0s", have.PersistentKeepaliveInterval.String())
	if have.PresharedKey != (wgtypes.Key{}) {
		differs("preshared-key", "none", "one")
	}
	return found
}

// isAt reports whether an address is one of the peer's. The kernel takes the one that the last packet came from.
func (p Peer) isAt(have *net.UDPAddr) bool {
	return have != nil && slices.Contains(p.Endpoints, have.AddrPort())
}

// config is the whole of a peer, but for an address that is right.
func (p Peer) config(have wgtypes.Peer) wgtypes.PeerConfig {
	c := wgtypes.PeerConfig{PublicKey: p.Key, PresharedKey: new(wgtypes.Key),
		PersistentKeepaliveInterval: new(time.Duration), ReplaceAllowedIPs: true}
	if !p.isAt(have.Endpoint) {
		c.Endpoint = net.UDPAddrFromAddrPort(p.Endpoints[0])
	}
	for _, prefix := range p.Prefixes {
		addr := prefix.Addr()
		c.AllowedIPs = append(c.AllowedIPs, net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(prefix.Bits(), addr.BitLen())})
	}
	return c
}

// prefixesOf returns networks as prefixes.
func prefixesOf(nets []net.IPNet) (list []netip.Prefix) {
	for _, n := range nets {
		addr, _ := netip.AddrFromSlice(n.IP)
		bits, _ := n.Mask.Size()
		list = append(list, netip.PrefixFrom(addr.Unmap(), bits))
	}
	return list
}

// textOf returns prefixes in one order.
func textOf(list []netip.Prefix) string {
	sorted := slices.SortedFunc(slices.Values(list), func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits())
	})
	return strings.Trim(fmt.Sprint(sorted), "[]")
}
