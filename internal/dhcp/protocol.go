package dhcp

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// What who keeps a lease does next depends on these alone; every other error is of the link or of the system, and is
// tried again as long as the lease lasts.
var (
	// ErrNoServer says that no server answered in time. A DHCPv4 server whose pool is empty is silent too.
	ErrNoServer = errors.New("no DHCP server answered")
	// ErrRefused says that a server has no such lease for us (NAK, NoBinding): it is over at once.
	ErrRefused = errors.New("the DHCP server refused the lease")
	// ErrEmpty says that a server has no address left (NoAddrsAvail, NoPrefixAvail).
	ErrEmpty = errors.New("the DHCP server has no address left")
)

// A Link is the link of a lease, in an open namespace. It is open for one call of a Protocol. A Protocol must not keep
// a socket, because a socket keeps the namespace alive after the container has ended, as an open namespace does.
type Link struct {
	NS    *kernel.NS
	Name  string
	Index int
	MAC   net.HardwareAddr
	MTU   int
}

// An Ask is what a client asks servers for, unchanged during the lifetime of the lease. Zero fields ask for nothing.
type Ask struct {
	Owner       spec.Owner `json:"owner"`
	Hostname    string     `json:"hostname,omitempty"`
	VendorClass string     `json:"vendorClass,omitempty"`
	Address     netip.Addr `json:"address,omitzero"` // a wish
	// sent as they are; they win over what the protocol says itself
	Options   map[uint16][]byte `json:"options,omitempty"`
	Request   []uint16          `json:"request,omitempty"`   // the codes of the options asked for
	Broadcast bool              `json:"broadcast,omitempty"` // answers shall be broadcast (DHCPv4)
	// look whether another host has the address before it is taken (DHCPv4; DHCPv6 always does)
	Probe    bool `json:"probe,omitempty"`
	Delegate int  `json:"delegate,omitempty"` // length of a prefix to be delegated (DHCPv6)
	// of the routes, also of a default route that the kernel makes as routers say (IPv6)
	Metric int `json:"metric,omitempty"`
	// not asked for: the configuration's, which every lease gets beside the server's
	Routes []spec.Route `json:"routes,omitempty"`
}

// A Protocol gets leases on a link. Its methods send and wait, with growing pauses, until there is an answer or ctx
// ends; in the latter case the error is ErrNoServer. A Protocol has no state between calls and can be used for many
// links at once. It does not change the leases that it is given. The caller must set the link up.
type Protocol interface {
	// Name is what lease files and messages call it: "dhcpv4", "dhcpv6", "slaac".
	Name() string

	// Acquire gets a new lease (INIT to BOUND).
	Acquire(context.Context, Link, Ask) (*Lease, error)

	// Confirm asks whether a lease still holds, after a restart or when the link came back (INIT-REBOOT; CONFIRM). The
	// server may answer with a newer one. ErrNoServer leaves it in force for as long as it is valid.
	Confirm(context.Context, Link, Ask, *Lease) (*Lease, error)

	// Renew asks the lease's server for more time, Rebind asks any server.
	Renew(context.Context, Link, Ask, *Lease) (*Lease, error)
	Rebind(context.Context, Link, Ask, *Lease) (*Lease, error)

	// Release gives a lease back. DHCPv4 has no answer to that, so nil says that it was sent.
	Release(context.Context, Link, Ask, *Lease) error

	// Decline says that another host has one of the addresses.
	Decline(context.Context, Link, Ask, *Lease) error
}
