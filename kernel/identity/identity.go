// Package identity derives whose a thing is from its owner alone: tags, names of links, addresses, groups, numbers. It
// is arithmetic: it asks the kernel nothing, and what does so lives elsewhere.
package identity

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"net"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/machine"
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

// OwnerHash is 8 bytes that stand for o wherever the kernel gives room for a key.
func OwnerHash(o spec.Owner) [8]byte {
	return [8]byte(sum("owner", o.Network, o.ContainerID, o.IfName))
}

// NetworkHash is 6 bytes that stand for the network of that name.
func NetworkHash(network string) [6]byte { return [6]byte(sum("network", network)) }

// PlaceHash stands for the place of an element where there is room for a key.
func PlaceHash(place string) [8]byte { return [8]byte(sum("place", place)) }

// ContainerHash stands for a container where there is room for four bytes.
func ContainerHash(id string) uint32 { return binary.BigEndian.Uint32(sum("container", id)) }

// ShortHash is 12 hex digits of a hash of text, for names of what is shared by all who want the same.
func ShortHash(text string) string { return hex.EncodeToString(sum("short", text)[:6]) }

// Tag is the mark that o leaves where the kernel keeps text (alias, altname, nft comment):
// "<12 hex of network> <16 hex of owner> net/container/interface". Programs compare the hashes; the text
// is for people and is cut, for the kernel refuses the whole call when a text is too long.
func Tag(o spec.Owner) string {
	n, h := NetworkHash(o.Network), OwnerHash(o)
	text := o.String()
	if len(text) > 120 {
		text = strings.ToValidUTF8(text[:120], "")
	}
	return hex.EncodeToString(n[:]) + " " + hex.EncodeToString(h[:]) + " " + text
}

// ParseTag takes a tag apart. The text is only the readable part, maybe cut.
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

// LinkName is a link name of o's own: prefix and 11 characters of base32, at most 15 bytes in all.
func LinkName(prefix string, o spec.Owner) string {
	s := base32.StdEncoding.EncodeToString(sum("link", prefix, o.Network, o.ContainerID, o.IfName))
	return prefix + strings.ToLower(s[:11])
}

// LinkGroup is the IFLA_GROUP of links made for a network. The kernel takes it in the creating message,
// which alias and altname are ignored in, so that a link is never without a mark. It
// stays below 2^31, the end of ip(8)'s groups.
func LinkGroup(network string) uint32 {
	n := NetworkHash(network)
	return 0x7A<<24 | uint32(n[0])<<16 | uint32(n[1])<<8 | uint32(n[2])
}

// OfGroup reports whether a group is that of some network.
func OfGroup(group uint32) bool { return group>>24 == 0x7A }

// MAC is a locally administered unicast address of o's own for one end of a link ("cont", "host"). It differs between
// machines: the same path on two hosts of one LAN must not give one address. That of a port of a bridge ("host",
// "port") begins with the greatest byte there is: a bridge whose address nobody has set takes the least of its ports'.
func MAC(end string, o spec.Owner) net.HardwareAddr {
	b := sum("mac", end, machine.ID(), o.Network, o.ContainerID, o.IfName)[:6]
	b[0] = b[0]&^1 | 2
	if end == "host" || end == "port" {
		b[0] = 0xfe
	}
	return b
}

// UUID is a number of o's own on this machine (RFC 9562's version 8), for who is known to others by one.
func UUID(o spec.Owner) (u [16]byte) {
	copy(u[:], sum("uuid", machine.ID(), o.Network, o.ContainerID, o.IfName))
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return u
}
