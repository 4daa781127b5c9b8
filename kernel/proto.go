package kernel

import (
	"strconv"
)

// The IP protocols that have ports.
const (
	TCP  = 6
	UDP  = 17
	SCTP = 132

	ICMP   = 1
	ICMPv6 = 58
)

// ParseProto returns the protocol number of "tcp", "udp" or "sctp".
func ParseProto(name string) (byte, bool) {
	switch name {
	case "tcp":
		return TCP, true
	case "udp":
		return UDP, true
	case "sctp":
		return SCTP, true
	}
	return 0, false
}

// ProtoName returns the name of a protocol that ParseProto knows, or of ICMP. For another protocol it returns the
// number as text.
func ProtoName(proto byte) string {
	switch proto {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	case ICMP:
		return "icmp"
	case ICMPv6:
		return "ipv6-icmp"
	}
	return strconv.Itoa(int(proto))
}
