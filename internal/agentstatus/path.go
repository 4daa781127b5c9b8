package agentstatus

import (
	"slices"
	"time"
)

// A Result is what became of a test of a path.
type Result string

// The results. There and back are seen from this node.
const (
	Passed    Result = "passed"
	LostThere Result = "lost-there" // the other node did not receive it
	LostBack  Result = "lost-back"  // the other node received it, and its answer did not arrive
	Lost      Result = "lost"       // in which direction is unknown
)

// A Path is what tests of the path to another node found.
type Path struct {
	Tested time.Time `json:"tested"`          // when the last test ended
	Passed time.Time `json:"passed,omitzero"` // when all last passed
	Seen   time.Time `json:"seen,omitzero"`   // when anything last came from the node

	// Agents is the test of the datagrams that agents send each other, outside of the tunnel.
	Agents Result   `json:"agents"`
	Inside []Inside `json:"inside,omitempty"` // one of each family

	// Cause is the kernel's error when it refused to send, for people.
	Cause string `json:"cause,omitempty"`
}

// An Inside is the test of a path as the packets of containers take it, from this node's own address among its
// containers to that of the other node. No packet may be fragmented.
type Inside struct {
	Family string `json:"family"` // "IPv4" or "IPv6"
	Small  Result `json:"small"`
	Full   Result `json:"full"`
	Size   int    `json:"size"`          // of the full packet in bytes
	UDP    Result `json:"udp,omitempty"` // a datagram, whose checksum the network card may have to make

	// Link is a datagram that bypasses the routes: by the link that both nodes are on, outside of the tunnel. It is
	// empty if that is not wanted.
	Link Result `json:"link,omitempty"`
	MTU  int    `json:"mtu,omitempty"` // the longest packet that passes, if Full does not and Small does; zero: unknown
}

// A PathState is all of a path's results in one word.
type PathState string

// The states of paths, the better ones first.
const (
	PathWhole PathState = "passed"
	NoAgent   PathState = "agent-silent"
	UDPLost   PathState = "udp-lost" // echoes pass, and datagrams do not arrive
	Short     PathState = "short"    // full packets do not pass, small ones do
	BackLost  PathState = "lost-back"
	ThereLost PathState = "lost-there"
	NoAnswer  PathState = "silent"
)

// State returns the worst that was found.
func (p Path) State() PathState {
	small := func(r Result) bool {
		return slices.ContainsFunc(p.Inside, func(in Inside) bool { return in.Small == r })
	}
	isShort := func(in Inside) bool { return in.Full != Passed }
	noUDP := func(in Inside) bool { return in.UDP == LostThere }
	switch {
	case small(Lost):
		return NoAnswer
	case small(LostThere):
		return ThereLost
	case small(LostBack):
		return BackLost
	case slices.ContainsFunc(p.Inside, noUDP):
		return UDPLost
	case slices.ContainsFunc(p.Inside, isShort):
		return Short
	case p.Agents != Passed:
		return NoAgent
	}
	return PathWhole
}

// Whole reports whether everything passed.
func (p Path) Whole() bool { return p.State() == PathWhole }
