package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// The plugin of this file is somebody else's: it has a resource and a Kind of its own, made of what is exported. All
// that it does for DEL, GC, roll-back and a dry run is to declare the kind.

// A beacon is a link on the host that stands for a container.
type beacon struct {
	Owner spec.Owner
	MTU   int
}

func (b beacon) name() string { return identity.LinkName("bcn", b.Owner) }

func (b beacon) String() string { return fmt.Sprintf("beacon host/%s mtu %d", b.name(), b.MTU) }

// Ensure implements plan.Resource.
func (b beacon) Ensure(_ context.Context, w *kernel.World) (bool, error) {
	if _, err := rtnl.LinkByName(w.Host, b.name()); err == nil || !errors.Is(err, rtnl.ErrNoLink) {
		return false, err
	}
	err := rtnl.AddIFB(w.Host, rtnl.NewLink{
		Name: b.name(), MAC: identity.MAC("beacon",
			b.Owner), MTU: b.MTU, Group: identity.LinkGroup(b.Owner.Network), Alias: identity.Tag(b.Owner),
	})
	if os.Getenv("BEACON") == "kill" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return err == nil, err
}

// Verify implements plan.Resource.
func (b beacon) Verify(_ context.Context, w *kernel.World) error {
	l, err := rtnl.LinkByName(w.Host, b.name())
	if err == nil && l.MTU != b.MTU {
		err = fmt.Errorf("mtu is %d, want %d", l.MTU, b.MTU)
	}
	return err
}

// Remove implements plan.Remover.
func (b beacon) Remove(ctx context.Context, w *kernel.World) error {
	return beacons{}.Remove(ctx, w, plan.TagOf(b.Owner))
}

// beacons is the Kind of beacon.
type beacons struct{}

func (beacons) Name() string { return "beacon" }

func (beacons) Owners(_ context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
	links, err := rtnl.Links(w.Host)
	for _, l := range links {
		net, owner, _, tagged := identity.ParseTag(l.Alias)
		if tagged && net == identity.NetworkHash(network) && strings.HasPrefix(l.Name, "bcn") {
			tags = append(tags, plan.Tag{Network: network, Hash: owner, Found: l.Name})
		}
	}
	return tags, err
}

func (beacons) Remove(_ context.Context, w *kernel.World, tags ...plan.Tag) error {
	var errs []error
	for _, t := range tags {
		name, found := t.Found.(string)
		if !found {
			name = beacon{Owner: t.Owner}.name()
		}
		l, err := rtnl.LinkByName(w.Host, name)
		if err == nil {
			err = rtnl.DelLink(w.Host, l.Index)
		}
		if !errors.Is(err, rtnl.ErrNoLink) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// beaconPlugin is the whole plugin.
func beaconPlugin() sdk.Plugin {
	type conf struct {
		MTU  int  `json:"mtu"`  // of the beacon; default 1400
		Fail bool `json:"fail"` // refuse after the beacon is lit
	}
	return sdk.Chained("beacon", "lights a beacon", func(c conf, r *sdk.Request) (sdk.Answer, error) {
		if c.MTU == 0 {
			c.MTU = 1400
		}
		p := plan.Plan{beacon{Owner: r.Owner, MTU: c.MTU}}
		if c.Fail {
			p = append(p, addr.Addr{Where: resource.Host, Link: "nothing"})
		}
		return sdk.Answer{Plan: p}, nil
	}, func(conf) []plan.Kind { return []plan.Kind{beacons{}} })
}

// TestForeignKind is the life of a plugin that is not of this tree: ADD, CHECK, a failed ADD, a killed one, DEL, GC,
// and the dry run.
//
// clause: P12 P13 P22
func TestForeignKind(t *testing.T) {
	lit := func() int {
		out := nstest.RunIn(t, "/proc/self/ns/net", "ip", "-br", "link")
		return strings.Count(out, "bcn")
	}
	ns := "CNI_NETNS=" + nstest.NewNS(t)
	of := func(id, verb, more string, vars ...string) answer {
		t.Helper()
		return ask(t, "beacon", conf("1.1.0", more),
			append([]string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", ns}, vars...)...)
	}
	want := func(when string, a answer, status, beacons int) {
		t.Helper()
		if (a.status != 0) != (status != 0) || lit() != beacons {
			t.Fatalf("%s: status %d, want %d; %d beacons, want %d\n%s%s", when, a.status, status, lit(), beacons, a.stdout,
				a.stderr)
		}
	}
	want("ADD", of("c1", "ADD", prev), 0, 1)
	want("CHECK", of("c1", "CHECK", prev), 0, 1)
	nstest.RunIn(t, "/proc/self/ns/net", "ip", "link", "set",
		identity.LinkName("bcn", spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}), "mtu", "1300")
	if a := of("c1", "CHECK", prev); a.status == 0 || !strings.Contains(a.stdout, "mtu is 1300, want 1400") {
		t.Errorf("CHECK of a dim beacon: %+v", a)
	}
	want("ADD that fails", of("c2", "ADD", `,"fail":true`+prev), 1, 1)
	want("ADD that is killed", of("c3", "ADD", prev, "BEACON=kill"), 1, 2)
	want("DEL after a kill, with a configuration that cannot be read", of("c3", "DEL", `,"mtu":"wide"`), 0, 1)
	want("DEL again", of("c3", "DEL", prev), 0, 1)
	want("ADD of a second", of("c4", "ADD", prev), 0, 2)
	valid := `,"cni.dev/valid-attachments":[{"containerID":"c4","ifname":"eth0"}]`
	other := strings.Replace(conf("1.1.0", valid), `"net"`, `"other"`, 1)
	want("GC of another network", ask(t, "beacon", other, "CNI_COMMAND=GC"), 0, 2)
	want("GC by another plugin of the program", ask(t, "toy", conf("1.1.0", valid), "CNI_COMMAND=GC"), 0, 1)
	want("GC", of("", "GC", `,"cni.dev/valid-attachments":[]`), 0, 0)

	c, err := spec.ParseConf([]byte(conf("1.1.0", "")))
	if err != nil {
		t.Fatal(err)
	}
	r, err := beaconPlugin().NewRequest("ADD", spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}, "", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := beaconPlugin().Plan(c, r)
	if err != nil || !strings.HasPrefix(p.Plan.String(), "beacon host/bcn") || lit() != 0 {
		t.Errorf("dry run: %v, %v, %d beacons", p, err, lit())
	}
}

// TestGCLeavesOthersRecords: another program may need its records after our GC, which comes first in a list. What our
// own interface plugins wrote down goes.
//
// clause: P22
func TestGCLeavesOthersRecords(t *testing.T) {
	store := record.Store{Dir: record.Dir}
	gone := spec.Owner{Network: "net", ContainerID: "gone", IfName: "eth0"}
	for _, rec := range []string{"theirs", resource.MadeRecord} {
		if err := store.Put(rec, gone, spec.Owner{}); err != nil {
			t.Fatal(err)
		}
	}
	a := ask(t, "toy", conf("1.1.0", `,"cni.dev/valid-attachments":[]`), "CNI_COMMAND=GC")
	theirs, err := store.Get("theirs", gone, new(spec.Owner))
	made, merr := store.Get(resource.MadeRecord, gone, new(spec.Owner))
	if a.status != 0 || !theirs || made || err != nil || merr != nil {
		t.Errorf("%+v; theirs is there: %v, ours: %v, %v, %v", a, theirs, made, err, merr)
	}
}
