package policy_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestIngressBehindBridge: the link by which the host is on a bridge is its network's, as the bridge would be, and is
// found by the way to the containers.
//
// clause: P22
func TestIngressBehindBridge(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	contract.Host(t, w, "ip link add br7 up type bridge")
	contract.Host(t, w, "ip link set veth1 up master br7")
	contract.Host(t, w, "ip link add br7.100 up type veth peer name port")
	contract.Host(t, w, "ip link set port up master br7")
	contract.Host(t, w, "ip addr add 10.7.0.1/24 dev br7.100")
	filtertest.MakeTables(t, w)
	// to the first there is no way
	to := []netip.Prefix{contract.Prefix("fd00:7::2/64"), contract.Prefix("10.7.0.2/24")}
	found := policy.Ingress{Owner: contract.Owner, Policy: policy.Open, To: to}
	listed := policy.Ingress{Owner: contract.Owner, Link: "br7.100", Policy: policy.Open}
	contract.Ensure(t, w, found)
	contract.Remove(t, w, found)
	before := filtertest.Elements(t, w) // with the sets of subnets, which stay
	contract.Ensure(t, w, found)
	contract.Verify(t, w, listed)
	second := policy.Ingress{Owner: spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"}, Link: "br7.100",
		Policy: policy.Strict}
	contract.Ensure(t, w, second)
	contract.Remove(t, w, found)
	contract.Verify(t, w, second)
	if got := filtertest.NFT(t, w, "list ruleset"); !strings.Contains(setText(got, "policed"), `"br7.100"`) || strings.Contains(setText(got, "policed")+setText(got, "known"), `"br7"`) {
		t.Errorf("the policy is not on the gateway's link: %s", got)
	}
	contract.Remove(t, w, second)
	if got := filtertest.Elements(t, w); got != before {
		t.Errorf("left:%s", contract.Difference(before, got))
	}

	contract.Ensure(t, w, second)
	if err := policy.SweepNetwork(t.Context(), w, "net", false); err != nil { // there is a port yet
		t.Error(err)
	}
	contract.Verify(t, w, second)
	contract.Host(t, w, "ip link set veth1 nomaster")
	if err := policy.SweepNetwork(t.Context(), w, "net", false); err != nil {
		t.Error(err)
	}
	if got := filtertest.Elements(t, w); got != before {
		t.Errorf("GC left:%s", contract.Difference(before, got))
	}
	contract.Host(t, w, "ip link set veth1 master br7")

	// Frames to the bridge's own address are routed too, past the gateway's link, where the bridge keeps no VLANs
	// apart.
	_, err := policy.Ingress{Owner: contract.Owner, Link: "br7", Policy: policy.Strict, To: to}.Ensure(t.Context(), w)
	var e *spec.Error
	if !errors.As(err, &e) || e.Code != spec.CodeConfig ||
		!strings.Contains(err.Error(), "give br7 the addresses of br7.100") {
		t.Error(err)
	}
}
