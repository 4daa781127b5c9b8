package resource

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

// TestSubnets follows what the packet filter knows of the addresses behind a link: several ranges of a network add up, a
// policy takes them along, networks that have the same subnet keep it for each other, and a table as the version
// before made it gets them with the next ADD.
func TestSubnets(t *testing.T) {
	w := newWorld(t)
	wire(t, w)
	host(t, w, "ip link add br7 up type bridge")
	host(t, w, "ip addr add 10.7.0.1/24 dev br7")
	host(t, w, "ip addr add 10.8.0.1/16 dev br7")
	host(t, w, "ip addr add 192.0.2.1/24 dev veth1")
	host(t, w, "ip link set veth1 up")
	of := func(network, policy string, to ...netip.Prefix) Ingress {
		return Ingress{Owner: spec.Owner{Network: network, ContainerID: "c1", IfName: "eth0"}, Link: "br7", Policy: policy, To: to}
	}
	first, second, third := pfx("10.7.0.2/24"), pfx("10.8.0.2/16"), pfx("10.9.0.2/24")
	ensure(t, w, of("a", PolicyOpen, first, second))
	removeIt(t, w, of("a", PolicyOpen))
	before := elements(t, w) // with the sets, which stay

	has := func(set, elem string, want bool) {
		t.Helper()
		if text := setText(nft(t, w, "list table inet fairlead"), set); strings.Contains(text, elem) != want {
			t.Errorf("%s has %s is to be %v:\n%s", set, elem, want, text)
		}
	}
	ensure(t, w, of("a", PolicyOpen, first, third)) // to the third the host has no way by the link
	has("open_ip_24", "10.7.0.0 . 10.7.0.0", true)
	has("subnet_ip_24", "10.9.0.0", false)
	ensure(t, w, of("a", PolicyStrict, second))
	has("open_ip_24", "10.7.0.0", false)
	has("policed_ip_24", "10.7.0.0 . 10.7.0.0", true)
	has("policed_ip_16", "10.8.0.0 . 10.8.0.0", true)
	has("subnet_ip_16", `10.8.0.0 . "br7"`, true)
	verify(t, w, of("a", PolicyStrict, first))
	if changed, err := of("a", PolicyStrict, first).Ensure(t.Context(), w); changed || err != nil {
		t.Errorf("another container of the network: changed %v, %v", changed, err)
	}
	for _, c := range []struct{ what, line, says string }{
		{"subnet gone", "flush set inet fairlead policed_ip_24", "policed_ip_24 { 10.7.0.0 . 10.7.0.0 } is missing"},
		{"line gone", "flush chain inet fairlead sources", "by its own link"},
		{"rule gone", "flush chain inet fairlead input", "in whose name"},
	} {
		nft(t, w, c.line)
		if err := of("a", PolicyStrict, first).Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.what, err)
		}
		ensure(t, w, of("a", PolicyStrict, first))
		verify(t, w, of("a", PolicyStrict, first))
	}

	ensure(t, w, of("b", PolicyStrict, first))
	removeIt(t, w, of("a", PolicyStrict))
	has("policed_ip_24", "10.7.0.0", true)
	has("policed_ip_16", "10.8.0.0", false)
	verify(t, w, of("b", PolicyStrict, first))
	ensure(t, w, of("a", PolicyStrict, first))
	removeIt(t, w, of("b", PolicyStrict))
	verify(t, w, of("a", PolicyStrict, first))
	if err := Sweep(t.Context(), w, "a", nil); err != nil {
		t.Error(err)
	}
	if got := elements(t, w); got != before {
		t.Errorf("left:%s", difference(before, got))
	}

	// A link of the container's own has its addresses alone.
	own := Ingress{Owner: owner, Link: "veth1", Policy: PolicyIsolated, To: []netip.Prefix{pfx("192.0.2.5/24")}}
	ensure(t, w, own)
	removeIt(t, w, own)
	before = elements(t, w)
	ensure(t, w, own)
	has("policed_ip_32", "192.0.2.5 . 192.0.2.5", true)
	verify(t, w, own)
	if err := SweepNFT(t.Context(), w, owner.Network, func(owner [8]byte) bool { return true }); err != nil {
		t.Error(err)
	}
	verify(t, w, own)
	removeIt(t, w, own)
	if got := elements(t, w); got != before {
		t.Errorf("left of an own link:%s", difference(before, got))
	}

	// As the version before left it.
	nft(t, w, "delete table inet fairlead")
	ensure(t, w, of("a", PolicyStrict, first))
	after := elements(t, w)
	nft(t, w, `flush chain inet fairlead input; delete chain inet fairlead input; flush chain inet fairlead sources;
		flush chain inet fairlead subnet_ip_24; delete chain inet fairlead subnet_ip_24;
		delete set inet fairlead subnet_ip_24; delete set inet fairlead bridged_ip_24;
		delete set inet fairlead policed_ip_24; delete set inet fairlead open_ip_24; flush chain inet fairlead forward;
		delete chain inet fairlead sources; flush set inet fairlead owners`)
	ensure(t, w, of("a", PolicyStrict, first))
	if got := elements(t, w); got != after {
		t.Errorf("upgraded:%s", difference(after, got))
	}
	verify(t, w, of("a", PolicyStrict, first))
}
