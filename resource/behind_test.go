package resource

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

// TestIngressBehindBridge: the link by which the host is on a bridge is its network's, as the bridge would be, and is
// found by the way to the containers.
//
// clause: P22
func TestIngressBehindBridge(t *testing.T) {
	w := newWorld(t)
	wire(t, w)
	host(t, w, "ip link add br7 up type bridge")
	host(t, w, "ip link set veth1 up master br7")
	host(t, w, "ip link add br7.100 up type veth peer name port")
	host(t, w, "ip link set port up master br7")
	host(t, w, "ip addr add 10.7.0.1/24 dev br7.100")
	skeleton(t, w)
	to := []netip.Prefix{pfx("fd00:7::2/64"), pfx("10.7.0.2/24")} // to the first there is no way
	found := Ingress{Owner: owner, Policy: PolicyOpen, To: to}
	listed := Ingress{Owner: owner, Link: "br7.100", Policy: PolicyOpen}
	ensure(t, w, found)
	removeIt(t, w, found)
	before := elements(t, w) // with the sets of subnets, which stay
	ensure(t, w, found)
	verify(t, w, listed)
	second := Ingress{Owner: spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"}, Link: "br7.100", Policy: PolicyStrict}
	ensure(t, w, second)
	removeIt(t, w, found)
	verify(t, w, second)
	if got := nft(t, w, "list ruleset"); !strings.Contains(setText(got, "policed"), `"br7.100"`) || strings.Contains(setText(got, "policed")+setText(got, "known"), `"br7"`) {
		t.Errorf("the policy is not on the gateway's link: %s", got)
	}
	removeIt(t, w, second)
	if got := elements(t, w); got != before {
		t.Errorf("left:%s", difference(before, got))
	}

	ensure(t, w, second)
	if err := SweepNetwork(t.Context(), w, "net", false); err != nil { // there is a port yet
		t.Error(err)
	}
	verify(t, w, second)
	host(t, w, "ip link set veth1 nomaster")
	if err := SweepNetwork(t.Context(), w, "net", false); err != nil {
		t.Error(err)
	}
	if got := elements(t, w); got != before {
		t.Errorf("GC left:%s", difference(before, got))
	}
	host(t, w, "ip link set veth1 master br7")

	// Frames to the bridge's own address are routed too, past the gateway's link, where the bridge keeps no VLANs apart.
	_, err := Ingress{Owner: owner, Link: "br7", Policy: PolicyStrict, To: to}.Ensure(t.Context(), w)
	var e *spec.Error
	if !errors.As(err, &e) || e.Code != spec.CodeConfig || !strings.Contains(err.Error(), "give br7 the addresses of br7.100") {
		t.Error(err)
	}
}
