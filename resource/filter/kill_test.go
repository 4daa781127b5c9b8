package filter

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// policyPlan is a strict network's on br7.
func policyPlan(id string) plan.Plan {
	o := spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"}
	to := []netip.Prefix{netip.MustParsePrefix("10.7.0.2/24")}
	return plan.Plan{IngressPolicy{Owner: o, Link: "br7", Policy: PolicyStrict, To: to},
		FailClosed{Owner: o, Link: "br7", Policy: PolicyStrict, Subnets: to}}
}

func killFilterPlan() plan.Plan {
	return plan.Plan{
		publishOf("c1", "net", "10.1.2.5/24", tcp("", 8080), tcp("192.0.2.1", 443)),
		Masquerade{Owner: contract.Owner, From: []netip.Prefix{contract.Prefix("10.1.2.5/24")}},
		SpoofCheck{Owner: contract.Owner, Link: "veth1", MAC: "02:00:00:00:00:01"},
	}
}
