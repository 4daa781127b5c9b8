// Package attached is what the runtime's side remembers of attachments as a person sees it: names and short IDs,
// whether the namespace is gone, published ports, who listens. It reads no configuration, which is for package
// netconf.
package attached

import (
	"errors"
	"net/netip"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Attachment is an attachment as ls prints it.
type Attachment struct {
	Key
	Name      string         `json:"name,omitempty"` // NAMESPACE/POD, or podman's name
	State     string         `json:"state"`          // alive, gone, unknown
	Addresses []netip.Prefix `json:"addresses"`
}

// Unseen is the problem of a cache that cannot be read at all: nothing is known of what is attached.
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

// Describe is an attachment with its name, state and addresses.
func Describe(c attach.Cached) Attachment {
	l := Attachment{Key{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName, Netns: c.Netns}, Name(c),
		Alive, []netip.Prefix{}}
	switch {
	case c.Netns == "":
		l.State = Unknown
	case IsGone(c):
		l.State = Gone
	case c.Hidden():
		l.State = Unknown
	}
	if c.Result != nil {
		for _, ip := range c.Result.IPs {
			if OwnAddress(c, ip) {
				l.Addresses = append(l.Addresses, ip.Address)
			}
		}
	}
	return l
}

// IsGone reports whether the namespace of an attachment is gone: no command of this program is of another opinion.
func IsGone(c attach.Cached) bool {
	return (&attach.Runtime{Vanished: Vanished}).Gone(&c)
}

// Vanished is what the plugins of ours have written down of the namespace.
func Vanished(c *attach.Cached) bool { return sdk.Vanished(c.Owner(), c.Netns) != nil }

// OwnAddress reports whether an address of c's result is one of its interface, and not of a link on the host.
func OwnAddress(c attach.Cached, ip spec.IP) bool {
	if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(c.Result.Interfaces) {
		return true
	}
	return c.Result.Interfaces[*ip.Interface].Name == c.IfName
}

// An Key is an attachment as -o json prints it.
type Key struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
	Netns       string `json:"netns"`
}
