// Package attached reads the cache of attachments for people: names and short IDs, whether a namespace is gone,
// published ports, processes that listen. It reads no configuration; package netconf does.
package attached

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/spec"
)

// List returns the attachments of a network in the cache, or of all networks if it is empty, and problems with other
// files of the cache. It serves commands that show only names of attachments; package snapshot serves all others.
func List(network string) ([]attach.Cached, []error) { return (&attach.Runtime{}).List(network) }

// Unseen returns the error of a cache that cannot be read at all, so that nothing is known of attachments; else nil.
func Unseen(problems []error) error {
	for _, p := range problems {
		if errors.Is(p, attach.ErrUnseen) {
			return p
		}
	}
	return nil
}

const (
	Alive   = "alive"
	Gone    = "gone"
	Unknown = "unknown"
)

// OwnIPs returns the IPs of the result of ADD that belong to the container's interface, and not to a host-side one.
func OwnIPs(c attach.Cached) (own []spec.IP) {
	if c.Result == nil {
		return nil
	}
	for _, ip := range c.Result.IPs {
		unnamed := ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(c.Result.Interfaces)
		if unnamed || c.Result.Interfaces[*ip.Interface].Name == c.IfName {
			own = append(own, ip)
		}
	}
	return own
}

// OwnAddresses returns the addresses of the container's interface by the result of ADD.
func OwnAddresses(c attach.Cached) []netip.Prefix {
	all := []netip.Prefix{}
	for _, ip := range OwnIPs(c) {
		all = append(all, ip.Address)
	}
	return all
}

// GatewayOf returns the router of a route in the result of ADD: the route's own, else the one of an address of its
// family.
func GatewayOf(c attach.Cached, r spec.Route) netip.Addr {
	gw := r.GW
	for _, ip := range OwnIPs(c) {
		if !gw.IsValid() && ip.Address.Addr().Is4() == r.Dst.Addr().Is4() {
			gw = ip.Gateway
		}
	}
	return gw
}

// HasAddress reports whether the container's interface has an address by the result of ADD.
func HasAddress(c attach.Cached, a netip.Addr) bool {
	return slices.ContainsFunc(OwnIPs(c), func(ip spec.IP) bool { return ip.Address.Addr() == a })
}

// IsGone reports whether the network namespace of an attachment is gone. All commands use it.
func IsGone(c attach.Cached) bool {
	return (&attach.Runtime{Vanished: Vanished}).Gone(&c)
}

// Vanished reports whether the namespace is gone by the record that Fairlead's plugins made of it.
func Vanished(c *attach.Cached) bool { return restore.Vanished(nil)(c.Owner(), c.Netns) != nil }

// ByOwner returns the attachment of an owner, or nil.
func ByOwner(list []attach.Cached, o spec.Owner) *attach.Cached {
	i := slices.IndexFunc(list, func(c attach.Cached) bool { return c.Owner() == o })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// Key names an attachment in the documents of -o json.
type Key struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
	Netns       string `json:"netns"`
}

// KeyOf returns the names of an attachment.
func KeyOf(o spec.Owner, netns string) Key { return Key{o.Network, o.ContainerID, o.IfName, netns} }
