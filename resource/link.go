package resource

import (
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// ReferenceHash returns the first digits of the hash by which the reference plugins name objects of a container on a
// network. The hash is of the network's name followed by the container's ID.
func ReferenceHash(o spec.Owner, digits int) string {
	return HashDigits(o.Network+o.ContainerID, digits)
}

// HashDigits returns the first hexadecimal digits of the hash that the reference plugins use.
func HashDigits(text string, digits int) string {
	h := sha512.Sum512([]byte(text))
	return hex.EncodeToString(h[:])[:digits]
}

// ValidMAC returns nil for an address that a container interface can have: 6 bytes, unicast and not zero. Key names
// the configuration key in the error.
func ValidMAC(key, s string) error {
	mac, err := net.ParseMAC(s)
	switch {
	case err != nil || len(mac) != 6:
		return spec.Errorf(spec.CodeConfig, "%s: %q: want 6 bytes, such as 02:00:5e:10:00:01", key, s)
	case mac[0]&1 != 0:
		return spec.Errorf(spec.CodeConfig, "%s: %q: is a group address; the first byte has to be even", key, s)
	case mac.String() == "00:00:00:00:00:00":
		return spec.Errorf(spec.CodeConfig, "%s: %q: is no address; want such as 02:00:5e:10:00:01", key, s)
	}
	return nil
}

// Link returns the link of that name and its namespace.
func (w Where) Link(k *kernel.World, name string) (*kernel.NS, *rtnl.Link, error) {
	ns, err := w.Namespace(k)
	if err != nil {
		return nil, nil, err
	}
	l, err := rtnl.LinkByName(ns, name)
	return ns, l, err
}

// Index returns the index of the link of that name and its namespace.
func (w Where) Index(k *kernel.World, name string) (*kernel.NS, int, error) {
	ns, err := w.Namespace(k)
	if err != nil {
		return nil, 0, err
	}
	i, err := rtnl.IndexOf(ns, name)
	return ns, i, err
}

// Bridge returns the bridge of that name on the host. It is an error if the link is not a bridge.
func Bridge(w *kernel.World, name string) (*rtnl.Link, error) {
	l, err := rtnl.LinkByName(w.Host, name)
	if err == nil && l.Kind != "bridge" {
		err = fmt.Errorf("link %s is %s, not a bridge", name, KindOf(l))
	}
	return l, err
}

// KindOf returns the kind of a link with its article, such as "a bridge".
func KindOf(l *rtnl.Link) string {
	switch {
	case l.Name == "lo":
		return "lo"
	case l.Kind == "":
		return "a network card"
	case strings.Contains("aeiou", l.Kind[:1]):
		return "an " + l.Kind
	}
	return "a " + l.Kind
}

// MAC parses s. If s is empty, it derives an address from the owner, because udev replaces an address that the kernel
// has chosen at random.
func MAC(s, end string, o spec.Owner) (net.HardwareAddr, error) {
	if s == "" {
		return identity.MAC(end, o), nil
	}
	return net.ParseMAC(s)
}

// MACText returns an address in the kernel's notation.
func MACText(s string) string {
	if m, err := net.ParseMAC(s); err == nil {
		return m.String()
	}
	return s
}

// Owned reports whether a link carries the mark of owner o. A link has its group from its creation. The alias is set
// later, but survives a change of the group.
func Owned(l *rtnl.Link, o spec.Owner) bool {
	if _, h, _, ok := identity.ParseTag(l.Alias); ok {
		return h == identity.OwnerHash(o)
	}
	return l.Group == identity.LinkGroup(o.Network)
}

// Tagged reports whether the link of that name on the host was made for owner o.
func Tagged(w *kernel.World, name string, o spec.Owner) bool {
	l, err := rtnl.LinkByName(w.Host, name)
	if err != nil {
		return false
	}
	_, h, _, ok := identity.ParseTag(l.Alias)
	return ok && h == identity.OwnerHash(o)
}

// IgnoreRA makes the namespace ignore router advertisements that arrive on a link. Otherwise a container could give
// the host an address or a route (CVE-2020-10749).
func IgnoreRA(ns *kernel.NS, link string) (changed bool, err error) {
	changed, err = procsys.Set(ns, procsys.Setting{Key: "net/ipv6/conf/" + link + "/accept_ra", Value: "0",
		Optional: true})
	if err != nil && IgnoresRA(ns, link) == nil {
		return false, nil // this must not be written here, and need not be
	}
	return changed, err
}

// IgnoresRA returns nil if the namespace ignores router advertisements that arrive on a link.
func IgnoresRA(ns *kernel.NS, link string) error {
	get := func(key string) string {
		v, _ := procsys.Get(ns, "net/ipv6/conf/"+link+"/"+key)
		return v
	}
	ra := get("accept_ra")
	switch {
	case ra == "" || ra == "0": // empty: no IPv6 at all
		return nil
	case ra == "1" && get("forwarding") != "0", get("disable_ipv6") == "1":
		return nil
	}
	if l, err := rtnl.LinkByName(ns, link); err == nil && l.Master != 0 {
		return nil // its bridge takes what comes in before IPv6 sees it
	}
	return spec.Differs("accept_ra", "0", ra)
}

// ExceptNoLink returns err, or nil if err only says that the link does not exist.
func ExceptNoLink(err error) error {
	if errors.Is(err, rtnl.ErrNoLink) {
		return nil
	}
	return err
}

// AltName returns the readable part of o's tag in a form that ip(8) accepts as a name.
func AltName(o spec.Owner) string {
	_, _, text, _ := identity.ParseTag(identity.Tag(o))
	return strings.ReplaceAll(text, "/", ":")
}

// VRFOf returns the VRF of the link with that index, or nil if the link is in none.
func VRFOf(ns *kernel.NS, index int) (*rtnl.Link, error) {
	l, err := rtnl.LinkByIndex(ns, index)
	if err != nil || l.Master == 0 {
		return nil, err
	}
	m, err := rtnl.LinkByIndex(ns, l.Master)
	if err != nil || m.Kind != "vrf" {
		return nil, err
	}
	return m, nil
}

// OwnVRF reports whether a link carries the mark of an attachment or of a network.
func OwnVRF(l *rtnl.Link) bool {
	_, _, _, ok := identity.ParseTag(l.Alias)
	return ok || identity.OfGroup(l.Group)
}
