package agentstatus

import "net/netip"

// A Kind is a sort of problem.
type Kind string

// The kinds of problems.
const (
	NotGranted    Kind = "not-granted"     // this node has no range of addresses
	RangeTaken    Kind = "range-taken"     // Prefix of Node is another node's, too
	RouteTaken    Kind = "route-taken"     // another program's route takes Prefix of Node
	NoWay         Kind = "no-way"          // something else that Node needs could not be made
	PathSilent    Kind = "path-silent"     // nothing comes back from Node
	PathLostThere Kind = "path-lost-there" // packets to the containers of Node do not arrive
	PathLostBack  Kind = "path-lost-back"  // packets from the containers of Node do not arrive
	PathUDP       Kind = "path-udp"        // Node answers echoes, and datagrams to its containers do not arrive
	PathShort     Kind = "path-short"      // Node answers small packets, and none of Size bytes
	AgentSilent   Kind = "agent-silent"    // the agent of Node does not answer, but its containers' network does
	APISilent     Kind = "api-silent"      // the API server does not answer the agent
	Other         Kind = "other"
)

// Kinds returns all kinds of problems.
func Kinds() []Kind {
	return []Kind{NotGranted, RangeTaken, RouteTaken, NoWay, PathSilent, PathLostThere, PathLostBack, PathUDP,
		PathShort, AgentSilent, APISilent, Other}
}

// A Problem is something that is not as it should be.
type Problem struct {
	Kind   Kind         `json:"kind"`
	Node   string       `json:"node,omitempty"`
	Prefix netip.Prefix `json:"prefix,omitzero"`
	Link   string       `json:"link,omitempty"` // that a foreign route goes by
	Size   int          `json:"size,omitempty"` // in bytes
	MTU    int          `json:"mtu,omitempty"`  // that passes; zero: unknown
	Text   string       `json:"text"`           // for people
}
