package filter

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/lawtest"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestIngressBehindBridge: the link by which the host is on a bridge is its network's, as the bridge would be, and is
// found by the way to the containers.
//
// clause: P22
func TestIngressBehindBridge(t *testing.T) {
	w := lawtest.NewWorld(t)
	lawtest.Wire(t, w)
	lawtest.Host(t, w, "ip link add br7 up type bridge")
	lawtest.Host(t, w, "ip link set veth1 up master br7")
	lawtest.Host(t, w, "ip link add br7.100 up type veth peer name port")
	lawtest.Host(t, w, "ip link set port up master br7")
	lawtest.Host(t, w, "ip addr add 10.7.0.1/24 dev br7.100")
	skeleton(t, w)
	to := []netip.Prefix{lawtest.Prefix("fd00:7::2/64"), lawtest.Prefix("10.7.0.2/24")} // to the first there is no way
	found := Ingress{Owner: lawtest.Owner, Policy: PolicyOpen, To: to}
	listed := Ingress{Owner: lawtest.Owner, Link: "br7.100", Policy: PolicyOpen}
	lawtest.Ensure(t, w, found)
	lawtest.Remove(t, w, found)
	before := elements(t, w) // with the sets of subnets, which stay
	lawtest.Ensure(t, w, found)
	lawtest.Verify(t, w, listed)
	second := Ingress{Owner: spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"}, Link: "br7.100", Policy: PolicyStrict}
	lawtest.Ensure(t, w, second)
	lawtest.Remove(t, w, found)
	lawtest.Verify(t, w, second)
	if got := nft(t, w, "list ruleset"); !strings.Contains(setText(got, "policed"), `"br7.100"`) || strings.Contains(setText(got, "policed")+setText(got, "known"), `"br7"`) {
		t.Errorf("the policy is not on the gateway's link: %s", got)
	}
	lawtest.Remove(t, w, second)
	if got := elements(t, w); got != before {
		t.Errorf("left:%s", lawtest.Difference(before, got))
	}

	lawtest.Ensure(t, w, second)
	if err := SweepNetwork(t.Context(), w, "net", false); err != nil { // there is a port yet
		t.Error(err)
	}
	lawtest.Verify(t, w, second)
	lawtest.Host(t, w, "ip link set veth1 nomaster")
	if err := SweepNetwork(t.Context(), w, "net", false); err != nil {
		t.Error(err)
	}
	if got := elements(t, w); got != before {
		t.Errorf("GC left:%s", lawtest.Difference(before, got))
	}
	lawtest.Host(t, w, "ip link set veth1 master br7")

	// Frames to the bridge's own address are routed too, past the gateway's link, where the bridge keeps no VLANs apart.
	_, err := Ingress{Owner: lawtest.Owner, Link: "br7", Policy: PolicyStrict, To: to}.Ensure(t.Context(), w)
	var e *spec.Error
	if !errors.As(err, &e) || e.Code != spec.CodeConfig || !strings.Contains(err.Error(), "give br7 the addresses of br7.100") {
		t.Error(err)
	}
}
