// Package spec is the Container Network Interface as data: configurations, lists, results, errors and
// versions, in every wire version from 0.1.0 to 1.1.0. It reads and writes documents and touches nothing
// else. Its rules are numbered in docs/clauses.md.
package spec

import (
	"encoding/json"
	"net/netip"
)

// An Owner identifies to which attachment stored and kernel state belongs: one interface of one container on one
// network (clause P19). The type of the plugin is not part of it.
type Owner struct {
	Network     string
	ContainerID string
	IfName      string
}

// String returns network/container/interface.
func (o Owner) String() string { return o.Network + "/" + o.ContainerID + "/" + o.IfName }

// A Version is a CNI version as written in documents, such as "0.4.0". The empty Version means 0.1.0, if a document
// leaves the version out (clause V5).
type Version string

// The versions of the protocol.
const (
	V010 Version = "0.1.0"
	V020 Version = "0.2.0"
	V030 Version = "0.3.0"
	V031 Version = "0.3.1"
	V040 Version = "0.4.0"
	V100 Version = "1.0.0"
	V110 Version = "1.1.0"

	Newest = V110
)

// Versions returns all versions of the protocol, oldest first.
func Versions() []Version { return []Version{V010, V020, V030, V031, V040, V100, V110} }

// A Result is the result of ADD in the newest form. Encode writes it in any version and DecodeResult reads any version.
type Result struct {
	CNIVersion Version // the version that the document said, or that it will be written in
	Interfaces []Interface
	IPs        []IP
	Routes     []Route
	DNS        DNS
	Extra      map[string]json.RawMessage // members that the version does not define; they survive a chain
}

// An Interface is a link that the attachment made or uses.
type Interface struct {
	Name       string
	MAC        string
	MTU        int    // bytes; 0 is unknown
	Sandbox    string // path of the network namespace; empty is the host (clause P24)
	SocketPath string
	PciID      string
}

// An IP is an address of the attachment. The prefix keeps its host bits.
type IP struct {
	Address   netip.Prefix
	Gateway   netip.Addr // invalid: none
	Interface *int       // index into Interfaces; nil where it is not known (clause I4)
}

// A Route is a route of the attachment. Zero fields are unset.
type Route struct {
	Dst      netip.Prefix
	GW       netip.Addr
	MTU      int
	AdvMSS   int
	Priority int
	Table    *int
	Scope    *int
}

// DNS has the settings of a resolv.conf(5).
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"` // addresses of servers, the first one asked first
	Domain      string   `json:"domain,omitempty"`      // the host's own
	Search      []string `json:"search,omitempty"`      // domains that a short name is looked up in
	Options     []string `json:"options,omitempty"`     // of resolv.conf, such as ndots:5
}

// A Code is an error code of the protocol (clause P8). Codes from 100 on are defined by each plugin.
type Code uint

// The codes that the specification and the reference library define.
const (
	CodeVersion     Code = 1  // the version in the configuration is not spoken
	CodeUnsupported Code = 2  // a field is not supported; the message has key and value
	CodeUnknown     Code = 3  // the container is unknown
	CodeEnvironment Code = 4  // an environment variable is missing or bad
	CodeIO          Code = 5  // reading or writing failed
	CodeDecode      Code = 6  // not JSON, or not of the right shape
	CodeConfig      Code = 7  // the configuration is invalid
	CodeNetns       Code = 8  // the namespace is the host's, or none (the reference library's code)
	CodeTryAgain    Code = 11 // a passing condition
	CodeUnavailable Code = 50 // STATUS: the plugin can serve no ADD
	CodeLimited     Code = 51 // STATUS: nor is the connectivity of existing containers sure
	CodeInternal    Code = 999
)

// An Error is the document that a plugin prints when it fails (clause P7), and a Go error.
type Error struct {
	CNIVersion Version `json:"cniVersion"`
	Code       Code    `json:"code"`
	Msg        string  `json:"msg"`
	Details    string  `json:"details,omitempty"`
	Hint       string  `json:"hint,omitempty"` // what fixes it, in whole sentences; Error leaves it to the caller who prints
	// who has what was asked for, as Owner.String has it; parts may be empty
	Holder string `json:"holder,omitempty"`

	Differences Differences `json:"-"` // what CHECK found; in a document, Details has them as JSON

	cause error // what it was made from, in this process
}
