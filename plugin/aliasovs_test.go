package plugin_test

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/miekg/dns"
)

// The bridge of Open vSwitch has the gateway's address on its internal port, which the kernel does not call the master
// of the container's link. The name server answers there, and on no other link's address. The internal port has no tag,
// so it is no gateway of a VLAN.
func TestAliasOVS(t *testing.T) {
	startNameServer(t)
	o := nstest.NewOVS(t, "")
	for _, bridge := range []string{"ovs0", "ovs1"} {
		o.Ctl(t, "add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev")
	}
	nstest.Run(t, "sh", "-ec", `ip link set lo up
		ip addr add 10.77.0.1/24 dev ovs0; ip link set ovs0 up; ip addr add 10.78.0.1/24 dev ovs1; ip link set ovs1 up
		ethtool -K ovs0 tx off >/dev/null 2>&1 || true`)
	run := func(id, vlan, address, gateway string) (*runner, *attachment, error) {
		r := newRunner(t, chain{"ovs-names", []string{
			ovsConf(o, vlan+","+ownAddress(address, gateway)), `"type":"alias"`}, nil})
		a := &attachment{id: id, netns: nstest.NewNS(t)}
		t.Cleanup(func() { r.must("del", r.del(a)) })
		return r, a, r.add(a)
	}
	r, web, err := run("web", "", "10.77.0.2/24", "10.77.0.1")
	r.must("add", err)
	r.must("check", r.check(web))
	_, db, err := run("db", "", "10.77.0.3/24", "10.77.0.1")
	r.must("add", err)
	if got := asked(t, db.netns, "10.77.0.1", "udp", "web", dns.TypeA); got != "10.77.0.2" {
		t.Errorf("the address of web: %q", got)
	}
	_, _, err = run("other", "", "10.78.0.2/24", "10.78.0.1")
	wantCode(t, "another bridge's address", err, spec.CodeConfig, "ovs0 leads to the container")
	_, _, err = run("red", `,"vlan":100`, "10.77.0.4/24", "10.77.0.1")
	wantCode(t, "in a VLAN", err, spec.CodeConfig, "has no gateway on this host (10.77.0.1)")
	nstest.Run(t, "ip", "addr", "del", "10.77.0.1/24", "dev", "ovs0")
	wantCode(t, "check without the gateway", r.check(web), spec.CodeConfig, "ovs0 leads to the container")
}
