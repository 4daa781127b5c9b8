package resource

import (
	"context"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Describer is a resource that has Traits.
type Describer interface {
	plan.Resource
	Traits() Traits
}

// Traits describe a resource to results, STATUS, repair and dry runs. They are read without changing anything. A zero
// field means that the resource has nothing of that sort.
type Traits struct {
	// Ifaces are the links that it makes or uses and that belong into an ADD's result, in the order of the plan.
	Ifaces []Iface

	// On is the link that its differences are about, if that is not the last one in Ifaces.
	On Iface

	// Network is what it says about the attachment's network.
	Network Network

	// Object is its key among the resources of the link, such as a route's destination.
	Object string

	// Tell changes what the result says beyond links, their MAC and MTU: of the container's interface, as its
	// socketPath and its pciID, or what a chained plugin was asked to change of it; or of name servers.
	Tell func(*kernel.World, *spec.Result) error

	// Final is the resource as the final result describes the container's interface, which a later plugin of the list
	// may have changed (clause P16): what CHECK compares with. A field that the result does not say is no opinion.
	Final func(spec.Interface) plan.Resource

	// Possible is nil where the kernel has all that it needs, such as a kind of links; STATUS asks.
	Possible func(*kernel.World) error

	// Effect is what a rule of the host's packet filter does to packets, and so when repair restores it: by its Ensure,
	// which therefore never touches the container, and may be called at any time in the attachment's life.
	Effect Effect

	// Fix makes its part on the host whole while the container lives. It changes nothing in the container, and nothing
	// that is as it should be.
	Fix func(context.Context, *kernel.World) (changed bool, err error)

	// Free returns nil if a link on the host can have the address, now or once the link exists, as the gateway of its
	// containers, and no other link has it. Overlaps warns of other subnets of the host that overlap the network, for
	// STATUS. Neither changes anything.
	Free, Overlaps func(*kernel.World) error

	// Routes are the routes that it adds to the container's interface at a user's request, for the result: one for
	// each next hop. Deleted reports whether it has deleted the container's routes to a destination.
	Routes  []spec.Route
	Deleted func(w *kernel.World, to netip.Prefix) (bool, error)

	// Follows says that its differences on the host follow from those of the links before it, and go with them.
	Follows bool

	// Clears says that it makes nothing, and only takes away what an earlier configuration wanted. A plan need not name
	// it then.
	Clears bool
}

// TraitsOf returns the Traits of a resource of a plan. The resource may be wrapped because plans share it, or may
// come from a plugin outside this program.
func TraitsOf(r plan.Resource) Traits {
	if d, ok := plan.Unwrap(r).(Describer); ok {
		return d.Traits()
	}
	return Traits{}
}

// An Iface is a link that a resource makes or uses.
type Iface struct {
	Where  Where
	Name   string
	Kind   string // ip(8)'s type, of a link on the host that it makes
	Master string // the bridge that it makes the link a port of
	Unseen bool   // the kernel has no link for it: a program in user space drives its device
}

// An Effect says what a resource's rules in the host's packet filter do to packets. A flush or reload of the packet
// filter removes such a resource. Repair restores rules that keep packets out before rules that let packets in.
type Effect int

// The Effects. Closes: the rules keep packets out and let none in. Opens: all other rules. NoRule: the resource is
// not a rule.
const (
	NoRule Effect = iota
	Closes
	Opens
)

// KindPossible returns a Possible function for a link of that kind. It fails if the kernel lacks the kind.
func KindPossible(kind string) func(*kernel.World) error {
	return func(w *kernel.World) error { return rtnl.NoKind(w.Host, kind) }
}
