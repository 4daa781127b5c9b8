package filter_test

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/filter"
)

// A veth leads to the bridge that its peer is a port of, and to none if the peer is no port.
func TestLeadsTo(t *testing.T) {
	w := contract.NewHost(t)
	contract.Host(t, w, "ip link add br0 type bridge")
	contract.Host(t, w, "ip link add left type veth peer name right")
	left := func() *rtnl.Link {
		l, err := rtnl.LinkByName(w.Host, "left")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if br, err := filter.LeadsTo(w, left()); br != nil || err != nil {
		t.Errorf("without a port: %+v, %v", br, err)
	}
	contract.Host(t, w, "ip link set right master br0")
	if br, err := filter.LeadsTo(w, left()); err != nil || br == nil || br.Name != "br0" {
		t.Errorf("with a port: %+v, %v", br, err)
	}
}
