// Package attached reads the cache of attachments for people: names and short IDs, whether a namespace is gone,
// published ports, processes that listen. It reads no configuration; package netconf does.
package attached

import (
	"errors"
	"net/netip"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/sdk"
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

// OwnAddresses returns the addresses of the container's interface by the result of ADD.
func OwnAddresses(c attach.Cached) []netip.Prefix {
	all := []netip.Prefix{}
	if c.Result == nil {
		return all
	}
	for _, ip := range c.Result.IPs {
		if OwnAddress(c, ip) {
			all = append(all, ip.Address)
		}
	}
	return all
}

// IsGone reports whether the network namespace of an attachment is gone. All commands use it.
func IsGone(c attach.Cached) bool {
	return (&attach.Runtime{Vanished: Vanished}).Gone(&c)
}

// Vanished reports whether the namespace is gone by the record that Fairlead's plugins made of it.
func Vanished(c *attach.Cached) bool { return sdk.Vanished(nil)(c.Owner(), c.Netns) != nil }

// OwnAddress reports whether an address of c's result belongs to the container's interface, and not to a host-side
// one.
func OwnAddress(c attach.Cached, ip spec.IP) bool {
	if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(c.Result.Interfaces) {
		return true
	}
	return c.Result.Interfaces[*ip.Interface].Name == c.IfName
}

// Key names an attachment in the documents of -o json.
type Key struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
	Netns       string `json:"netns"`
}

// KeyOf returns the names of an attachment.
func KeyOf(c attach.Cached) Key {
	return Key{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName, Netns: c.Netns}
}
