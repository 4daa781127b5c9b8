package filter_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/resource/filter/spoof"
	"github.com/fairlead-cni/fairlead/spec"
)

// sharers is an attachment that has something in every kind of chain that attachments share.
func sharers(container, network, to string, port uint16) []plan.Remover {
	p := filtertest.PortsOf(container, network, to, filtertest.TCP("", port), filtertest.Range("", port+1, port+9),
		filtertest.Only(filtertest.TCP("", port+10),
			"192.0.2.0/24"), filtertest.Only(filtertest.Range("", port+20, port+29), "192.0.2.0/24"))
	p.Conditions4 = []string{"ip saddr != " + to}
	return []plan.Remover{p, masquerade.Sources{Owner: p.Owner, From: []netip.Prefix{p.To4, p.To6},
		Except: []netip.Prefix{contract.Prefix("192.0.2.0/24")}}}
}

// GC removes what no attachment has anything in any more, and nothing else.
//
// clause: P22
func TestPrune(t *testing.T) {
	w := contract.NewHost(t)
	filtertest.MakeTables(t, w)
	nobody := func([8]byte) bool { return false }
	sweep := func(network string) {
		t.Helper()
		if err := filtertest.SweepNFT(t.Context(), w, network, nobody); err != nil {
			t.Fatal(err)
		}
	}
	bare := filtertest.State(t, w)
	keep := sharers("c1", "keep", "10.1.2.5/24", 100)
	for _, r := range keep {
		contract.Ensure(t, w, r)
	}
	kept := filtertest.State(t, w)
	for i := range 3 {
		for _, r := range sharers(fmt.Sprint("c", i), "net", fmt.Sprintf("10.%d.2.6/24", i+5), uint16(200+50*i)) {
			contract.Ensure(t, w, r)
		}
	}
	sweep("net")
	if got := filtertest.State(t, w); got != kept {
		t.Errorf("the sweep left or took%s", contract.Difference(kept, got))
	}
	for _, r := range keep {
		contract.Verify(t, w, r)
	}
	// What DEL leaves for the next one, the next GC takes, of whichever network.
	for _, r := range keep {
		contract.Remove(t, w, r)
	}
	if got := filtertest.State(t, w); got == bare {
		t.Error("DEL pruned")
	}
	sweep("other")
	if got := filtertest.State(t, w); got != bare {
		t.Errorf("the sweep left%s", contract.Difference(bare, got))
	}
	sweep("other")
	for _, r := range keep {
		contract.Ensure(t, w, r)
		contract.Verify(t, w, r)
	}
}

// What somebody else uses stays, and is no error; so does what was put into our sets by hand.
func TestPruneLeavesOthers(t *testing.T) {
	for _, c := range []struct{ name, line string }{
		{"jump", "add chain inet fairlead mine; add rule inet fairlead mine jump %s"},
		{"lookup", "add rule inet fairlead user ip saddr @%s drop"},
		{"element", "add element inet fairlead %s { 203.0.113.1 }"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := contract.NewHost(t)
			m := masquerade.Sources{Owner: contract.Owner, From: []netip.Prefix{contract.Prefix("10.1.2.5/24")}}
			contract.Ensure(t, w, m)
			filtertest.NFT(t, w, fmt.Sprintf(c.line,
				regexp.MustCompile(`masquerade_ip_[0-9a-f]{12}`).FindString(filtertest.State(t, w))))
			contract.Remove(t, w, m)
			before := filtertest.State(t, w)
			if err := filtertest.SweepNFT(t.Context(), w, "net", func([8]byte) bool { return false }); err != nil {
				t.Error(err)
			}
			if after := filtertest.State(t, w); after != before {
				t.Errorf("the sweep changed%s", contract.Difference(before, after))
			}
		})
	}
}

// GC and ADD at once: whoever is added is whole.
func TestPruneRace(t *testing.T) {
	w := contract.NewHost(t)
	filtertest.MakeTables(t, w)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			ns, err := kernel.Open(w.Host.Path)
			if err != nil {
				t.Error(err)
				return
			}
			defer ns.Close()
			mine := &kernel.World{Host: ns, Store: w.Store}
			if g == 0 {
				for range 40 {
					if err := filtertest.SweepNFT(t.Context(), mine, "gone",
						func([8]byte) bool { return false }); err != nil {
						t.Error(err)
					}
				}
				return
			}
			for i := range 10 {
				o := spec.Owner{Network: "net", ContainerID: fmt.Sprint(g, "-", i), IfName: "eth0"}
				m := masquerade.Sources{Owner: o, From: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10,
					byte(g), byte(i), 5}),
					24)}}
				if _, err := m.Ensure(t.Context(), mine); err != nil {
					t.Error(err)
				}
				if err := m.Verify(t.Context(), mine); err != nil {
					t.Error(err)
				}
				if err := m.Remove(t.Context(), mine); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// The administrator's chain is asked first wherever a packet is decided about, in both tables. Four chains are
// no place for his verdicts: guard, forged and input, which an accept must not open, and decided, which decides nothing.
func TestUserIsAskedFirst(t *testing.T) {
	for _, table := range []*nft.Table{filter.Inet(), filter.Bridge()} {
		w := contract.NewHost(t)
		filtertest.MakeTables(t, w)
		filtertest.NFT(t, w, "add rule "+table.String()+" user counter comment \"mine\"")
		for _, c := range table.Chains {
			if c.Type == "" || slices.Contains([]string{"guard", "forged", "input", "decided"}, c.Name) {
				continue
			}
			list := filtertest.NFT(t, w, "list chain "+table.String()+" "+c.Name)
			_, rules, _ := strings.Cut(list, "policy accept;\n")
			if !strings.HasPrefix(strings.TrimSpace(rules), "jump user ") {
				t.Errorf("%v %s does not ask user first:\n%s", table, c.Name, list)
			}
		}
		o := contract.Owner
		for _, r := range []plan.Remover{masquerade.Sources{Owner: o,
			From: []netip.Prefix{contract.Prefix("10.1.2.5/24")}},
			filtertest.PortsOf("c1", "net", "10.1.2.5/24", filtertest.Only(filtertest.TCP("", 80), "10.0.0.0/8")),
			spoof.Check{Owner: o, Link: "veth1", MAC: "02:00:00:00:00:01"}} {
			contract.Ensure(t, w, r)
			filtertest.NFT(t, w, "flush chain inet fairlead postrouting")
			contract.Ensure(t, w, r)
			contract.Remove(t, w, r)
		}
		if err := filtertest.SweepNFT(t.Context(), w, "net", func([8]byte) bool { return false }); err != nil {
			t.Fatal(err)
		}
		if got := filtertest.NFT(t, w, "list chain "+table.String()+" user"); !strings.Contains(got, `comment "mine"`) {
			t.Errorf("the administrator's rule is gone:\n%s", got)
		}
	}
}

// Whatever another tool does to our tables, the next ADD of any container makes whole what all have in common, and
// what it has itself; elements that were not deleted apply again at once.
func TestFlushIsHealed(t *testing.T) {
	l := filtertest.NewLab(t)
	p := filtertest.PortsOfA(l, filtertest.Range("", 80, 89), filtertest.Only(filtertest.TCP("", 8080), "192.0.2.0/24"))
	next := publish.Ports{Owner: l.OwnerB, To4: l.ToB, To6: l.ToB6, SNAT: true,
		Mappings: []publish.Mapping{filtertest.Range("", 90, 99),
			filtertest.Only(filtertest.TCP("", 8081), "192.0.2.0/24")}}
	l.Serve(l.A, "a", "tcp", ":80")
	l.Serve(l.B, "b", "tcp", ":90")
	l.Serve(l.B, "b", "tcp", ":80")
	for _, flush := range []string{"flush ruleset", "flush table inet fairlead", "delete table inet fairlead",
		"flush chain inet fairlead forward", "flush chain inet fairlead publish"} {
		l.Ensure(p, l.W)
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:80", "a 192.0.2.2")
		filtertest.NFT(t, l.W, flush)
		l.Ensure(next, l.WorldOf(l.B))
		contract.Verify(t, l.WorldOf(l.B), next)
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:90", "b 192.0.2.2")
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:8081", "b 192.0.2.2")
		l.Expect(l.Remote, "tcp", "198.51.100.1:8081", "")
		l.Ensure(p, l.W) // the first one's elements come back with its own ADD
		contract.Verify(t, l.W, p)
		l.Expect(l.Neighbour, "tcp", "192.0.2.1:80", "a 192.0.2.2")
		l.Expect(l.Remote, "tcp", "198.51.100.1:8080", "")
		contract.Verify(t, l.WorldOf(l.B), next)
		contract.Remove(t, l.W, p)
		contract.Remove(t, l.WorldOf(l.B), next)
		if t.Failed() {
			t.Fatalf("after nft %s", flush)
		}
	}
}
