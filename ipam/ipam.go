// Package ipam allocates addresses to owners and releases them.
package ipam

import (
	"context"
	"errors"
	"net/netip"

	"github.com/fairlead-cni/fairlead/spec"
)

// ErrExhausted means that no address is left. The wrapping error has the range, its size, and how many addresses are in
// use. Plugins answer with code 11 (try again later).
var ErrExhausted = errors.New("no address is left")

// ErrTaken and ErrOutside are wrapped by the error of Import: an address is another's, or of no range.
var (
	ErrTaken   = errors.New("is in use")
	ErrOutside = errors.New("is not in any range of the network")
)

// ErrHeld is wrapped by the error of Verify if another owner holds an address.
var ErrHeld = errors.New("is held")

// KindLease is the Kind of a difference of a lease, which is no resource of a plan.
const KindLease = "Lease"

// An Allocator allocates the addresses of owners.
type Allocator interface {
	// Allocate gives o its addresses: a result with IPs, Routes and DNS and no Interfaces (clause I4).
	Allocate(ctx context.Context, o spec.Owner) (*spec.Result, error)

	// Verify returns nil if o holds the addresses that prev says and that this allocator could have
	// given.
	Verify(ctx context.Context, o spec.Owner, prev *spec.Result) error

	// Release takes back all that o holds. Nothing held is no error.
	Release(ctx context.Context, o spec.Owner) error

	// Sweep takes back what belongs to network and to none of valid.
	Sweep(ctx context.Context, network string, valid []spec.Owner) error

	// Status returns nil if the next Allocate would be served.
	Status(ctx context.Context, network string) error
}

// A Linked is an Allocator whose Release sends packets on the container's link, so it is called before the link is
// removed.
type Linked interface{ NeedsLink() }

// A Decliner is an Allocator that may give an owner the address again that it had before.
type Decliner interface {
	// Decline is Release of what an owner was given in vain, for another host has a: it is not remembered.
	Decline(ctx context.Context, o spec.Owner, a netip.Addr) error
}

// A Witness is an Allocator that notices when other programs change its leases.
type Witness interface {
	// Since is a number that stays the same as long as no other program can have changed the leases since the boot, and
	// is not used again. It is that of the last Allocate; 0: not known.
	Since() int64
}

// A Gatewayer is an Allocator that knows the gateway of an address before it allocates the address.
type Gatewayer interface {
	// Gateways are, for each address that an owner gets, the gateways that it can have, by any address of their
	// subnets.
	Gateways() [][]spec.IP
}

// A Pather is an Allocator that knows the network that its addresses are of.
type Pather interface {
	// PathMTU is the size in bytes of the largest packet that reaches all addresses of the network; 0: not known.
	PathMTU() int
}

// A Forecaster is an Allocator that knows, without looking at leases, what it allocates.
type Forecaster interface {
	// Forecast returns what an owner might get, and the pools that it comes from.
	Forecast() (*spec.Result, []Set)
}

// A Roomer is an Allocator that can count its free addresses.
type Roomer interface {
	// Room is how many more owners of the network find an address, and how many there is room for in all.
	Room(ctx context.Context, network string) (free, size Count, err error)
}
