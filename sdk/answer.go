package sdk

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// An Answer is the result of a plan function: the resources that should exist, and what the result of the call contains
// in addition to the links among them.
type Answer struct {
	Plan plan.Plan

	// IPs and Routes are those of the attachment where the plugin completes the Request's; nil are the Request's.
	// Without ipam they are the previous result's, and listed as this interface's.
	IPs    []spec.IP
	Routes []spec.Route

	// Gateway says that the host is the gateway of the addresses. The engine asks, before it changes anything, for a
	// plan with each address that may come, and whether the host can have the gateway's.
	Gateway bool

	Warnings []string // see Warn
}

// Warn adds a warning about a configuration that is used nevertheless: the key, its value, and why it has no effect or
// an unexpected one. ADD prints warnings on stderr, once each, and a dry run lists them.
func (a *Answer) Warn(format string, args ...any) {
	a.Warnings = append(a.Warnings, fmt.Sprintf(format, args...))
}
