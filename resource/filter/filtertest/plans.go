package filtertest

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/resource/filter/spoof"
	"github.com/fairlead-cni/fairlead/spec"
)

// SourcesByIPTables is a masquerade by iptables for contract.Owner.
func SourcesByIPTables() masquerade.SourcesIPTables {
	return masquerade.SourcesIPTables{Sources: masquerade.Sources{Owner: contract.Owner,
		From: []netip.Prefix{contract.Prefix("10.1.2.5/24"), contract.Prefix("fd00::5/64")}}}
}

// PolicyPlan is a strict network's on br7.
func PolicyPlan(id string) plan.Plan {
	o := spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"}
	to := []netip.Prefix{netip.MustParsePrefix("10.7.0.2/24")}
	return plan.Plan{policy.Ingress{Owner: o, Link: "br7", Policy: policy.Strict, To: to},
		policy.FailClosed{Owner: o, Link: "br7", Policy: policy.Strict, To: to}}
}

// KillFilterPlan has a published port, a masquerade and a spoof check.
func KillFilterPlan() plan.Plan {
	return plan.Plan{
		PortsOf("c1", "net", "10.1.2.5/24", TCP("", 8080), TCP("192.0.2.1", 443)),
		masquerade.Sources{Owner: contract.Owner, From: []netip.Prefix{contract.Prefix("10.1.2.5/24")}},
		spoof.Check{Owner: contract.Owner, Link: "veth1", MAC: "02:00:00:00:00:01"},
	}
}
