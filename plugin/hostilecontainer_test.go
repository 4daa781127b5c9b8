package plugin_test

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestHeldNamespace: a process of the container keeps the namespace open when its path is gone. DEL and GC take the
// link out of it, so that nothing there can use an address that the next container gets.
//
// clause: P12 P13 P22
func TestHeldNamespace(t *testing.T) {
	for name, conf := range map[string]string{
		"bridge": `"type":"bridge","bridge":"br-held","isGateway":true,` + hostLocal,
		"ptp":    `"type":"ptp",` + hostLocal,
	} {
		for _, verb := range []string{"DEL", "DEL without a result", "GC"} {
			t.Run(name+"/"+verb, func(t *testing.T) {
				withoutBridges(t)
				r := newRunner(t, chain{"held-" + name, []string{conf, published}, nil})
				a := &attachment{id: "c1", netns: nstest.NewNS(t)}
				r.must("add", r.add(a))
				held := openNS(t, a.netns)
				r.must("remove the path", nstest.RemoveNS(a.netns))

				switch verb {
				case "DEL":
					r.must(verb, r.del(a))
				case "GC":
					r.must(verb, r.gc())
				default:
					r.must(verb, r.del(&attachment{id: a.id, network: a.network}))
				}
				if left := linksBut(t, held); len(left) > 0 {
					t.Errorf("the container still has %v", left)
				}
			})
		}
	}
}

// TestMovingTarget: root in the container renames, marks and moves the links that it sees, all the time while DEL or GC
// runs, and ADD of links that have an end on the host. ADD may fail. DEL and GC succeed, and nothing is left in the
// container, below it, or on the host.
//
// clause: P11 P12
func TestMovingTarget(t *testing.T) {
	needTap(t)
	for name, target := range map[string]struct {
		conf string
		pair bool // the link has an end on the host. The container also moves its own into a namespace below
	}{
		"bridge": {`"type":"bridge","bridge":"br-moves","isGateway":true,"macspoofchk":true,` + hostLocal, true},
		"ptp":    {`"type":"ptp","ipMasq":true,` + hostLocal, true},
		"tap":    {`"type":"tap",` + hostLocal, false},
	} {
		t.Run(name, func(t *testing.T) {
			withoutBridges(t)
			r := newRunner(t, chain{"moves-" + name, []string{target.conf, published}, nil})
			warm := &attachment{id: "warm", netns: nstest.NewNS(t)} // makes what the network shares
			r.must("add", r.add(warm))
			r.must("del", r.del(warm))
			before := state(t)
			for i := range 4 {
				a := &attachment{id: fmt.Sprint("c", i), netns: nstest.NewNS(t)}
				places := []*kernel.NS{openNS(t, a.netns)}
				if target.pair {
					places = append(places, openNS(t, nstest.NewNS(t)))
				}
				duringAdd := target.pair && i%2 == 1
				if !duringAdd {
					r.must("add", r.add(a))
				}
				attack := harass(places)
				if duringAdd {
					err := r.add(a)
					t.Logf("%d: add: %v", i, err)
				} else {
					attack.once(t)
				}
				if i < 2 {
					r.must("del", r.del(a))
				} else {
					r.must("gc", r.gc())
				}
				attack.stop()
				for _, ns := range places {
					if left := linksBut(t, ns); len(left) > 0 {
						t.Errorf("%d: afterwards the container has %v", i, left)
					}
				}
				if after := state(t); after != before {
					t.Errorf("%d: afterwards the host has\n%s\nbefore\n%s", i, after, before)
				}
			}
		})
	}
}

// An attack renames, marks and moves links in namespaces until it is stopped.
type attack struct {
	changes atomic.Int64
	stopped chan struct{}
	ended   chan struct{}
}

// harass begins an attack. With two namespaces, it moves links from each to the other.
func harass(places []*kernel.NS) *attack {
	a := &attack{stopped: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(a.ended)
		for n := 0; ; n++ {
			select {
			case <-a.stopped:
				return
			default:
			}
			here, there := places[n%len(places)], places[(n+1)%len(places)]
			links, _ := rtnl.Links(here)
			for _, l := range links {
				forged := identity.Tag(spec.Owner{Network: "elsewhere", ContainerID: fmt.Sprint(n), IfName: l.Name})
				change := rtnl.LinkChange{Rename: fmt.Sprint("x", n), Alias: forged,
					MAC: net.HardwareAddr{2, 0, 0, 9, byte(n >> 8), byte(n)}}
				if here != there {
					change.To = there
				}
				// The link may be gone: that is what the attack is about.
				if l.Name != "lo" && rtnl.MoveLink(here, l.Index, change) == nil {
					a.changes.Add(1)
				}
			}
		}
	}()
	return a
}

// once waits until the attack has changed a link.
func (a *attack) once(t *testing.T) {
	t.Helper()
	for a.changes.Load() == 0 {
		if nstest.Context(t).Err() != nil {
			t.Fatal("the attack changes nothing")
		}
	}
}

func (a *attack) stop() {
	close(a.stopped)
	<-a.ended
}

func openNS(t *testing.T, path string) *kernel.NS {
	t.Helper()
	ns, err := kernel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	return ns
}

// linksBut are the names of a namespace's links but lo.
func linksBut(t *testing.T, ns *kernel.NS) (names []string) {
	t.Helper()
	links, err := rtnl.Links(ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Name != "lo" {
			names = append(names, l.Name)
		}
	}
	return names
}
