// Package identity derives marks and names from an owner alone: tags, names of links, addresses, link groups,
// numbers. It only computes. Functions that ask the kernel live in other packages.
package identity

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"net"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/machine"
	"github.com/fairlead-cni/fairlead/spec"
)

// sum hashes parts so that ("ab", "c") and ("a", "bc") differ.
func sum(parts ...string) []byte {
	h := sha256.New()
	for _, p := range parts {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return h.Sum(nil)
}

// OwnerHash returns 8 bytes that identify an owner where the kernel has room for a key.
func OwnerHash(o spec.Owner) [8]byte {
	return [8]byte(sum("owner", o.Network, o.ContainerID, o.IfName))
}

// NetworkHash returns 6 bytes that identify a network by its name.
func NetworkHash(network string) [6]byte { return [6]byte(sum("network", network)) }

// PlaceHash returns 8 bytes that identify the place of an element where the kernel has room for a key.
func PlaceHash(place string) [8]byte { return [8]byte(sum("place", place)) }

// ContainerHash returns 4 bytes that identify a container, for places with no more room.
func ContainerHash(id string) uint32 { return binary.BigEndian.Uint32(sum("container", id)) }

// ShortHash returns 12 hex digits of a hash of text. They name objects that all attachments with equal text share.
func ShortHash(text string) string { return hex.EncodeToString(sum("short", text)[:6]) }

// Tag returns the mark of owner o for places where the kernel keeps text: alias, alternative name, nft comment. Its
// form is "<12 hex digits of network> <16 hex digits of owner> net/container/interface". Programs compare only the
// hashes. The text is for people. Tag cuts the text, because the kernel refuses a request with a text that is too
// long.
func Tag(o spec.Owner) string {
	n, h := NetworkHash(o.Network), OwnerHash(o)
	text := o.String()
	if len(text) > 120 {
		text = strings.ToValidUTF8(text[:120], "")
	}
	return hex.EncodeToString(n[:]) + " " + hex.EncodeToString(h[:]) + " " + text
}

// ParseTag splits a tag into its parts. The text is the readable part, possibly cut short.
func ParseTag(tag string) (network [6]byte, owner [8]byte, text string, ok bool) {
	f := strings.SplitN(tag, " ", 3)
	if len(f) < 2 || len(f[0]) != 12 || len(f[1]) != 16 {
		return
	}
	if _, err := hex.Decode(network[:], []byte(f[0])); err != nil {
		return
	}
	if _, err := hex.Decode(owner[:], []byte(f[1])); err != nil {
		return
	}
	if len(f) == 3 {
		text = f[2]
	}
	return network, owner, text, true
}

// LinkName returns a name for a link of owner o: prefix and 11 base32 characters. A link name has 15 bytes at most.
func LinkName(prefix string, o spec.Owner) string {
	s := base32.StdEncoding.EncodeToString(sum("link", prefix, o.Network, o.ContainerID, o.IfName))
	return prefix + strings.ToLower(s[:11])
}

// LinkGroup returns the link group (IFLA_GROUP) for links of a network. The kernel applies the group in the request
// that creates the link, but ignores alias and altname there. So a link has a mark from its first moment. Groups are
// below 2^31, the limit of ip(8).
func LinkGroup(network string) uint32 {
	n := NetworkHash(network)
	return 0x7A<<24 | uint32(n[0])<<16 | uint32(n[1])<<8 | uint32(n[2])
}

// RouteProtocol is the number of the origin ("proto" of ip-route(8)) of the routes to other nodes of a cluster.
const RouteProtocol = 118

// OfGroup reports whether a link group belongs to some network, that is, whether LinkGroup can return it.
func OfGroup(group uint32) bool { return group>>24 == 0x7A }

// MAC returns a locally administered unicast address for one end of a link of owner o ("cont", "host", "port"). It
// depends on the machine, so the same network path on two hosts of one LAN gives different addresses. The address of
// a bridge port ("host", "port") begins with the greatest possible byte. A bridge without an address of its own takes
// the lowest address of its ports, and so does not take this one.
func MAC(end string, o spec.Owner) net.HardwareAddr {
	b := sum("mac", end, machine.ID(), o.Network, o.ContainerID, o.IfName)[:6]
	b[0] = b[0]&^1 | 2
	if end == "host" || end == "port" {
		b[0] = 0xfe
	}
	return b
}

// UUID returns a number for owner o on this machine (RFC 9562, version 8), for protocols that identify a client by a
// UUID.
func UUID(o spec.Owner) (u [16]byte) {
	copy(u[:], sum("uuid", machine.ID(), o.Network, o.ContainerID, o.IfName))
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return u
}
