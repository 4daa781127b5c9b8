package filter_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/resource/filter/spoof"
	"github.com/fairlead-cni/fairlead/spec"
)

// everyKind is an attachment that has elements in every set of our tables. Its link on the host is its own.
func everyKind(container, network, to, link, behind string, port uint16) plan.Plan {
	var p plan.Plan
	for _, r := range sharers(container, network, to, port) {
		p = append(p, r)
	}
	o := spec.Owner{Network: network, ContainerID: container, IfName: "eth0"}
	bridged := []netip.Prefix{contract.Prefix("10.7.0.2/24")}
	own := []netip.Prefix{contract.Prefix(behind)}
	return append(p,
		spoof.Check{Owner: o, Link: link, MAC: "02:00:00:00:00:01"},
		policy.IsolatedPort{Owner: o, Link: link, Addrs: []netip.Addr{own[0].Addr(), netip.MustParseAddr("fd00:7::2")}},
		policy.Ingress{Owner: o, Link: "br7", Policy: policy.Strict, To: bridged},
		policy.Ingress{Owner: o, Link: link, Policy: policy.Isolated, To: own})
}

// ports are the published ports of a plan.
func portsIn(p plan.Plan) publish.Ports { return p[0].(publish.Ports) }

// hostOfTwo is a host with a bridge and a link for each of two containers.
func hostOfTwo(t *testing.T) *kernel.World {
	w := contract.NewHost(t)
	filtertest.MakeTables(t, w)
	for _, line := range []string{"ip link add br7 up type bridge", "ip addr add 10.7.0.1/24 dev br7",
		"ip link add h1 up type veth peer name p1", "ip link add h2 up type veth peer name p2",
		"ip route add 10.8.0.2 dev h1", "ip route add 10.8.0.3 dev h2"} {
		contract.Host(t, w, "%s", line)
	}
	return w
}

// Somebody flushes or cuts the sets of owners. The next GC removes what the dead have all the same, by the comments of
// their elements, and nothing of the living.
//
// clause: P22
func TestSweepWithoutOwners(t *testing.T) {
	for _, c := range []struct {
		name  string
		lacks string // what CHECK says of the others then
		cut   func(t *testing.T, w *kernel.World, dead spec.Owner)
	}{
		{"flushed", "is not in owners", func(t *testing.T, w *kernel.World, _ spec.Owner) {
			filtertest.NFT(t, w, "flush set inet fairlead owners; flush set bridge fairlead owners")
		}},
		{"cut", "no difference", func(t *testing.T, w *kernel.World, dead spec.Owner) { firstEntryGone(t, w, dead) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := hostOfTwo(t)
			dead := everyKind("c1", "net", "10.1.2.5/24", "h1", "10.8.0.2/24", 100)
			living := everyKind("c2", "net", "10.1.2.6/24", "h2", "10.8.0.3/24", 200)
			// Networks may overlap: this one's container has the address of the dead.
			overlapping := plan.Plan{masquerade.Sources{
				Owner:  spec.Owner{Network: "other", ContainerID: "c3", IfName: "eth0"},
				From:   []netip.Prefix{contract.Prefix("10.1.2.5/24")},
				Except: []netip.Prefix{contract.Prefix("192.0.2.0/24")}}}
			// podman sends the mappings of a container to each of its networks.
			standby := portsIn(everyKind("c2", "net2", "10.2.2.6/24", "h2", "10.8.0.3/24", 200))
			contract.Must(t, w, overlapping...)
			contract.Must(t, w, living...)
			contract.Must(t, w, standby)
			before := filtertest.Elements(t, w)
			contract.Must(t, w, dead...)

			c.cut(t, w, portsIn(dead).Owner)
			if err := engine.Undo(t.Context(), w, dead); err != nil {
				t.Fatal(err)
			}
			if err := filtertest.Sweep(t.Context(), w, "net", []spec.Owner{portsIn(living).Owner}); err != nil {
				t.Fatal(err)
			}
			for _, p := range []plan.Plan{overlapping, living, {standby}} {
				lacks(t, w, p, c.lacks)
			}
			contract.Must(t, w, overlapping...) // which has owners list them again
			contract.Must(t, w, living...)
			contract.Must(t, w, standby)
			if after := filtertest.Elements(t, w); after != before {
				t.Errorf("GC left or took%s", contract.Difference(before, after))
			}

			c.cut(t, w, standby.Owner)
			if err := filtertest.Sweep(t.Context(), w, "net2", nil); err != nil {
				t.Fatal(err)
			}
			if s := filtertest.State(t, w); strings.Contains(s, "net2/") {
				t.Errorf("GC left of who stood by:\n%s", s)
			}
			contract.Host(t, w, "ip link del br7")
			for _, network := range []string{"net", "other"} {
				if err := filtertest.Sweep(t.Context(), w, network, nil); err != nil {
					t.Fatal(err)
				}
			}
			if s := filtertest.State(t, w); c.name == "flushed" && strings.Contains(s, "elements") {
				t.Errorf("GC of all networks left:\n%s", s)
			}
		})
	}
}

// lacks compares what CHECK says of each resource.
func lacks(t *testing.T, w *kernel.World, p plan.Plan, want string) {
	t.Helper()
	err := engine.Verify(t.Context(), w, p)
	if err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		if !strings.Contains(line, want) {
			t.Errorf("after GC of another one: %s", line)
		}
	}
}

// firstEntryGone deletes the first entry of each kind that an owner has in the sets of owners, and one with its element.
func firstEntryGone(t *testing.T, w *kernel.World, o spec.Owner) {
	t.Helper()
	for _, table := range []*nft.Table{filter.InetSets(), filter.Bridge()} {
		err := filter.Transact(t.Context(), w, table, func(f filter.Tx) error {
			var b nft.Batch
			for kind := uint32(1); kind <= 8; kind++ {
				have, err := f.Entries(identity.OwnerHash(o), kind<<16)
				if err != nil {
					return err
				}
				if len(have) > 1 {
					b.Delete(have[0].Record)
				}
				if kind<<16 == filter.KindSpoofCheck && len(have) > 1 {
					b.Delete(have[0].Place)
				}
			}
			return f.Write(&b)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
