package sdk

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// An Answer is what a plan function answers: what should exist, and what the call's result says beyond the links in it.
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

// Warn says, of a configuration that is used all the same, what goes without effect or not as meant: the key, its
// value, and why. ADD says it on stderr, once, and so does a plan.
func (a *Answer) Warn(format string, args ...any) {
	a.Warnings = append(a.Warnings, fmt.Sprintf(format, args...))
}
