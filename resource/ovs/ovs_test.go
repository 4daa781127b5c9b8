package ovs_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/ovs"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// world is the host's namespace, with an Open vSwitch that has a bridge, and links to put on it.
func world(t *testing.T) (*nstest.OVS, *kernel.World) {
	t.Helper()
	o := nstest.NewOVS(t, "")
	host, err := kernel.Open("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Close)
	nstest.Run(t, "sh", "-ec",
		"for n in 0 1 2; do ip link add a$n type veth peer name b$n; ip link set a$n up; ip link set b$n up; done")
	o.Ctl(t, "add-br", "ovs0", "--", "set", "bridge", "ovs0", "datapath_type=netdev")
	return o, &kernel.World{Host: host, Store: record.Store{Dir: t.TempDir()}}
}

func owner(id string) spec.Owner { return spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"} }

// rows are all that the database says of ports, and the records.
func rows(t *testing.T, o *nstest.OVS, w *kernel.World) string {
	t.Helper()
	var s []string
	for _, table := range []string{"name,tag,trunks,vlan_mode,protected,external_ids list port",
		"name,type,options,ingress_policing_rate,ofport_request list interface",
		"type,other_config list qos", "name,datapath_type list bridge"} {
		args := strings.Fields(table)
		lines := strings.Split(o.Ctl(t, append([]string{"--format=csv", "--columns=" + args[0]}, args[1:]...)...), "\n")
		slices.Sort(lines)
		s = append(s, lines...)
	}
	return strings.Join(s, "\n") + nstest.Run(t, "find", w.Store.Dir, "-type", "f", "-not", "-name", "*lock*")
}

// TestLaw holds the resources and the Kind to their laws: ensured, they verify, and ensuring again changes nothing but
// what has to be made; each broken field is named; Owners finds what Ensure made; Remove leaves nothing, and nobody
// else's goes.
func TestLaw(t *testing.T) {
	o, w := world(t)
	db, ctx := ovs.DB(o.Socket()), t.Context()
	overlay := ovs.Overlay{VNI: 42, Remotes: []netip.Addr{netip.MustParseAddr("192.0.2.7"),
		netip.MustParseAddr("127.0.0.1")}, DstPort: 4790}
	vlans := ovs.VLANs{Tag: 7, Trunks: []int{10, 11, 12, 42}}
	port := func(id, link string) ovs.Port {
		return ovs.Port{DB: db, Owner: owner(id), Bridge: "ovs0", Link: link, Netns: "/run/netns/" + id, VLANs: vlans,
			OFPort: 17,
			Limits: ovs.Limits{Policing: 5_000_000, PolicingBurst: 500_000, Shaping: 1_000_000}, Overlay: overlay}
	}
	p, tunnels := port("c1", "a0"), ovs.Tunnels{DB: db, Bridge: "ovs0", Overlay: overlay, VLANs: vlans}
	other := port("c2", "a1")
	other.OFPort = 0
	ensure := func(r plan.Resource, changed bool) {
		t.Helper()
		if got, err := r.Ensure(ctx, w); err != nil || got != changed {
			t.Fatalf("%v: changed %v, %v", r, got, err)
		}
		if err := r.Verify(ctx, w); err != nil {
			t.Fatalf("%v: verify: %v", r, err)
		}
	}
	same := func(when, want string) {
		t.Helper()
		if got := rows(t, o, w); got != want {
			t.Errorf("%s: is\n%s\nwas\n%s", when, got, want)
		}
	}
	remove := func(tags ...plan.Tag) {
		t.Helper()
		if err := ovs.PortKind(db).Remove(ctx, w, tags...); err != nil {
			t.Fatal(err)
		}
	}
	ensure(ovs.Bridge{DB: db, Name: "ovs0", Datapath: "netdev"}, false)
	ensure(ovs.Bridge{DB: db, Name: "ovs1", Datapath: "netdev"}, true)
	ensure(ovs.Bridge{DB: db, Name: "ovs1"}, false)
	o.Ctl(t, "del-br", "ovs1")
	before := rows(t, o, w)
	remove(plan.TagOf(owner("c1")))
	same("removing nothing", before)
	ensure(p, true)
	ensure(tunnels, true)
	ensure(tunnels, false)
	if got := o.Ctl(t, "--bare", "--columns=options", "find", "interface",
		"type=vxlan"); got != "dst_port=4790 key=42 remote_ip=192.0.2.7\n" {
		t.Errorf("tunnels %q: this host needs none to itself", got)
	}
	made := rows(t, o, w)
	remove(plan.TagOf(owner("c2")))
	same("removing another's", made)

	for _, b := range []struct{ ctl, fix, say string }{
		{"set port a0 tag=8", "set port a0 tag=7", "tag is 8, want 7"},
		{"add port a0 trunks 99", "remove port a0 trunks 99", "trunks is 10-12,42,99, want 10-12,42"},
		{"set port a0 vlan_mode=trunk", "set port a0 vlan_mode=native-untagged", "vlan_mode is trunk, want native-untagged"},
		{"set interface a0 ingress_policing_rate=7", "set interface a0 ingress_policing_rate=5000",
			"ingress_policing_rate is 7, want 5000"},
		{"set interface a0 ingress_policing_burst=7", "set interface a0 ingress_policing_burst=500",
			"ingress_policing_burst is 7, want 500"},
		{"remove port a0 external_ids fairlead", "set port a0 external_ids:fairlead=" + strings.ReplaceAll(`"`+identity.Tag(owner("c1"))+`"`, " ", "_"), "external_ids:fairlead is none"},
	} {
		o.Ctl(t, strings.Fields(b.ctl)...)
		if err := p.Verify(ctx, w); err == nil || !strings.Contains(err.Error(), b.say) {
			t.Errorf("%s: verify says %v, want %q", b.ctl, err, b.say)
		}
		fix := strings.Fields(b.fix)
		for i := range fix {
			if strings.Contains(fix[i], "fairlead=") {
				fix[i] = strings.ReplaceAll(fix[i], "_", " ")
				fix[i] = strings.Replace(fix[i], "external ids", "external_ids", 1)
			}
		}
		o.Ctl(t, fix...)
		if err := p.Verify(ctx, w); err != nil {
			t.Errorf("%s: %v", b.fix, err)
		}
	}
	same("what was fixed", made)

	ensure(other, true)
	both := rows(t, o, w)
	tags, err := ovs.PortKind("").Owners(ctx, &kernel.World{Host: w.Host, Store: w.Store}, "net")
	if err != nil || !slices.ContainsFunc(tags,
		func(t plan.Tag) bool { return t.Hash == identity.OwnerHash(owner("c1")) }) {
		t.Fatalf("owners %v, %v", tags, err)
	}
	same("owners", both)
	collect := func(network string, valid ...spec.Owner) {
		t.Helper()
		if err := engine.Collect(ctx, w, []plan.Kind{ovs.PortKind("")}, network, valid); err != nil {
			t.Fatal(err)
		}
	}
	collect("net", owner("c1"), owner("c2"))
	collect("another")
	same("GC of what is valid", both)
	collect("net", owner("c1"))
	same("GC of the other", made)
	collect("net")
	same("GC of all", before)
	if err := errors.Join(p.Verify(ctx, w)); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("after GC: %v", err)
	}
	ensure(p, true)
	ensure(tunnels, true)
	w.Store = record.Store{Dir: t.TempDir()} // as after a restart of the host
	collect("net")
	if got := rows(t, o, w); strings.Contains(got, "fairlead") || strings.Contains(got, "htb") {
		t.Errorf("GC without records left\n%s", got)
	}
}

// TestFix makes whole what somebody changed or deleted in the database while the container lives.
func TestFix(t *testing.T) {
	o, w := world(t)
	db, ctx := ovs.DB(o.Socket()), t.Context()
	overlay := ovs.Overlay{VNI: 42, Remotes: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}
	vlans := ovs.VLANs{Tag: 7}
	port := ovs.Port{DB: db, Owner: owner("c1"), Bridge: "ovs0", Link: "a0", VLANs: vlans,
		Limits: ovs.Limits{Shaping: 1_000_000}, Overlay: overlay}
	want := []resource.Describer{ovs.Bridge{DB: db, Name: "ovs0", Datapath: "netdev"}, port,
		ovs.Tunnels{DB: db, Bridge: "ovs0", Overlay: overlay, VLANs: vlans}}
	for _, r := range want {
		if _, err := r.Ensure(ctx, w); err != nil {
			t.Fatal(err)
		}
	}
	made := rows(t, o, w)
	for _, ctl := range []string{"set port a0 tag=8", "del-port a0", "del-br ovs0"} {
		o.Ctl(t, strings.Fields(ctl)...)
		for _, r := range want {
			if r.Verify(ctx, w) == nil {
				continue
			}
			if changed, err := r.Traits().Fix(ctx, w); err != nil || !changed {
				t.Errorf("%s: fix %v: changed %v, %v", ctl, r, changed, err)
			}
			if err := r.Verify(ctx, w); err != nil {
				t.Errorf("%s: %v: %v", ctl, r, err)
			}
		}
		if got := rows(t, o, w); got != made {
			t.Errorf("%s: is\n%s\nwas\n%s", ctl, got, made)
		}
	}
	nstest.Run(t, "ip", "link", "del", "a0")
	before := rows(t, o, w)
	if changed, err := port.Traits().Fix(ctx, w); !errors.Is(err, rtnl.ErrNoLink) || changed || rows(t, o, w) != before {
		t.Errorf("without its link: changed %v, %v", changed, err)
	}
}

// TestRefused names what Open vSwitch cannot do, and takes back what was begun.
func TestRefused(t *testing.T) {
	o, w := world(t)
	db, ctx := ovs.DB(o.Socket()), t.Context()
	tunnels := func(vni, tag int) ovs.Tunnels {
		return ovs.Tunnels{DB: db, Bridge: "ovs0",
			Overlay: ovs.Overlay{VNI: vni, Remotes: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}, VLANs: ovs.VLANs{Tag: tag}}
	}
	for _, tag := range []int{0, 7} {
		if _, err := tunnels(42+tag, tag).Ensure(ctx, w); err != nil {
			t.Fatal(err)
		}
	}
	before := rows(t, o, w)
	for _, tt := range []struct {
		r   plan.Resource
		say string
	}{
		{ovs.Port{DB: db, Owner: owner("c1"), Bridge: "ovs0", Link: "none"},
			"interface none: ovs-vswitchd says: could not open network device none (No such device)"},
		{ovs.Port{DB: db, Owner: owner("c1"), Bridge: "ovs0", Link: "ovs0"},
			"port ovs0 exists in Open vSwitch, and is no attachment's"},
		{ovs.Port{DB: db, Owner: owner("c1"), Bridge: "ovs9", Link: "a0"}, "bridge ovs9 no longer exists"},
		{ovs.Bridge{DB: db, Name: "ovs0", Datapath: "system"}, `datapath_type: "system": bridge ovs0 has "netdev"; want the same, or another bridge`},
		{ovs.Bridge{DB: db, Name: "a0", Datapath: "netdev"}, "interface a0"},
		{tunnels(43, 0), "vxlanID: 43: bridge ovs0 carries VXLAN 42 in the same VLAN, and would join the two"},
		{tunnels(43, 7), "vxlanID: 43: bridge ovs0 carries VXLAN 49 in the same VLAN"},
	} {
		if changed, err := tt.r.Ensure(ctx, w); changed || err == nil || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%v: %v, %v, want %q", tt.r, changed, err, tt.say)
		}
		if after := rows(t, o, w); after != before {
			t.Errorf("%v: is\n%s\nwas\n%s", tt.r, after, before)
		}
	}
	err := ovs.Bridge{DB: db, Name: "ovs9"}.Verify(ctx, w)
	if err == nil || !strings.Contains(err.Error(), `bridge: "ovs9": no such bridge in Open vSwitch; there is ovs0`) {
		t.Errorf("verify: %v", err)
	}
}

// TestUndone takes a bridge and tunnels back that ovs-vswitchd does not make in the caller's time.
func TestUndone(t *testing.T) {
	o, w := world(t)
	db := ovs.DB(o.Socket())
	before := rows(t, o, w)
	o.Stop(t, "ovs-vswitchd")
	remote := ovs.Overlay{VNI: 7, Remotes: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}
	for _, r := range []plan.Resource{ovs.Bridge{DB: db, Name: "ovs9", Datapath: "netdev"},
		ovs.Tunnels{DB: db, Bridge: "ovs0", Overlay: remote}} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		changed, err := r.Ensure(ctx, w)
		cancel()
		if changed || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: %v, %v", r, changed, err)
		}
		if after := rows(t, o, w); after != before {
			t.Errorf("%v: %v: is\n%s\nwas\n%s", r, err, after, before)
		}
	}
}
