package etcd

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// late has the packets of this host's own link come later, as tc-netem(8) takes a delay.
func late(t *testing.T, verb, delay string) {
	t.Helper()
	args := strings.Fields("qdisc " + verb + " dev lo root netem delay " + delay)
	said, err := exec.Command("tc", args...).CombinedOutput()
	switch {
	case err != nil && strings.Contains(string(said), "Specified qdisc kind is unknown"): // as the kernel says it
		nstest.Skip(t, fmt.Sprintf("netem: %s", said))
	case err != nil:
		t.Fatalf("tc %v: %v: %s", args, err, said)
	}
}

// Where each packet takes 100 to 300 ms, and some overtake others, nodes claim blocks and give them back, and no container waits
// for etcd that gets an address which its node has.
func TestDelay(t *testing.T) {
	late(t, "add", "0ms")
	s := startEtcd(t)
	nodes := []*attaching{newAttaching(t, s, "a"), newAttaching(t, s, "b")}
	nodes[0].attach(t, 40)
	soon := nodes[0].median()

	late(t, "change", "200ms 100ms")
	for _, n := range nodes {
		n.isTimed.Store(true)
		n.attach(t, 100)
	}
	for _, n := range nodes {
		n.detach(t)
		j, err := (&host{network: n.Network}).loadJournal()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Drain(t.Context(), j.Node, true); err != nil {
			t.Fatal(err)
		}
		n.awaits(t, func(blocks int) bool { return blocks == 0 })
	}
	late(t, "change", "0ms")

	for _, n := range nodes {
		n.end()
		if len(n.claims) == 0 || n.asked > len(n.took) {
			t.Errorf("node %s claims %d times; %d containers waited for that, and %d did not", n.Network, len(n.claims), n.asked, len(n.took))
			continue
		}
		fastest, slowest := slices.Min(n.claims), slices.Max(n.claims)
		t.Logf("node %s: %d claims in %v to %v; an ADD takes %v, and %v without the delay; %d of %d asked the agent", n.Network,
			len(n.claims), fastest, slowest, n.median(), soon, n.asked, n.asked+len(n.took))
	}
}

// An attaching is a node of one process, whose containers come and go as the plugin and the agent have it.
type attaching struct {
	*Member
	end     func()
	granted chan struct{}
	isTimed atomic.Bool     // what claims take is noted
	claims  []time.Duration // … to be read after the end
	took    []time.Duration // by each ADD that asked nobody, in the last call of attach
	asked   int             // the others
	owners  []spec.Owner
}

// newAttaching starts the agent of a node.
func newAttaching(t *testing.T, s *Store, node string) *attaching {
	n := &attaching{Member: member(t.Output(), s, node, 1), granted: make(chan struct{}, 1)}
	n.Published = func() { notify(n.granted) }
	n.Pools, n.Spare, n.Idle = []string{"large"}, 8, time.Hour
	var begun time.Time
	n.before = func(a blocks.Action) {
		if !begun.IsZero() {
			n.claims, begun = append(n.claims, time.Since(begun)), time.Time{}
		}
		txn, is := a.(blocks.Txn)
		if is && len(txn.Put) > 0 && txn.Put[0].Key.Kind == blocks.BlockKey && n.isTimed.Load() {
			begun = time.Now()
		}
	}
	n.follow(t)
	n.end = sync.OnceFunc(n.run(t))
	t.Cleanup(n.end)
	n.awaits(t, func(blocks int) bool { return blocks > 0 })
	return n
}

// awaits waits until the node has as many blocks as it should.
func (n *attaching) awaits(t *testing.T, should func(blocks int) bool) {
	t.Helper()
	for {
		g, err := grant.OfBoot(n.Network)
		if err == nil && should(len(g.Ranges)) {
			return
		}
		select {
		case <-n.granted:
		case <-t.Context().Done():
			t.Fatalf("node %s has %v, %v", n.Network, g.Ranges, err)
		}
	}
}

// attach gives addresses to containers.
func (n *attaching) attach(t *testing.T, containers int) {
	t.Helper()
	n.took, n.asked = nil, 0
	for range containers {
		o := spec.Owner{Network: n.Network, ContainerID: fmt.Sprint("x", len(n.owners)), IfName: "eth0"}
		n.owners = append(n.owners, o)
		begun := time.Now()
		_, err := allocator(n.Network).Allocate(t.Context(), o)
		if err == nil {
			n.took = append(n.took, time.Since(begun))
			continue
		}
		n.asked++
		for err != nil {
			if asked := n.Ask(t.Context(), grant.Want{}); asked != nil {
				t.Fatal(err, asked)
			}
			_, err = allocator(n.Network).Allocate(t.Context(), o)
		}
	}
}

// detach ends all containers.
func (n *attaching) detach(t *testing.T) {
	t.Helper()
	for _, o := range n.owners {
		if err := allocator(n.Network).Release(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	n.owners = nil
}

// median is how long an ADD of the last call of attach took that asked nobody.
func (n *attaching) median() time.Duration {
	return slices.Sorted(slices.Values(n.took))[len(n.took)/2]
}
